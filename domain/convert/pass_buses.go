// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"slices"

	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain/internal/xmlspec"
)

// Architectures in the spelling of specs.
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
	// libvirtxml parses a controller without options into an empty struct.
	c.addController(xmlspec.BusUSB, 0, usb).USB = &libvirtxml.DomainControllerUSB{}
	d := c.Domain.Devices
	scsi := slices.ContainsFunc(d.Disks, func(d libvirtxml.DomainDisk) bool { return d.Target.Bus == xmlspec.BusSCSI })
	if scsi || !c.VMI.Spec.Domain.Devices.DisableHotplug {
		model := c.virtioModel()
		if c.arch.plainVirtio {
			model = "virtio-scsi"
		}
		c.addController(xmlspec.BusSCSI, 0, model).Driver = scsiDriver(c)
	}
	// Without a serial console the domain has no controller, as in KubeVirt; libvirt adds one for
	// the channel of the guest agent.
	if !specIsFalse(c.VMI.Spec.Domain.Devices.AutoattachSerialConsole) {
		serial := c.addController("virtio-serial", 0, c.virtioModel())
		serial.Driver, serial.VirtIOSerial = controllerDriver(c), &libvirtxml.DomainControllerVirtIOSerial{}
	}
}

// controllerDriver returns the driver options of a virtio controller, nil for the defaults.
func controllerDriver(c *Conversion) *libvirtxml.DomainControllerDriver {
	if !c.encrypted() {
		return nil
	}
	return &libvirtxml.DomainControllerDriver{IOMMU: "on"}
}

// scsiDriver gives the controller an I/O thread and one queue per CPU if one of its disks requests
// a dedicated thread. The controller has one thread for all its disks: the last one, after those of
// the virtio disks.
func scsiDriver(c *Conversion) *libvirtxml.DomainControllerDriver {
	out := controllerDriver(c)
	if c.Domain.IOThreads == 0 || !dedicatedSCSI(c) {
		return out
	}
	if out == nil {
		out = &libvirtxml.DomainControllerDriver{}
	}
	out.IOThread = c.Domain.IOThreads
	out.Queues = new(uint(xmlspec.TopologyOf(&c.VMI.Spec.Domain).Count()))
	return out
}

// dedicatedSCSI reports whether a disk on the SCSI bus requests a dedicated thread. Hotplugged
// disks do not count: they cannot change the controller any more.
func dedicatedSCSI(c *Conversion) bool {
	return slices.ContainsFunc(c.Domain.Devices.Disks, func(d libvirtxml.DomainDisk) bool {
		name := xmlspec.NameOf(d.Alias)
		return d.Target.Bus == xmlspec.BusSCSI && ioThreadPass{c}.ownThread(name) && !ioThreadPass{c}.hotpluggable(name)
	})
}

// addController adds a controller and returns it; the pointer is valid until the next call.
func (c *Conversion) addController(kind string, index uint, model string) *libvirtxml.DomainController {
	l := &c.Domain.Devices.Controllers
	*l = append(*l, libvirtxml.DomainController{Type: kind, Index: new(index), Model: model})
	return &(*l)[len(*l)-1]
}

// hasUSB reports whether the architecture supports USB.
func (c *Conversion) hasUSB() bool { return c.arch.name != specS390X }

// needsUSB reports whether the domain has a USB controller: always on arm64, elsewhere if it has a
// USB device.
func needsUSB(c *Conversion) bool {
	switch {
	case !c.hasUSB():
		return false
	case c.arch.name == specARM:
		return true
	}
	d := c.Domain.Devices
	return len(d.RedirDevs) > 0 ||
		slices.ContainsFunc(d.Disks, func(d libvirtxml.DomainDisk) bool { return d.Target.Bus == xmlspec.BusUSB }) ||
		slices.ContainsFunc(d.Inputs, func(i libvirtxml.DomainInput) bool { return i.Bus == xmlspec.BusUSB }) ||
		slices.ContainsFunc(d.Hostdevs, func(h libvirtxml.DomainHostdev) bool { return h.SubsysUSB != nil })
}
