// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"cmp"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/internal/xmlspec"
)

// traits are the properties in which architectures differ.
type traits struct {
	name          string // spelling in specs: amd64
	machine       string // default machine type
	rootPorts     bool   // devices are placed behind PCIe root ports
	hotplugCPU    bool   // CPUs can be hotplugged
	hotplugMemory bool   // memory can be hotplugged
	numa          bool   // has NUMA nodes, and memory that others can map by its file descriptor
	uefi          bool   // can boot from UEFI
	acpi          bool   // has ACPI unless the spec switches it off
	smbios        bool   // system information reaches the guest
	romOff        bool   // network cards may have a boot ROM
	vmport        bool   // has a VMware port, which is disabled
	mpx           bool   // named CPU models need mpx disabled
	hintDedicated bool   // set the KVM hint for dedicated CPUs
	diskBus       string // default disk bus
	video         string // default video model
	plainVirtio   bool   // one virtio model only
	serialTarget  string // target type of the first serial port
}

var architectures = map[string]traits{
	xmlspec.ArchX86: {
		name: "amd64", machine: "q35", rootPorts: true, hotplugCPU: true, hotplugMemory: true, numa: true, uefi: true,
		acpi: true, smbios: true, romOff: true, vmport: true, mpx: true, hintDedicated: true,
		diskBus: "sata", video: "vga", serialTarget: "isa-serial",
	},
	xmlspec.ArchARM: {
		name: "arm64", machine: "virt", rootPorts: true, hotplugMemory: true, numa: true, uefi: true,
		acpi: true, smbios: true, romOff: true,
		diskBus: xmlspec.BusVirtio, video: xmlspec.BusVirtio, serialTarget: "system-serial",
	},
	xmlspec.ArchS390X: {
		name: "s390x", machine: "s390-ccw-virtio", hotplugCPU: true,
		diskBus: xmlspec.BusVirtio, video: xmlspec.BusVirtio, plainVirtio: true, serialTarget: "sclp-serial",
	},
}

// chooseArchitecture sets the architecture of the domain: that of the spec, else that of the node.
// A guest of another architecture than its node is emulated in software, provided that the node has
// an emulator configured for it. Unlike KubeVirt's converter, which falls back to amd64, it rejects
// an unknown architecture.
func (c *Conversion) chooseArchitecture() error {
	node := cmp.Or(c.Facts.Arch, xmlspec.ArchX86)
	t, ok := architectures[node]
	if !ok {
		return &Error{
			Object: "node", Reason: fmt.Sprintf("architecture %q is not supported", node),
			Remedy: "use a node of x86_64, aarch64 or s390x", Err: domain.ErrUnsupported,
		}
	}
	c.Facts.Arch, c.arch = node, t
	want := c.VMI.Spec.Architecture
	if want == "" || want == t.name {
		return nil
	}
	const field = "spec.architecture"
	guest := xmlspec.Arch(want)
	if guest == "" {
		return c.Invalid(field, fmt.Sprintf("Unsupported value: %q", want), "use amd64, arm64 or s390x")
	}
	emulator := c.Facts.Emulators[guest]
	if emulator == "" {
		return c.Invalid(field, fmt.Sprintf("%s is not supported on a node of architecture %s without an emulator for it", want, c.arch.name),
			"schedule it to a node of its architecture")
	}
	if !filepath.IsAbs(emulator) {
		return &Error{Object: "node", Reason: fmt.Sprintf("path of the emulator for %s is not absolute: %q", guest, emulator),
			Remedy: "configure an absolute path", Err: domain.ErrInvalid}
	}
	c.Facts.Arch, c.arch, c.foreign = guest, architectures[guest], true
	c.Facts.Emulation, c.Facts.Emulator = true, emulator
	return nil
}

// crossArchitecture reports whether the guest has another architecture than its node and is
// therefore emulated in software.
func (c *Conversion) crossArchitecture() bool { return c.foreign }

// virtioModel returns the model of virtio devices.
func (c *Conversion) virtioModel() string {
	switch {
	case c.arch.plainVirtio:
		return "virtio"
	case specIsTrue(c.VMI.Spec.Domain.Devices.UseVirtioTransitional):
		return "virtio-transitional"
	}
	return "virtio-non-transitional"
}

// placedOnPorts reports whether the machine type has PCIe root ports.
func (c *Conversion) placedOnPorts() bool {
	m := c.Domain.OS.Type.Machine
	return c.arch.rootPorts && (strings.Contains(m, "q35") || strings.HasPrefix(m, "virt"))
}
