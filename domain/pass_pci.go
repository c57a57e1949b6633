// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"fmt"
	"strings"

	v1 "kubevirt.io/api/core/v1"
)

// pciAddresses gives every device an address that it keeps: each PCI Express
// device slot 0 behind a root port of its own, in the order of seatsOf, with ports
// left free for what comes later; devices of conventional PCI a slot of a bridge;
// on s390x each device a channel.
//
// A device that Facts.Layout knows stays where it is, and a new one takes what is
// free, so that a change of the spec moves nothing in a running guest, and never
// asks for more ports than it was started with. An address the spec names is used
// as it is; whoever names one has to know that behind port 3 there is only
// 0000:03:00.0, and that there are only as many ports as the guest has. Bus 0 of a
// guest with ports can be used as well, but for what the chipset needs.
//
// KubeVirt defines the domain and reads back what libvirt has chosen; computing it
// makes the result known before there is a domain, the same on every node. What a new
// guest gets is what libvirt chooses, but for the bridge of conventional devices and
// controllers that libvirt adds by itself.
func pciAddresses(c *Conversion) error {
	s := &seating{Conversion: c, seats: seatsOf(c.Domain.Devices), taken: map[Place]string{}}
	switch {
	case c.arch.plainVirtio:
		s.lay = &subchannels{seating: s}
	case c.placedOnPorts() && c.VMI.Annotations[v1.PlacePCIDevicesOnRootComplex] == "true":
		s.lay = rootSlots{seating: s, first: 2, model: pcieRoot}
	case c.placedOnPorts():
		s.lay = &ports{seating: s}
	case c.Facts.Arch == archX86 && strings.HasPrefix(c.Domain.OS.Type.Machine, "pc"):
		s.lay = rootSlots{seating: s, first: 3}
	default:
		return nil
	}
	for _, step := range []func() error{s.given, s.known, s.lay.start, s.fresh, s.lay.finish} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// memoryDevice is how the aliases of memory devices begin, which come and go with
// the guest's size and not with a device of the spec.
const memoryDevice = AliasPrefix + "virtio-mem-"

// seating is the placing of all devices of one domain.
type seating struct {
	*Conversion
	seats []seat
	// taken holds the key of the device at each place.
	taken map[Place]string
	// wanted are the keys of all seats.
	wanted map[string]bool
	lay    plan
}

// plan is how devices are placed on one kind of machine.
type plan interface {
	// start prepares, once it is known which devices have a place already.
	start() error
	// place finds one for a device that has none. false: there is none free.
	place(s *seat) (Place, bool)
	// finish adds what the places need.
	finish() error
	// suits tells whether the device needs a place of this kind.
	suits(s *seat) bool
}

// running tells whether the guest lives already.
func (g *seating) running() bool { return len(g.Facts.Layout.Places) > 0 }

// given takes note of the addresses that the spec names.
func (g *seating) given() error {
	for i := range g.seats {
		s := &g.seats[i]
		p, ok := placeOf(*s.address)
		if !ok {
			continue
		}
		if p == (Place{}) || !p.CCW && p.Domain == 0 && p.Bus == 0 && p.Slot == slotChipset && g.placedOnPorts() {
			return g.Invalid(s.field+".pciAddress", "the chipset has this address", "use another one, or leave it out")
		}
		if err := g.claim(p, s); err != nil {
			return err
		}
	}
	return nil
}

func (g *seating) claim(p Place, s *seat) error {
	if other := g.taken[p]; other != "" {
		return g.Invalid(s.field+".pciAddress", fmt.Sprintf("is the address of %s as well", other), "use another one, or leave it out")
	}
	g.taken[p] = s.key
	return nil
}

// known leaves devices where they are. Places of others in the running guest are
// not free, whoever they belong to.
func (g *seating) known() error {
	g.wanted = make(map[string]bool, len(g.seats))
	for i := range g.seats {
		s := &g.seats[i]
		g.wanted[s.key] = true
		p, ok := g.Facts.Layout.Places[s.key]
		other := g.taken[p]
		switch {
		case !ok || other == s.key:
		case *s.address != nil || !g.lay.suits(s) || p.CCW != g.arch.plainVirtio:
			if other == "" { // it stays there until the guest restarts
				g.taken[p] = s.key
			}
		case other != "":
			return g.Invalid(s.field, "is in the running guest where the spec now puts "+other, "restart the guest, or use another pciAddress")
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

func (g *seating) set(s *seat, p Place) {
	g.taken[p] = s.key
	*s.address = p.address()
}

// fresh places the devices that have no place yet. In a running guest one that
// could be plugged and finds no place is an error; what needs a restart anyway is
// left without an address.
func (g *seating) fresh() error {
	for i := range g.seats {
		s := &g.seats[i]
		if *s.address != nil || !g.lay.suits(s) {
			continue
		}
		p, ok := g.lay.place(s)
		switch {
		case ok:
			g.set(s, p)
		case !g.running():
			return g.Invalid(s.field, "there is no PCI address left for it", "remove a device")
		case s.plugged:
			return g.Invalid(s.field, fmt.Sprintf("none of the %d PCIe ports the guest was started with is free for it", g.Facts.Layout.Ports()),
				"remove another device from the running guest, or restart it")
		}
	}
	return nil
}

// departed returns the place of a device that was plugged and is not wanted any
// more: it is unplugged before others are plugged.
func (g *seating) departed(fits func(Place) bool) (Place, bool) {
	best, found := Place{}, false
	for p, key := range g.taken {
		if !strings.HasPrefix(key, AliasPrefix) || strings.HasPrefix(key, memoryDevice) || !fits(p) || g.wanted[key] {
			continue
		}
		if !found || before(p, best) {
			best, found = p, true
		}
	}
	return best, found
}

// before orders places, so that a choice among several does not depend on chance.
func before(a, b Place) bool {
	for _, x := range [][2]uint{{a.Domain, b.Domain}, {a.Bus, b.Bus}, {a.Slot, b.Slot}, {a.Function, b.Function}, {a.Device, b.Device}} {
		if x[0] != x[1] {
			return x[0] < x[1]
		}
	}
	return false
}

// rootSlots places every device on bus 0, from slot first on: what the annotation
// kubevirt.io/placePCIDevicesOnRootComplex asks for, and the only way on machine
// pc. model is of the controller to add for the bus; empty if there is no need.
type rootSlots struct {
	*seating
	first uint
	model string
}

func (r rootSlots) start() error { return nil }

func (r rootSlots) suits(s *seat) bool { return s.plug != noPlug }

func (r rootSlots) place(s *seat) (Place, bool) {
	express := r.model != ""
	if express && r.running() && s.plugged {
		return Place{}, false // the root complex cannot take devices while the guest runs
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
	return r.departed(func(p Place) bool { return !express && p.Bus == 0 })
}

// kept is the slot that the machine keeps for the device: pc has another one for
// the video card than q35, and arm64 has none.
func (r rootSlots) kept(s *seat) (Place, bool) {
	p := Place{Slot: s.slot}
	if r.model == "" {
		p.Slot = 2
	}
	ok := s.slot == slotVideo || s.slot == slotAudio && r.model != ""
	return p, ok && r.Facts.Arch == archX86 && r.taken[p] == ""
}

func (r rootSlots) finish() error {
	if r.model != "" {
		r.addBuses([]Bus{{Model: r.model}})
	}
	return nil
}

// subchannels places the devices of s390x. Numbers are left free behind those of
// network cards, as ports are elsewhere.
type subchannels struct {
	*seating
	first uint // for what is no card
}

func (c *subchannels) start() error {
	if !c.running() {
		c.first = c.cards() + c.cardReserve()
	}
	return nil
}

func (c *subchannels) suits(s *seat) bool { return s.virtio }

func (c *subchannels) place(s *seat) (Place, bool) {
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
