// SPDX-License-Identifier: Apache-2.0

package domain

import "libvirt.org/go/libvirtxml"

// Layout says where the devices of a running guest sit, so that a conversion that
// is made while it lives leaves each where the guest has found it. It can be
// printed and compared. The zero value knows no device.
type Layout struct {
	// Places holds the address of each device by its key: the alias of devices
	// that come from the spec (ua-root), else what the device is (balloon, rng0,
	// video0, controller/scsi/0).
	Places map[string]Place
	// Ports is the number of PCIe root ports the guest was started with; they
	// cannot become more while it lives.
	Ports int
	// Targets holds the target name of each disk by the name of its volume: vda.
	Targets map[string]string
}

// Place is the address of a device: of PCI, or of an s390x channel.
type Place struct {
	// CCW says that Device is a channel's device number, and all else 0.
	CCW bool
	// Domain, Bus, Slot and Function are a PCI address.
	Domain, Bus, Slot, Function uint
	// Device is the number of a channel's device.
	Device uint
}

// LayoutOf reads the layout of a running domain from its live XML. nil has the
// layout of nothing.
func LayoutOf(live *libvirtxml.Domain) Layout {
	l := Layout{}
	if live == nil || live.Devices == nil {
		return l
	}
	for _, c := range live.Devices.Controllers {
		if c.Type == "pci" && c.Model == pcieRootPort {
			l.Ports++
		}
	}
	for i := range live.Devices.Disks {
		if d := &live.Devices.Disks[i]; nameOf(d.Alias) != "" && d.Target != nil {
			if l.Targets == nil {
				l.Targets = map[string]string{}
			}
			l.Targets[nameOf(d.Alias)] = d.Target.Dev
		}
	}
	return l
}
