// SPDX-License-Identifier: Apache-2.0

package offline

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/template"
)

const (
	runtimeUser      = 107 // the user id of qemu in the launcher image
	defaultCPU       = "100m"
	defaultQGSSocket = "/var/run/tdx-qgs/qgs.socket" // of KubeVirt's definition
)

// defaulting is a guest that gets its defaults.
type defaulting struct {
	vmi      *v1.VirtualMachineInstance
	spec     *v1.VirtualMachineInstanceSpec
	kubevirt *v1.KubeVirt
	cluster  *v1.KubeVirtConfiguration
	config   template.Config
}

// Default returns a copy of a guest with the defaults that KubeVirt's webhooks give it when it is created, as far as they
// change a Pod. A nil KubeVirt object stands for KubeVirt's own defaults. In this order:
//
//   - spec.architecture: defaultArchitecture of the KubeVirt object's spec or status, else amd64
//   - spec.domain.machine.type: the cluster's machineType, in general or of the architecture; else q35, virt on arm64,
//     s390-ccw-virtio on s390x
//   - CPU request: the CPU limit; else the cluster's cpuRequest, if that is not 100m and the guest has no dedicated CPUs
//   - CPU topology, where none is set: one core and thread, as many sockets as the CPU limit, else the CPU request, rounded
//     up, else one
//   - pull policy of container disks: Always for the tag latest or none, else IfNotPresent. The colon of a registry's port
//     counts as a tag's, as in KubeVirt.
//   - Pod network with an interface, where there are neither networks nor interfaces and autoattachPodInterface is not
//     false: the cluster's defaultNetworkInterface, else bridge
//   - a disk for every volume that neither a disk nor a filesystem uses
//   - UEFI without secure boot on arm64, where no firmware is chosen; that changes no Pod, but what the guest is converted to
//   - CPU model: host-passthrough on arm64, else the cluster's cpuModel, else host-model
//   - annotation kubevirt.io/pci-topology-version: v3 for the machines q35 and virt of amd64 and arm64
//   - annotation alpha.kubevirt.io/EmulatorThreadCompleteToEvenParity, if the KubeVirt object has it, feature gate AlignCPUs
//     is on and the guest isolates its emulator thread
//   - annotation kubevirt.io/qgs-socket-path for TDX guests, if the cluster attests them
//   - status.runtimeUser: 107, unless feature gate Root is on
//
// A guest that has a phase has passed the webhooks already and is copied as it is. A guest that the webhooks would refuse,
// because the cluster's default interface may not be used, is an *Error.
func Default(vmi *v1.VirtualMachineInstance, kubevirt *v1.KubeVirt) (*v1.VirtualMachineInstance, error) {
	d := &defaulting{vmi: vmi.DeepCopy(), kubevirt: kubevirt.DeepCopy()}
	if vmi.Status.Phase != v1.VmPhaseUnset {
		return d.vmi, nil
	}
	if d.kubevirt == nil {
		d.kubevirt = &v1.KubeVirt{}
	}
	d.spec, d.cluster, d.config = &d.vmi.Spec, &d.kubevirt.Spec.Configuration, template.ConfigFrom(d.kubevirt, "")
	d.architecture()
	d.machine()
	d.cpuRequest()
	d.topology()
	d.pullPolicies()
	if err := d.network(); err != nil {
		return nil, err
	}
	d.disks()
	d.bootloader()
	d.cpuModel()
	d.annotations()
	if !d.config.GateEnabled("Root") {
		d.vmi.Status.RuntimeUser = runtimeUser
	}
	return d.vmi, nil
}

func (d *defaulting) architecture() {
	configured := ""
	if a := d.cluster.ArchitectureConfiguration; a != nil {
		configured = a.DefaultArchitecture
	}
	d.spec.Architecture = cmp.Or(d.spec.Architecture, configured, d.kubevirt.Status.DefaultArchitecture, "amd64")
}

func (d *defaulting) bootloader() {
	if d.spec.Architecture != "arm64" {
		return
	}
	if d.spec.Domain.Firmware == nil {
		d.spec.Domain.Firmware = &v1.Firmware{}
	}
	if d.spec.Domain.Firmware.Bootloader == nil {
		secure := false
		d.spec.Domain.Firmware.Bootloader = &v1.Bootloader{EFI: &v1.EFI{SecureBoot: &secure}}
	}
}

func (d *defaulting) machine() {
	byArchitecture := map[string]string{"arm64": "virt", "s390x": "s390-ccw-virtio"}
	machine := cmp.Or(d.cluster.MachineType, d.machineOfArchitecture(), byArchitecture[d.spec.Architecture], "q35")
	if d.spec.Domain.Machine == nil {
		d.spec.Domain.Machine = &v1.Machine{}
	}
	d.spec.Domain.Machine.Type = cmp.Or(d.spec.Domain.Machine.Type, machine)
}

// machineOfArchitecture is what the cluster configures for the guest's architecture; amd64 speaks for those unknown.
func (d *defaulting) machineOfArchitecture() string {
	a := d.cluster.ArchitectureConfiguration
	if a == nil {
		return ""
	}
	of := a.Amd64
	switch d.spec.Architecture {
	case "arm64":
		of = a.Arm64
	case "s390x":
		of = a.S390x
	}
	if of == nil {
		return ""
	}
	return of.MachineType
}

func (d *defaulting) cpuRequest() {
	r := &d.spec.Domain.Resources
	request := func(q resource.Quantity) {
		if r.Requests == nil {
			r.Requests = corev1.ResourceList{}
		}
		r.Requests[corev1.ResourceCPU] = q.DeepCopy()
	}
	if limit := r.Limits.Cpu(); !limit.IsZero() && r.Requests.Cpu().IsZero() {
		request(*limit)
	}
	_, asked := r.Requests[corev1.ResourceCPU]
	dedicated := d.spec.Domain.CPU != nil && d.spec.Domain.CPU.DedicatedCPUPlacement
	if q := d.cluster.CPURequest; q != nil && q.Cmp(resource.MustParse(defaultCPU)) != 0 && !asked && !dedicated {
		request(*q)
	}
}

func (d *defaulting) topology() {
	if d.spec.Domain.CPU == nil {
		d.spec.Domain.CPU = &v1.CPU{}
	}
	cpu, r := d.spec.Domain.CPU, &d.spec.Domain.Resources
	if cpu.Cores != 0 || cpu.Sockets != 0 || cpu.Threads != 0 {
		return
	}
	sockets := int64(1)
	for _, q := range []*resource.Quantity{r.Limits.Cpu(), r.Requests.Cpu()} {
		if q.Sign() > 0 {
			sockets = q.Value()
			break
		}
	}
	cpu.Cores, cpu.Threads, cpu.Sockets = 1, 1, uint32(min(sockets, math.MaxUint32))
}

func (d *defaulting) pullPolicies() {
	for i := range d.spec.Volumes {
		c := d.spec.Volumes[i].ContainerDisk
		if c == nil || c.ImagePullPolicy != "" {
			continue
		}
		c.ImagePullPolicy = corev1.PullIfNotPresent
		if strings.HasSuffix(c.Image, ":latest") || !strings.ContainsAny(c.Image, ":@") {
			c.ImagePullPolicy = corev1.PullAlways
		}
	}
}

func (d *defaulting) network() error {
	devices := &d.spec.Domain.Devices
	if auto := devices.AutoattachPodInterface; auto != nil && !*auto || len(d.spec.Networks)+len(devices.Interfaces) > 0 {
		return nil
	}
	configured, bridges := "", true
	if n := d.cluster.NetworkConfiguration; n != nil {
		configured = n.NetworkInterface
		bridges = n.PermitBridgeInterfaceOnPodNetwork == nil || *n.PermitBridgeInterfaceOnPodNetwork
	}
	const field = "spec.configuration.network."
	switch v1.NetworkInterfaceType(cmp.Or(configured, string(v1.BridgeInterface))) {
	case v1.MasqueradeInterface:
		devices.Interfaces = []v1.Interface{*v1.DefaultMasqueradeNetworkInterface()}
	case v1.BridgeInterface:
		if !bridges {
			return d.refuse(field+"permitBridgeInterfaceOnPodNetwork", "is false, but bridge is the default interface of the cluster")
		}
		devices.Interfaces = []v1.Interface{*v1.DefaultBridgeNetworkInterface()}
	default:
		return d.refuse(field+"defaultNetworkInterface", fmt.Sprintf("%q is neither bridge nor masquerade", configured))
	}
	d.spec.Networks = []v1.Network{*v1.DefaultPodNetwork()}
	return nil
}

func (d *defaulting) refuse(field, reason string) error {
	return &Error{
		Object: objectName("KubeVirt", d.kubevirt.Namespace, d.kubevirt.Name), Field: field, Reason: reason,
		Remedy: "make masquerade the defaultNetworkInterface, or give the guest a network and an interface", Err: template.ErrInvalid,
	}
}

func (d *defaulting) disks() {
	devices := &d.spec.Domain.Devices
	for i := range d.spec.Volumes {
		name := d.spec.Volumes[i].Name
		used := slices.ContainsFunc(devices.Disks, func(disk v1.Disk) bool { return disk.Name == name }) ||
			slices.ContainsFunc(devices.Filesystems, func(fs v1.Filesystem) bool { return fs.Name == name })
		if !used {
			devices.Disks = append(devices.Disks, v1.Disk{Name: name})
		}
	}
}

func (d *defaulting) cpuModel() {
	fixed := ""
	if d.spec.Architecture == "arm64" {
		fixed = v1.CPUModeHostPassthrough
	}
	d.spec.Domain.CPU.Model = cmp.Or(d.spec.Domain.CPU.Model, fixed, d.cluster.CPUModel, v1.DefaultCPUModel)
}

func (d *defaulting) annotations() {
	set := func(key, value string) {
		if d.vmi.Annotations == nil {
			d.vmi.Annotations = map[string]string{}
		}
		d.vmi.Annotations[key] = value
	}
	machine := d.spec.Domain.Machine.Type
	express := strings.Contains(machine, "q35") || strings.HasPrefix(machine, "virt")
	_, placed := d.vmi.Annotations[v1.PciTopologyVersionAnnotation]
	if express && slices.Contains([]string{"amd64", "arm64"}, d.spec.Architecture) && !placed {
		set(v1.PciTopologyVersionAnnotation, v1.PciTopologyVersionV3)
	}
	_, parity := d.kubevirt.Annotations[v1.EmulatorThreadCompleteToEvenParity]
	if parity && d.spec.Domain.CPU.IsolateEmulatorThread && d.config.GateEnabled("AlignCPUs") {
		set(v1.EmulatorThreadCompleteToEvenParity, "")
	}
	if s := d.spec.Domain.LaunchSecurity; s != nil && s.TDX != nil {
		if socket := d.qgsSocket(); socket != "" {
			set(v1.QGSSocketPathAnnotation, socket)
		}
	}
}

// qgsSocket is where the cluster's TDX guests ask for quotes; empty if they are not attested.
func (d *defaulting) qgsSocket() string {
	c := d.cluster.ConfidentialCompute
	if c == nil || c.TDX == nil || c.TDX.Attestation == nil {
		return ""
	}
	if socket := c.TDX.Attestation.QgsSocketPath; socket != nil {
		return *socket
	}
	return defaultQGSSocket
}
