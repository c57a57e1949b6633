// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"cmp"
	"fmt"
	"slices"

	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain/internal/xmlspec"
)

// Layout holds the addresses of the devices of a running guest, so that a conversion while it runs
// leaves each device where it is. Values can be printed and compared. With the zero value, the
// conversion is free to place all devices, which is only valid for a guest that does not run.
type Layout struct {
	// Places maps each device to its address. The key is the alias of a device of the spec
	// (ua-root), else its kind and its index among that kind, from 0 (balloon, vsock, rng0, video0,
	// input0, sound0, filesystem0, hostdev0, watchdog0, panic0, shmem0, memory0, crypto0, iommu0,
	// interface0, disk0, serial0, controller/scsi/0, controller/pci/9).
	Places map[string]Place `json:"places"`
	// Buses are the PCI buses that the guest was started with, sorted by index. None can be added
	// while it runs. Empty for machine types without PCI controllers.
	Buses []Bus `json:"buses"`
	// Targets maps each volume, by name, to the target name of its disk: vda.
	Targets map[string]string `json:"targets"`
}

// Bus is a PCI bus of a guest (libvirt: devices/controller@type=pci).
type Bus struct {
	// Index is the number of the bus in addresses; 0 is the root.
	Index uint `json:"index"`
	// Model is libvirt's name for the controller: pcie-root, pcie-root-port,
	// pcie-to-pci-bridge, pcie-expander-bus and so on.
	Model string `json:"model"`
	// Place is the address of the controller itself; the zero value for the root.
	Place Place `json:"place"`
	// Fixed says that devices on the bus cannot be hotplugged or unplugged (target@hotplug=off).
	Fixed bool `json:"fixed"`
	// NUMANode is the guest NUMA node of the bus. Nil except for expander buses.
	NUMANode *uint `json:"numaNode"`
	// Number is the number of the bus on the PCI host bridge (target@busNr). Nil except for
	// expander buses.
	Number *uint `json:"number"`
}

// Place is the address of a device: of PCI, or of an s390x channel (CCW).
type Place struct {
	// CCW says that Device is a CCW device number and that the other fields are 0.
	CCW bool `json:"ccw"`
	// Domain, Bus, Slot and Function are a PCI address.
	Domain   uint `json:"domain"`
	Bus      uint `json:"bus"`
	Slot     uint `json:"slot"`
	Function uint `json:"function"`
	// Device is the CCW device number.
	Device uint `json:"device"`
}

// ports returns the number of PCIe root ports, free ones included.
func (l Layout) ports() int {
	n := 0
	for _, b := range l.Buses {
		if b.Model == pcieRootPort {
			n++
		}
	}
	return n
}

// LayoutOf returns the layout of a running domain, from its live XML. The layout of nil is the zero
// value.
func LayoutOf(live *libvirtxml.Domain) Layout {
	l := Layout{}
	if live == nil || live.Devices == nil {
		return l
	}
	for _, s := range pciSlotsOf(live.Devices) {
		if p, ok := PlaceOf(*s.address); ok {
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

// layoutTargets returns the target names of disks by volume, nil if there are none.
func layoutTargets(d *libvirtxml.DomainDeviceList) map[string]string {
	var out map[string]string
	for i := range d.Disks {
		if disk := &d.Disks[i]; xmlspec.NameOf(disk.Alias) != "" && disk.Target != nil {
			if out == nil {
				out = map[string]string{}
			}
			out[xmlspec.NameOf(disk.Alias)] = disk.Target.Dev
		}
	}
	return out
}

func busOf(c *libvirtxml.DomainController) Bus {
	b := Bus{Index: *c.Index, Model: c.Model}
	b.Place, _ = PlaceOf(c.Address)
	if c.PCI != nil && c.PCI.Target != nil {
		t := c.PCI.Target
		b.Fixed = t.Hotplug == "off"
		b.NUMANode, b.Number = clone(t.NUMANode), clone(t.BusNr)
	}
	return b
}

// controller is the inverse of busOf. several says that the slot holds more than this controller.
func (b Bus) controller(several bool) libvirtxml.DomainController {
	c := libvirtxml.DomainController{Type: "pci", Index: new(b.Index), Model: b.Model, PCI: &libvirtxml.DomainControllerPCI{}}
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

// PlaceOf returns the place of a PCI or CCW address; false if the address is of another kind.
func PlaceOf(a *libvirtxml.DomainAddress) (Place, bool) {
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

// address is the inverse of [PlaceOf]. All CCW devices of a guest are in its virtual channel
// subsystem 0xfe, set 0.
func (p Place) address() *libvirtxml.DomainAddress {
	if p.CCW {
		return &libvirtxml.DomainAddress{CCW: &libvirtxml.DomainAddressCCW{CSSID: new(uint(0xfe)), SSID: new(uint(0)), DevNo: new(p.Device)}}
	}
	// A single allocation for all pointers: a guest has dozens of addresses.
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
	return new(*p)
}

func deref(p *uint) uint {
	if p == nil {
		return 0
	}
	return *p
}

// String returns the address in its usual notation.
func (p Place) String() string {
	if p.CCW {
		return fmt.Sprintf("fe.0.%04x", p.Device)
	}
	return fmt.Sprintf("%04x:%02x:%02x.%x", p.Domain, p.Bus, p.Slot, p.Function)
}
