// SPDX-License-Identifier: Apache-2.0

package offline

import (
	"fmt"

	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/template"
	"github.com/virtloom/virtloom/vmi/admit"
)

// Default returns a copy of a guest with the defaults that KubeVirt's webhooks give it when it is created, as far as they
// change a Pod: those of [admit.DefaultShape]. A nil KubeVirt object stands for KubeVirt's own defaults. In this order:
//
//   - spec.architecture: defaultArchitecture of the KubeVirt object's spec or status, else amd64
//   - spec.domain.machine.type: the cluster's machineType, in general or of the architecture; else q35, virt on arm64,
//     s390-ccw-virtio on s390x
//   - CPU request: the CPU limit; else the cluster's cpuRequest, if that is not 100m and the guest has no dedicated CPUs
//   - CPU topology, where none is set: one core and thread, as many sockets as the CPU limit, else the CPU request, rounded
//     up, else one
//   - memory of the guest, where it is not set: the memory request, else the limit, else one huge page
//   - room for CPUs and memory that are plugged while the guest runs, as the package comment of vmi/admit has it; that changes
//     no Pod, but what the guest is converted to
//   - pull policy of container disks: Always for the tag latest or none, else IfNotPresent. The colon of a registry's port
//     counts as a tag's, as in KubeVirt.
//   - Pod network with an interface, where there are neither networks nor interfaces and autoattachPodInterface is not
//     false: the cluster's defaultNetworkInterface, else bridge
//   - a disk for every volume that neither a disk nor a filesystem uses; not for memory dumps and folders of the launcher,
//     which are no disks
//   - UEFI without secure boot on arm64, where no firmware is chosen; that changes no Pod, but what the guest is converted to
//   - CPU model: host-passthrough on arm64, else the cluster's cpuModel, else host-model
//   - annotation kubevirt.io/pci-topology-version: v3 for the machines q35 and virt of amd64 and arm64
//   - annotation alpha.kubevirt.io/EmulatorThreadCompleteToEvenParity, if the KubeVirt object has it, feature gate AlignCPUs
//     is on and the guest isolates its emulator thread
//   - annotation kubevirt.io/qgs-socket-path for TDX guests
//   - status.runtimeUser: 107, unless feature gate Root is on
//
// A guest that has a phase has passed the webhooks already and is copied as it is. A guest that the webhooks would refuse,
// because the cluster's default interface may not be used, is an *Error.
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

// unusable tells why the cluster's default interface cannot be used.
func unusable(kubevirt *v1.KubeVirt, c admit.Config) error {
	field, reason := "defaultNetworkInterface", fmt.Sprintf("%q is neither bridge nor masquerade", c.NetworkInterface)
	if c.ForbidPodBridge && (c.NetworkInterface == "" || c.NetworkInterface == v1.BridgeInterface) {
		field, reason = "permitBridgeInterfaceOnPodNetwork", "is false, but bridge is the default interface of the cluster"
	}
	return &Error{
		Object: objectName("KubeVirt", kubevirt.Namespace, kubevirt.Name), Field: "spec.configuration.network." + field, Reason: reason,
		Remedy: "make masquerade the defaultNetworkInterface, or give the guest a network and an interface", Err: template.ErrInvalid,
	}
}
