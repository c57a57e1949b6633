// SPDX-License-Identifier: Apache-2.0

package domain

import "strings"

// Architectures as libvirt spells them.
const (
	archX86   = "x86_64"
	archARM   = "aarch64"
	archS390X = "s390x"
)

// traits is what differs between architectures.
type traits struct {
	name         string // in specs: amd64
	machine      string // default machine
	rootPorts    bool   // devices sit behind PCIe root ports
	hotplugCPU   bool   // CPUs may be added later
	smbios       bool   // system information reaches the guest
	romOff       bool   // network cards may have a boot ROM
	vmport       bool   // has a VMware port to switch off
	mpx          bool   // named CPU models need mpx taken away
	diskBus      string // where the spec names none
	video        string // default video model
	plainVirtio  bool   // one virtio model only
	serialTarget string // what the first serial port is
}

var architectures = map[string]traits{
	archX86: {
		name: "amd64", machine: "q35", rootPorts: true, hotplugCPU: true, smbios: true,
		romOff: true, vmport: true, mpx: true, diskBus: "sata", video: "vga", serialTarget: "isa-serial",
	},
	archARM: {
		name: "arm64", machine: "virt", rootPorts: true, smbios: true, romOff: true,
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
