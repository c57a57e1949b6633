// SPDX-License-Identifier: Apache-2.0

package admit

import (
	"cmp"

	v1 "kubevirt.io/api/core/v1"
)

// The architectures of guests.
const (
	amd64 = "amd64"
	arm64 = "arm64"
	s390x = "s390x"
)

// traits are what KubeVirt chooses by architecture.
type traits struct {
	machine  string   // of guests that name none
	machines []string // that may be asked for, as patterns
	diskBus  v1.DiskBus
	cpuModel string // before that of the cluster
	noUSB    bool
	noACPI   bool
}

var architectures = map[string]traits{
	amd64: {machine: "q35", machines: []string{"q35*", "pc-q35*"}, diskBus: v1.DiskBusSATA},
	arm64: {machine: "virt", machines: []string{"virt*"}, diskBus: v1.DiskBusVirtio, cpuModel: v1.CPUModeHostPassthrough},
	s390x: {machine: "s390-ccw-virtio", machines: []string{"s390-ccw-virtio*"}, diskBus: v1.DiskBusVirtio, noUSB: true, noACPI: true},
}

// architecture of a guest, chosen or by default.
func (c *Config) architecture(spec *v1.VirtualMachineInstanceSpec) string {
	return cmp.Or(spec.Architecture, c.Architecture, amd64)
}

// traitsOf an architecture; amd64 speaks for those unknown.
func traitsOf(arch string) traits {
	if t, known := architectures[arch]; known {
		return t
	}
	return architectures[amd64]
}

// machine is the machine type of guests of an architecture that name none.
func (c *Config) machine(arch string) string {
	if _, known := architectures[arch]; !known {
		arch = amd64
	}
	return cmp.Or(c.MachineType, c.MachineTypes[arch], traitsOf(arch).machine)
}

// podBinding is the binding of guests without networks; false if the cluster has chosen one that cannot be used.
func (c *Config) podBinding() (v1.NetworkInterfaceType, bool) {
	switch b := cmp.Or(c.NetworkInterface, v1.BridgeInterface); b {
	case v1.MasqueradeInterface:
		return b, true
	case v1.BridgeInterface:
		return b, !c.ForbidPodBridge
	default:
		return b, false
	}
}

// wantsPodNetwork tells whether a guest gets the network of its Pod without having asked for it.
func wantsPodNetwork(spec *v1.VirtualMachineInstanceSpec) bool {
	auto := spec.Domain.Devices.AutoattachPodInterface
	return len(spec.Networks)+len(spec.Domain.Devices.Interfaces) == 0 && (auto == nil || *auto)
}
