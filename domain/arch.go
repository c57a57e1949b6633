// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"cmp"
	"fmt"
	"path/filepath"
	"strings"
)

// Architectures as libvirt spells them.
const (
	archX86   = "x86_64"
	archARM   = "aarch64"
	archS390X = "s390x"
)

// traits is what differs between architectures.
type traits struct {
	name          string // in specs: amd64
	machine       string // default machine
	rootPorts     bool   // devices sit behind PCIe root ports
	hotplugCPU    bool   // CPUs may be added later
	hotplugMemory bool   // memory may be added later
	numa          bool   // has NUMA nodes, and memory that others can map by its file descriptor
	uefi          bool   // can boot by UEFI
	acpi          bool   // has ACPI unless the spec switches it off
	smbios        bool   // system information reaches the guest
	romOff        bool   // network cards may have a boot ROM
	vmport        bool   // has a VMware port to switch off
	mpx           bool   // named CPU models need mpx taken away
	hintDedicated bool   // guests profit from knowing that their CPUs are theirs alone
	diskBus       string // where the spec names none
	video         string // default video model
	plainVirtio   bool   // one virtio model only
	serialTarget  string // what the first serial port is
}

var architectures = map[string]traits{
	archX86: {
		name: "amd64", machine: "q35", rootPorts: true, hotplugCPU: true, hotplugMemory: true, numa: true, uefi: true,
		acpi: true, smbios: true, romOff: true, vmport: true, mpx: true, hintDedicated: true,
		diskBus: "sata", video: "vga", serialTarget: "isa-serial",
	},
	archARM: {
		name: "arm64", machine: "virt", rootPorts: true, hotplugMemory: true, numa: true, uefi: true,
		acpi: true, smbios: true, romOff: true,
		diskBus: busVirtio, video: busVirtio, serialTarget: "system-serial",
	},
	archS390X: {
		name: "s390x", machine: "s390-ccw-virtio", hotplugCPU: true,
		diskBus: busVirtio, video: busVirtio, plainVirtio: true, serialTarget: "sclp-serial",
	},
}

// Names of buses that are compared in more than one place.
const (
	busVirtio = "virtio"
	busSCSI   = "scsi"
	busSATA   = "sata"
	busUSB    = "usb"
)

// chooseArchitecture sets the guest's architecture: the one its spec names, else
// the node's. A guest of another one than the node's is emulated in software, if
// the node has been given an emulator for it. Unlike in KubeVirt's converter, an
// architecture that nobody knows is an error and not taken for amd64.
func (c *Conversion) chooseArchitecture() error {
	node := cmp.Or(c.Facts.Arch, archX86)
	t, ok := architectures[node]
	if !ok {
		return &Error{
			Object: "node", Reason: fmt.Sprintf("architecture %q is not supported", node),
			Remedy: "use a node of x86_64, aarch64 or s390x", Err: ErrUnsupported,
		}
	}
	c.Facts.Arch, c.arch = node, t
	want := c.VMI.Spec.Architecture
	if want == "" || want == t.name {
		return nil
	}
	const field = "spec.architecture"
	for guest, t := range architectures {
		if t.name != want {
			continue
		}
		emulator := c.Facts.Emulators[guest]
		if emulator == "" {
			return c.Invalid(field, fmt.Sprintf("%s does not run on a node of %s, which has no emulator for it", want, c.arch.name),
				"let it be scheduled to a node of its architecture")
		}
		if !filepath.IsAbs(emulator) {
			return &Error{Object: "node", Reason: fmt.Sprintf("no absolute path of an emulator of %s but %q", guest, emulator),
				Remedy: "configure one", Err: ErrInvalid}
		}
		c.Facts.Arch, c.arch, c.foreign = guest, t, true
		c.Facts.Emulation, c.Facts.Emulator = true, emulator
		return nil
	}
	return c.Invalid(field, fmt.Sprintf("%q is no architecture", want), "use amd64, arm64 or s390x")
}

// crossArchitecture tells whether the guest is of another architecture than its
// node and therefore emulated in software.
func (c *Conversion) crossArchitecture() bool { return c.foreign }

// virtioModel returns the model of virtio devices.
func (c *Conversion) virtioModel() string {
	switch {
	case c.arch.plainVirtio:
		return "virtio"
	case isTrue(c.VMI.Spec.Domain.Devices.UseVirtioTransitional):
		return "virtio-transitional"
	}
	return "virtio-non-transitional"
}

// placedOnPorts tells whether the machine has PCIe root ports.
func (c *Conversion) placedOnPorts() bool {
	m := c.Domain.OS.Type.Machine
	return c.arch.rootPorts && (strings.Contains(m, "q35") || strings.HasPrefix(m, "virt"))
}
