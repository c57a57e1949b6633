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
	buses(c)
	if c.placedOnPorts() {
		rootPorts(c)
	}
	return nil
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
	return n + impliedSerial(d) + len(d.Interfaces) + len(d.RNGs) + len(d.Watchdogs)
}

// impliedSerial counts the controller that libvirt adds for channels if there is none.
func impliedSerial(d *libvirtxml.DomainDeviceList) int {
	serial := func(c libvirtxml.DomainController) bool { return c.Type == "virtio-serial" }
	if len(d.Channels) == 0 || slices.ContainsFunc(d.Controllers, serial) {
		return 0
	}
	return 1
}
