// SPDX-License-Identifier: Apache-2.0

package offline

import (
	"fmt"

	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/template/render"
	"github.com/virtloom/virtloom/vmi/admit"
)

// Default returns a copy of a VMI with the defaults of KubeVirt's webhooks on creation, as far as they change a Pod: those
// of [admit.DefaultShape]. A nil KubeVirt object means KubeVirt's own defaults. In this order:
//
//   - spec.architecture: defaultArchitecture of the KubeVirt object's spec or status, else amd64
//   - spec.domain.machine.type: the cluster's machineType, in general or of the architecture; else q35, virt on arm64,
//     s390-ccw-virtio on s390x
//   - CPU request: the CPU limit; else the cluster's cpuRequest, unless that is 100m or the VMI has dedicated CPUs
//   - CPU topology, where none is set: one core and thread, as many sockets as the CPU limit, else the CPU request, rounded
//     up, else one
//   - guest memory, where it is not set: the memory request, else the limit, else one huge page
//   - headroom for hotplugged CPUs and memory, see the package comment of vmi/admit; that changes the domain, not
//     the Pods
//   - pull policy of container disks: Always for the tag latest or none, else IfNotPresent. The colon of a registry's port
//     counts as that of a tag, as in KubeVirt
//   - Pod network with an interface, where there are neither networks nor interfaces and autoattachPodInterface is not
//     false: the cluster's defaultNetworkInterface, else bridge
//   - a disk for every volume that neither a disk nor a filesystem uses, except for memory dumps and folders of the launcher,
//     which are no disks
//   - UEFI without secure boot on arm64, where no firmware is set; that changes the domain, not the Pods
//   - CPU model: host-passthrough on arm64, else the cluster's cpuModel, else host-model
//   - annotation kubevirt.io/pci-topology-version: v3 for the machines q35 and virt of amd64 and arm64
//   - annotation alpha.kubevirt.io/EmulatorThreadCompleteToEvenParity, if the KubeVirt object has it, feature gate AlignCPUs
//     is on and the VMI isolates its emulator thread
//   - annotation kubevirt.io/qgs-socket-path for TDX VMIs
//   - status.runtimeUser: 107, unless feature gate Root is on
//
// A VMI with a phase has passed the webhooks already and is copied without changes. A VMI that the webhooks would reject
// because the cluster's default interface is not permitted is an *Error.
func Default(vmi *v1.VirtualMachineInstance, kubevirt *v1.KubeVirt) (*v1.VirtualMachineInstance, error) {
	out := vmi.DeepCopy()
	if out.Status.Phase != v1.VmPhaseUnset {
		return out, nil
	}
	devices := &out.Spec.Domain.Devices
	auto := devices.AutoattachPodInterface
	wanted := len(out.Spec.Networks)+len(devices.Interfaces) == 0 && (auto == nil || *auto)
	config := admit.ConfigFrom(kubevirt.DeepCopy())
	admit.DefaultShape(out, config)
	if wanted && len(devices.Interfaces) == 0 {
		return nil, unusable(kubevirt, config)
	}
	return out, nil
}

// unusable returns why the cluster's default interface cannot be used.
func unusable(kubevirt *v1.KubeVirt, c admit.Config) error {
	field, reason := "defaultNetworkInterface", fmt.Sprintf("%q must be bridge or masquerade", c.NetworkInterface)
	if c.ForbidPodBridge && (c.NetworkInterface == "" || c.NetworkInterface == v1.BridgeInterface) {
		field, reason = "permitBridgeInterfaceOnPodNetwork", "is false, but the cluster's default interface is bridge"
	}
	return &Error{
		Object: objectName("KubeVirt", kubevirt.Namespace, kubevirt.Name), Field: "spec.configuration.network." + field, Reason: reason,
		Remedy: "set defaultNetworkInterface to masquerade, or add a network and an interface to the VMI", Err: render.ErrInvalid,
	}
}
