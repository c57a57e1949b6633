// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"slices"
	"strings"

	"libvirt.org/go/libvirtxml"
)

// Root ports left free for devices that come later: as many as fill up to
// total, and at least minFree; more for guests with more memory.
const (
	portsTotal, portsMinFree           = 8, 3
	portsTotalLarge, portsMinFreeLarge = 16, 6
	largeMemory                        = 2 << 30
	maxPorts                           = 31

	pcieRootPort = "pcie-root-port"
)

// controllers adds the buses: USB, SCSI, serial, and PCIe root ports for every
// device with a reserve. Each has an explicit index, pcie-root's 0 included:
// libvirt refuses a domain that numbers only some of them.
func controllers(c *Conversion) error {
	usb := "none"
	if needsUSB(c) {
		usb = "qemu-xhci"
	}
	c.addController("usb", 0, usb)
	scsi := slices.ContainsFunc(c.Domain.Devices.Disks, func(d libvirtxml.DomainDisk) bool { return d.Target.Bus == busSCSI })
	if scsi || !c.VMI.Spec.Domain.Devices.DisableHotplug {
		model := c.virtioModel()
		if c.arch.plainVirtio {
			model = "virtio-scsi"
		}
		c.addController("scsi", 0, model)
	}
	if len(c.Domain.Devices.Channels) > 0 {
		model := ""
		if !c.arch.plainVirtio {
			model = c.virtioModel()
		}
		c.addController("virtio-serial", 0, model)
	}
	if c.placedOnPorts() {
		rootPorts(c)
	}
	return nil
}

func (c *Conversion) addController(kind string, index uint, model string) {
	c.Domain.Devices.Controllers = append(c.Domain.Devices.Controllers,
		libvirtxml.DomainController{Type: kind, Index: ptr(index), Model: model})
}

func needsUSB(c *Conversion) bool {
	switch c.Facts.Arch {
	case archARM:
		return true
	case archS390X:
		return false
	}
	d := c.Domain.Devices
	return slices.ContainsFunc(d.Disks, func(d libvirtxml.DomainDisk) bool { return d.Target.Bus == busUSB }) ||
		slices.ContainsFunc(d.Inputs, func(i libvirtxml.DomainInput) bool { return i.Bus == busUSB })
}

// rootPorts adds one root port per device and the free ones.
func rootPorts(c *Conversion) {
	root := libvirtxml.DomainController{Type: "pci", Index: ptr(uint(0)), Model: "pcie-root"}
	if strings.EqualFold(c.VMI.Annotations["kubevirt.io/disablePCIHole64"], "true") && c.Facts.Arch == archX86 {
		root.PCI = &libvirtxml.DomainControllerPCI{Hole64: &libvirtxml.DomainControllerPCIHole64{Size: 0, Unit: "KiB"}}
	}
	c.Domain.Devices.Controllers = append(c.Domain.Devices.Controllers, root)
	used := portDevices(c)
	total, minFree := portsTotal, portsMinFree
	if c.Domain.Memory.Value > largeMemory {
		total, minFree = portsTotalLarge, portsMinFreeLarge
	}
	ports := used
	if !c.VMI.Spec.Domain.Devices.DisableHotplug {
		ports = used + max(total-used, minFree)
	}
	last := uint(min(ports, maxPorts))
	for i := range last {
		c.addController("pci", i+1, pcieRootPort)
	}
	if len(c.Domain.Devices.Watchdogs) > 0 {
		// The watchdog is a conventional PCI device.
		c.addController("pci", last+1, "pcie-to-pci-bridge")
	}
}

// portDevices counts the devices that take a root port each.
func portDevices(c *Conversion) int {
	d, n := c.Domain.Devices, 0
	for _, disk := range d.Disks {
		if disk.Target.Bus == busVirtio {
			n++
		}
	}
	for _, ctl := range d.Controllers {
		if ctl.Type != "pci" && ctl.Model != "none" {
			n++
		}
	}
	for _, in := range d.Inputs {
		if in.Bus == busVirtio {
			n++
		}
	}
	for _, v := range d.Videos {
		if v.Model.Type == busVirtio {
			n++
		}
	}
	if d.MemBalloon != nil && d.MemBalloon.Model != "none" {
		n++
	}
	return n + len(d.Interfaces) + len(d.RNGs) + len(d.Watchdogs)
}
