// SPDX-License-Identifier: Apache-2.0

package vmidefaults

import (
	"cmp"

	v1 "kubevirt.io/api/core/v1"
)

// Supported architectures.
const (
	AMD64 = "amd64"
	ARM64 = "arm64"
	S390X = "s390x"
)

// Traits are KubeVirt's defaults for an architecture.
type Traits struct {
	Machine  string   // of VMIs without one
	Machines []string // supported types, as patterns
	DiskBus  v1.DiskBus
	CPUModel string // takes precedence over that of the cluster
	NoUSB    bool
	NoACPI   bool
}

var architectures = map[string]Traits{
	AMD64: {Machine: "q35", Machines: []string{"q35*", "pc-q35*"}, DiskBus: v1.DiskBusSATA},
	ARM64: {Machine: "virt", Machines: []string{"virt*"}, DiskBus: v1.DiskBusVirtio, CPUModel: v1.CPUModeHostPassthrough},
	S390X: {Machine: "s390-ccw-virtio", Machines: []string{"s390-ccw-virtio*"}, DiskBus: v1.DiskBusVirtio, NoUSB: true, NoACPI: true},
}

// Supported reports whether an architecture is supported.
func Supported(arch string) bool {
	_, known := architectures[arch]
	return known
}

// TraitsOf returns the traits of an architecture; unknown ones have those of amd64.
func TraitsOf(arch string) Traits {
	if t, known := architectures[arch]; known {
		return t
	}
	return architectures[AMD64]
}

// Cluster is the part of a cluster's configuration that defaults depend on.
type Cluster struct {
	// Architecture of VMIs without one. Defaults to amd64.
	Architecture string
	// MachineType of VMIs without one, whatever their architecture. Defaults to MachineTypes.
	MachineType string
	// MachineTypes by architecture. Missing architectures default to KubeVirt's.
	MachineTypes map[string]string
	// NetworkInterface is the binding of VMIs without networks to the Pod network, bridge or masquerade. Defaults to bridge.
	NetworkInterface v1.NetworkInterfaceType
	// ForbidPodBridge rejects bridge bindings to the Pod network.
	ForbidPodBridge bool
}

// ArchitectureOf returns the VMI's architecture, or the default.
func (c *Cluster) ArchitectureOf(spec *v1.VirtualMachineInstanceSpec) string {
	return cmp.Or(spec.Architecture, c.Architecture, AMD64)
}

// MachineOf returns the default machine type of an architecture.
func (c *Cluster) MachineOf(arch string) string {
	if !Supported(arch) {
		arch = AMD64
	}
	return cmp.Or(c.MachineType, c.MachineTypes[arch], TraitsOf(arch).Machine)
}

// PodBinding returns the binding of VMIs without networks; false if the cluster's default cannot be used.
func (c *Cluster) PodBinding() (v1.NetworkInterfaceType, bool) {
	switch b := cmp.Or(c.NetworkInterface, v1.BridgeInterface); b {
	case v1.MasqueradeInterface:
		return b, true
	case v1.BridgeInterface:
		return b, !c.ForbidPodBridge
	default:
		return b, false
	}
}
