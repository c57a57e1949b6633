// SPDX-License-Identifier: Apache-2.0

package admit

import (
	"cmp"

	v1 "kubevirt.io/api/core/v1"
)

// Supported architectures.
const (
	amd64 = "amd64"
	arm64 = "arm64"
	s390x = "s390x"
)

// traits are KubeVirt's defaults for an architecture.
type traits struct {
	machine  string   // of VMIs without one
	machines []string // supported types, as patterns
	diskBus  v1.DiskBus
	cpuModel string // takes precedence over that of the cluster
	noUSB    bool
	noACPI   bool
}

var architectures = map[string]traits{
	amd64: {machine: "q35", machines: []string{"q35*", "pc-q35*"}, diskBus: v1.DiskBusSATA},
	arm64: {machine: "virt", machines: []string{"virt*"}, diskBus: v1.DiskBusVirtio, cpuModel: v1.CPUModeHostPassthrough},
	s390x: {machine: "s390-ccw-virtio", machines: []string{"s390-ccw-virtio*"}, diskBus: v1.DiskBusVirtio, noUSB: true, noACPI: true},
}

// architecture returns the VMI's architecture, or the default.
func (c *Config) architecture(spec *v1.VirtualMachineInstanceSpec) string {
	return cmp.Or(spec.Architecture, c.Architecture, amd64)
}

// traitsOf returns the traits of an architecture; unknown ones have those of amd64.
func traitsOf(arch string) traits {
	if t, known := architectures[arch]; known {
		return t
	}
	return architectures[amd64]
}

// machine returns the default machine type of an architecture.
func (c *Config) machine(arch string) string {
	if _, known := architectures[arch]; !known {
		arch = amd64
	}
	return cmp.Or(c.MachineType, c.MachineTypes[arch], traitsOf(arch).machine)
}

// podBinding returns the binding of VMIs without networks; false if the cluster's default cannot be used.
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

// wantsPodNetwork reports whether a VMI gets the Pod network by default.
func wantsPodNetwork(spec *v1.VirtualMachineInstanceSpec) bool {
	auto := spec.Domain.Devices.AutoattachPodInterface
	return len(spec.Networks)+len(spec.Domain.Devices.Interfaces) == 0 && (auto == nil || *auto)
}
