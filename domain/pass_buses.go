// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"slices"

	"libvirt.org/go/libvirtxml"
)

// Architectures as specs spell them.
const (
	specX86   = "amd64"
	specARM   = "arm64"
	specS390X = "s390x"
)

// buses adds the controllers of USB, SCSI and serial devices.
func buses(c *Conversion) {
	usb := "none"
	if needsUSB(c) {
		usb = "qemu-xhci"
	}
	// Empty structs are what libvirtxml reads from a controller without options.
	c.addController(busUSB, 0, usb).USB = &libvirtxml.DomainControllerUSB{}
	d := c.Domain.Devices
	scsi := slices.ContainsFunc(d.Disks, func(d libvirtxml.DomainDisk) bool { return d.Target.Bus == busSCSI })
	if scsi || !c.VMI.Spec.Domain.Devices.DisableHotplug {
		model := c.virtioModel()
		if c.arch.plainVirtio {
			model = "virtio-scsi"
		}
		c.addController(busSCSI, 0, model).Driver = scsiDriver(c)
	}
	// Without a serial console there is no controller in the domain, as with
	// KubeVirt; libvirt adds one for the guest agent's channel.
	if !isFalse(c.VMI.Spec.Domain.Devices.AutoattachSerialConsole) {
		serial := c.addController("virtio-serial", 0, c.virtioModel())
		serial.Driver, serial.VirtIOSerial = controllerDriver(c), &libvirtxml.DomainControllerVirtIOSerial{}
	}
}

// controllerDriver returns what the driver of a virtio controller has beside the
// defaults; nil if there is nothing.
func controllerDriver(c *Conversion) *libvirtxml.DomainControllerDriver {
	if !c.encrypted() {
		return nil
	}
	return &libvirtxml.DomainControllerDriver{IOMMU: "on"}
}

// scsiDriver gives the controller a thread and a queue per CPU if one of its disks
// asks for a thread of its own. The threads of SCSI disks come after those that
// virtio disks have, and a controller has one: the last.
func scsiDriver(c *Conversion) *libvirtxml.DomainControllerDriver {
	out := controllerDriver(c)
	if c.Domain.IOThreads == 0 || !dedicatedSCSI(c) {
		return out
	}
	if out == nil {
		out = &libvirtxml.DomainControllerDriver{}
	}
	out.IOThread = c.Domain.IOThreads
	out.Queues = ptr(uint(topologyOf(&c.VMI.Spec.Domain).count()))
	return out
}

// dedicatedSCSI tells whether a disk on the SCSI bus has a thread of its own. One
// that comes later cannot change the controller any more.
func dedicatedSCSI(c *Conversion) bool {
	return slices.ContainsFunc(c.Domain.Devices.Disks, func(d libvirtxml.DomainDisk) bool {
		name := nameOf(d.Alias)
		return d.Target.Bus == busSCSI && c.ownThread(name) && !c.hotpluggable(name)
	})
}

// addController adds a controller and returns it; the pointer holds until the next
// one is added.
func (c *Conversion) addController(kind string, index uint, model string) *libvirtxml.DomainController {
	l := &c.Domain.Devices.Controllers
	*l = append(*l, libvirtxml.DomainController{Type: kind, Index: ptr(index), Model: model})
	return &(*l)[len(*l)-1]
}

// hasUSB tells whether guests of this architecture may have USB.
func (c *Conversion) hasUSB() bool { return c.arch.name != specS390X }

// needsUSB tells whether the guest has a USB controller: always on arm64, else if
// a device sits on it.
func needsUSB(c *Conversion) bool {
	switch {
	case !c.hasUSB():
		return false
	case c.arch.name == specARM:
		return true
	}
	d := c.Domain.Devices
	return len(d.RedirDevs) > 0 ||
		slices.ContainsFunc(d.Disks, func(d libvirtxml.DomainDisk) bool { return d.Target.Bus == busUSB }) ||
		slices.ContainsFunc(d.Inputs, func(i libvirtxml.DomainInput) bool { return i.Bus == busUSB }) ||
		slices.ContainsFunc(d.Hostdevs, func(h libvirtxml.DomainHostdev) bool { return h.SubsysUSB != nil })
}
