// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"cmp"
	"slices"

	"libvirt.org/go/libvirtxml"
)

// Layout says where the devices of a running guest sit, so that a conversion that
// is made while it lives leaves each where the guest has found it. It can be
// printed and compared. The zero value knows no device: the conversion is free to
// place all of them, which it must not do for a guest that runs.
type Layout struct {
	// Places holds the address of each device by its key: the alias of devices
	// that come from the spec (ua-root), else what the device is and which of its
	// kind, from 0 (balloon, vsock, rng0, video0, input0, sound0, filesystem0,
	// hostdev0, watchdog0, panic0, shmem0, memory0, crypto0, iommu0, interface0,
	// disk0, serial0, controller/scsi/0, controller/pci/9).
	Places map[string]Place `json:"places"`
	// Buses are the PCI buses the guest was started with, in the order of their
	// numbers; there cannot be more while it lives. Empty for machines without
	// PCI controllers of their own.
	Buses []Bus `json:"buses"`
	// Targets holds the target name of each disk by the name of its volume: vda.
	Targets map[string]string `json:"targets"`
}

// Bus is a PCI bus of a guest, provided by a controller (libvirt:
// devices/controller@type=pci).
type Bus struct {
	// Index is the bus's number in addresses; 0 is the root.
	Index uint `json:"index"`
	// Model is libvirt's name for the controller: pcie-root, pcie-root-port,
	// pcie-to-pci-bridge, pcie-expander-bus and so on.
	Model string `json:"model"`
	// Place is where the controller itself sits; the zero value for the root.
	Place Place `json:"place"`
	// Fixed says that devices on it cannot come or go while the guest runs
	// (target@hotplug=off).
	Fixed bool `json:"fixed"`
	// NUMANode is the guest's NUMA node the bus belongs to; nil but for expander
	// buses.
	NUMANode *uint `json:"numaNode"`
	// Number is the bus's number on the PCI host bridge (target@busNr); nil but for
	// expander buses.
	Number *uint `json:"number"`
}

// Place is the address of a device: of PCI, or of an s390x channel.
type Place struct {
	// CCW says that Device is a channel's device number, and all else 0.
	CCW bool `json:"ccw"`
	// Domain, Bus, Slot and Function are a PCI address.
	Domain   uint `json:"domain"`
	Bus      uint `json:"bus"`
	Slot     uint `json:"slot"`
	Function uint `json:"function"`
	// Device is the number of a channel's device.
	Device uint `json:"device"`
}

// Ports returns the number of PCIe root ports, free ones included.
func (l Layout) Ports() int {
	n := 0
	for _, b := range l.Buses {
		if b.Model == pcieRootPort {
			n++
		}
	}
	return n
}

// LayoutOf reads the layout of a running domain from its live XML. nil has the
// layout of nothing.
func LayoutOf(live *libvirtxml.Domain) Layout {
	l := Layout{}
	if live == nil || live.Devices == nil {
		return l
	}
	for _, s := range seatsOf(live.Devices) {
		if p, ok := placeOf(*s.address); ok {
			if l.Places == nil {
				l.Places = map[string]Place{}
			}
			l.Places[s.key] = p
		}
	}
	for i := range live.Devices.Controllers {
		if c := &live.Devices.Controllers[i]; c.Type == "pci" && c.Index != nil {
			l.Buses = append(l.Buses, busOf(c))
		}
	}
	l.Targets = layoutTargets(live.Devices)
	slices.SortStableFunc(l.Buses, func(a, b Bus) int { return cmp.Compare(a.Index, b.Index) })
	return l
}

// layoutTargets lists the target names of disks; nil for none.
func layoutTargets(d *libvirtxml.DomainDeviceList) map[string]string {
	var out map[string]string
	for i := range d.Disks {
		if disk := &d.Disks[i]; nameOf(disk.Alias) != "" && disk.Target != nil {
			if out == nil {
				out = map[string]string{}
			}
			out[nameOf(disk.Alias)] = disk.Target.Dev
		}
	}
	return out
}

func busOf(c *libvirtxml.DomainController) Bus {
	b := Bus{Index: *c.Index, Model: c.Model}
	b.Place, _ = placeOf(c.Address)
	if c.PCI != nil && c.PCI.Target != nil {
		t := c.PCI.Target
		b.Fixed = t.Hotplug == "off"
		b.NUMANode, b.Number = clone(t.NUMANode), clone(t.BusNr)
	}
	return b
}

// controller is the reverse of busOf. several says that the slot holds more than
// this controller.
func (b Bus) controller(several bool) libvirtxml.DomainController {
	c := libvirtxml.DomainController{Type: "pci", Index: ptr(b.Index), Model: b.Model, PCI: &libvirtxml.DomainControllerPCI{}}
	if b.Fixed || b.NUMANode != nil || b.Number != nil {
		t := &libvirtxml.DomainControllerPCITarget{NUMANode: clone(b.NUMANode), BusNr: clone(b.Number)}
		if b.Fixed {
			t.Hotplug = "off"
		}
		c.PCI.Target = t
	}
	if b.Place != (Place{}) {
		c.Address = b.Place.address()
		if several && b.Place.Function == 0 {
			c.Address.PCI.MultiFunction = "on"
		}
	}
	return c
}

// placeOf reads an address of PCI or of a channel. false: it is of another kind.
func placeOf(a *libvirtxml.DomainAddress) (Place, bool) {
	switch {
	case a == nil:
		return Place{}, false
	case a.PCI != nil:
		p := a.PCI
		return Place{Domain: deref(p.Domain), Bus: deref(p.Bus), Slot: deref(p.Slot), Function: deref(p.Function)}, true
	case a.CCW != nil:
		return Place{CCW: true, Device: deref(a.CCW.DevNo)}, true
	}
	return Place{}, false
}

// address is the reverse of placeOf. All devices of a guest are in its virtual
// channel subsystem 0xfe, set 0.
func (p Place) address() *libvirtxml.DomainAddress {
	if p.CCW {
		return &libvirtxml.DomainAddress{CCW: &libvirtxml.DomainAddressCCW{CSSID: ptr(uint(0xfe)), SSID: ptr(uint(0)), DevNo: ptr(p.Device)}}
	}
	// One piece of memory for all of it: a guest has dozens.
	a := &struct {
		address libvirtxml.DomainAddress
		pci     libvirtxml.DomainAddressPCI
		place   Place
	}{place: p}
	a.pci = libvirtxml.DomainAddressPCI{Domain: &a.place.Domain, Bus: &a.place.Bus, Slot: &a.place.Slot, Function: &a.place.Function}
	a.address.PCI = &a.pci
	return &a.address
}

func clone[T any](p *T) *T {
	if p == nil {
		return nil
	}
	return ptr(*p)
}

func deref(p *uint) uint {
	if p == nil {
		return 0
	}
	return *p
}
