// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"fmt"
	"strings"

	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain/internal/xmlspec"
)

// pciAddresses gives every device a stable address: each PCI Express device slot 0 behind a root
// port of its own, in the order of pciSlotsOf, with ports left free for hotplugging; conventional
// PCI devices a slot of a bridge; on s390x each device a channel.
//
// A device in Facts.Layout keeps its address, and a new one takes a free place, so that a change of
// the spec moves nothing in a running guest and never needs more ports than it was started with.
// Addresses in the spec are used unchanged: their author has to know that behind port 3 there is
// only 0000:03:00.0, and that there are only as many ports as the guest has. Bus 0 of a guest with
// ports can be used as well, except for the slots of the chipset.
//
// KubeVirt defines the domain and reads back libvirt's choice; computing the addresses makes them
// known before there is a domain, and the same on every node. A new guest gets the addresses that
// libvirt would choose, except for the bridge of conventional devices and controllers that libvirt
// adds itself.
func pciAddresses(c *Conversion) error {
	s := &pciPlacement{Conversion: c, slots: pciSlotsOf(c.Domain.Devices), taken: map[Place]string{}}
	switch {
	case c.arch.plainVirtio:
		s.placer = &subchannels{pciPlacement: s}
	case c.placedOnPorts() && c.VMI.Annotations[v1.PlacePCIDevicesOnRootComplex] == "true":
		s.placer = rootSlots{pciPlacement: s, first: 2, model: pcieRoot}
	case c.placedOnPorts():
		s.placer = &ports{pciPlacement: s}
	case c.Facts.Arch == xmlspec.ArchX86 && strings.HasPrefix(c.Domain.OS.Type.Machine, "pc"):
		s.placer = rootSlots{pciPlacement: s, first: 3}
	default:
		return nil
	}
	for _, step := range []func() error{s.claimSpecified, s.keepExisting, s.placer.start, s.placeNew, s.placer.finish} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// pciPlacement places all devices of one domain.
type pciPlacement struct {
	*Conversion
	slots []pciSlot
	// taken maps each occupied place to the key of its device.
	taken map[Place]string
	// wanted holds the keys of all devices.
	wanted map[string]bool
	placer placer
}

// placer places the devices of one kind of machine.
type placer interface {
	// start prepares the placement; the devices that have a place are known by then.
	start() error
	// place returns a place for a device that has none; false if there is none left.
	place(s *pciSlot) (Place, bool)
	// finish adds the controllers that the places need.
	finish() error
	// suits reports whether the machine places devices of this kind.
	suits(s *pciSlot) bool
}

// running reports whether the guest runs already.
func (g *pciPlacement) running() bool { return len(g.Facts.Layout.Places) > 0 }

// claimSpecified reserves the addresses of the spec.
func (g *pciPlacement) claimSpecified() error {
	for i := range g.slots {
		s := &g.slots[i]
		p, ok := PlaceOf(*s.address)
		if !ok {
			continue
		}
		if p == (Place{}) || !p.CCW && p.Domain == 0 && p.Bus == 0 && p.Slot == slotChipset && g.placedOnPorts() {
			return g.Invalid(s.field+".pciAddress", "Forbidden: the address belongs to the chipset", "use another address, or remove it")
		}
		if err := g.claim(p, s); err != nil {
			return err
		}
	}
	return nil
}

func (g *pciPlacement) claim(p Place, s *pciSlot) error {
	if other := g.taken[p]; other != "" {
		return g.Invalid(s.field+".pciAddress", fmt.Sprintf("Duplicate value: is also the address of %s", other), "use another address, or remove it")
	}
	g.taken[p] = s.key
	return nil
}

// keepExisting keeps devices in their places. Places of other devices in the running guest are not free,
// even if those devices are not wanted.
func (g *pciPlacement) keepExisting() error {
	g.wanted = make(map[string]bool, len(g.slots))
	for i := range g.slots {
		s := &g.slots[i]
		g.wanted[s.key] = true
		p, ok := g.Facts.Layout.Places[s.key]
		other := g.taken[p]
		switch {
		case !ok || other == s.key:
		case *s.address != nil || !g.placer.suits(s) || p.CCW != g.arch.plainVirtio:
			if other == "" { // it keeps the place until the guest restarts
				g.taken[p] = s.key
			}
		case other != "":
			return g.Invalid(s.field, "has the address in the running domain that the spec now gives to "+other, "restart the VMI, or use another pciAddress")
		default:
			g.set(s, p)
		}
	}
	for key, p := range g.Facts.Layout.Places {
		if !g.wanted[key] && g.taken[p] == "" {
			g.taken[p] = key
		}
	}
	return nil
}

func (g *pciPlacement) set(s *pciSlot, p Place) {
	g.taken[p] = s.key
	*s.address = p.address()
}

// placeNew places the devices that have no place yet. In a running guest, a hotpluggable device
// without a place is an error; one that needs a restart anyway gets no address.
func (g *pciPlacement) placeNew() error {
	for i := range g.slots {
		s := &g.slots[i]
		if *s.address != nil || !g.placer.suits(s) {
			continue
		}
		p, ok := g.placer.place(s)
		switch {
		case ok:
			g.set(s, p)
		case !g.running():
			return g.Invalid(s.field, "no free PCI address", "remove a device")
		case s.hotpluggable:
			return g.Invalid(s.field, fmt.Sprintf("none of the %d PCIe ports of the running domain is free", g.Facts.Layout.ports()),
				"unplug another device, or restart the VMI")
		}
	}
	return nil
}

// unwantedPlace returns the place of a hotplugged device that is no longer wanted: devices are unplugged
// before others are hotplugged.
func (g *pciPlacement) unwantedPlace(fits func(Place) bool) (Place, bool) {
	best, found := Place{}, false
	for p, key := range g.taken {
		if !strings.HasPrefix(key, xmlspec.AliasPrefix) || strings.HasPrefix(key, xmlspec.PrefixMemory) || !fits(p) || g.wanted[key] {
			continue
		}
		if !found || lessPlace(p, best) {
			best, found = p, true
		}
	}
	return best, found
}

// lessPlace is the order of places, for a deterministic choice among several.
func lessPlace(a, b Place) bool {
	for _, x := range [][2]uint{{a.Domain, b.Domain}, {a.Bus, b.Bus}, {a.Slot, b.Slot}, {a.Function, b.Function}, {a.Device, b.Device}} {
		if x[0] != x[1] {
			return x[0] < x[1]
		}
	}
	return false
}

// rootSlots places every device on bus 0, starting at slot first: as requested by the annotation
// kubevirt.io/placePCIDevicesOnRootComplex, and always on machine type pc. model is that of the
// controller to add for the bus; empty if none is needed.
type rootSlots struct {
	*pciPlacement
	first uint
	model string
}

func (r rootSlots) start() error { return nil }

func (r rootSlots) suits(s *pciSlot) bool { return s.kind != noSlot }

func (r rootSlots) place(s *pciSlot) (Place, bool) {
	express := r.model != ""
	if express && r.running() && s.hotpluggable {
		return Place{}, false // the root complex does not support hotplug
	}
	if p, ok := r.kept(s); ok {
		return p, true
	}
	for slot := r.first; slot < 0x20; slot++ {
		p := Place{Slot: slot}
		if r.taken[p] == "" && !(express && (slot == slotAudio || slot == slotChipset)) {
			return p, true
		}
	}
	return r.unwantedPlace(func(p Place) bool { return !express && p.Bus == 0 })
}

// kept returns the slot that the machine reserves for the device: that of the video device differs
// between pc and q35, and arm64 has none.
func (r rootSlots) kept(s *pciSlot) (Place, bool) {
	p := Place{Slot: s.slot}
	if r.model == "" {
		p.Slot = 2
	}
	ok := s.slot == slotVideo || s.slot == slotAudio && r.model != ""
	return p, ok && r.Facts.Arch == xmlspec.ArchX86 && r.taken[p] == ""
}

func (r rootSlots) finish() error {
	if r.model != "" {
		r.addBuses([]Bus{{Model: r.model}})
	}
	return nil
}

// subchannels places the devices of s390x. Numbers behind those of interfaces are left free, like
// ports on other architectures.
type subchannels struct {
	*pciPlacement
	first uint // for devices other than interfaces
}

func (c *subchannels) start() error {
	if !c.running() {
		c.first = c.cards() + c.cardReserve()
	}
	return nil
}

func (c *subchannels) suits(s *pciSlot) bool { return s.virtio }

func (c *subchannels) place(s *pciSlot) (Place, bool) {
	n := c.first
	if s.card {
		n = 0
	}
	for ; n <= 0xffff; n++ {
		if p := (Place{CCW: true, Device: n}); c.taken[p] == "" {
			return p, true
		}
	}
	return Place{}, false
}

func (c *subchannels) finish() error { return nil }
