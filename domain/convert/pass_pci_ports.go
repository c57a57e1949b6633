// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain/internal/xmlspec"
)

// Free root ports for hotplugging (KubeVirt: PCI topology v3): enough for a total of portsTotal,
// and at least minFree; more for guests with more memory.
const (
	portsTotal, portsMinFree           = 8, 3
	portsTotalLarge, portsMinFreeLarge = 16, 6
	largeMemory                        = 2 << 30
	// cardPorts is the number of ports reserved for interfaces, right behind the existing ones and
	// including them.
	cardPorts = 4
	// maxPorts is the maximum number of ports including free ones.
	maxPorts = 31
)

// Models of PCI controllers.
const (
	pcieRoot     = "pcie-root"
	pcieRootPort = "pcie-root-port"
	pcieBridge   = "pcie-to-pci-bridge"
	pcieExpander = "pcie-expander-bus"
)

// ports places devices behind root ports.
type ports struct {
	*pciPlacement
	buses []Bus
	// next is the port for the next new device of a guest that does not run yet; last is the last
	// port.
	next, last uint
	// bridge is the bus of conventional devices, 0 if there is none.
	bridge uint
	// skipped says that the ports reserved for interfaces have been skipped.
	skipped bool
	// byNumber indexes the buses, and leading holds the ports with a controller behind them. Both
	// are computed on the first search for a port.
	byNumber map[uint]Bus
	leading  map[uint]bool
	// full is the number of leading buses without a free port: ports fill up in order.
	full int
	// aligned maps host devices, by key, to their place on their NUMA node.
	aligned map[string]Place
}

func (p *ports) suits(s *pciSlot) bool { return s.kind != noSlot }

// start determines the buses: those of the running guest, or those it needs.
func (p *ports) start() error {
	p.next = 1
	if p.running() {
		p.buses = append(p.buses, p.Facts.Layout.Buses...)
		for _, b := range p.buses {
			if strings.HasSuffix(b.Model, "pci-bridge") {
				p.bridge = b.Index
			}
		}
		return nil
	}
	p.fixedSlots()
	aligned, err := p.alignment()
	if err != nil {
		return err
	}
	used, old := p.count(aligned)
	p.last = used
	if !p.VMI.Spec.Domain.Devices.DisableHotplug {
		p.last = p.withReserve(used)
	}
	p.last = max(p.last, p.lastGiven())
	p.buses = append(p.buses, Bus{Model: pcieRoot})
	for i := uint(1); i <= p.last; i++ {
		p.buses = append(p.buses, Bus{Index: i, Model: pcieRootPort})
	}
	if old {
		p.bridge = p.last + 1
		p.buses = append(p.buses, Bus{Index: p.bridge, Model: pcieBridge})
	}
	return p.expand(aligned)
}

// count returns the number of root ports in use, and whether there are conventional PCI devices,
// which need a bridge behind a port.
func (p *ports) count(aligned map[string]*uint) (used uint, old bool) {
	for i := range p.slots {
		s := &p.slots[i]
		given, placed := PlaceOf(*s.address)
		switch {
		case placed && given.Bus > 0 && given.Bus <= maxPorts && given.Slot == 0:
			used++
		case *s.address != nil || aligned[s.key] != nil:
		case s.kind == conventional:
			old = true
		case s.kind == express:
			used++
		}
	}
	if old {
		used++
	}
	return used + p.impliedSerial(), old
}

// impliedSerial counts the controller that libvirt adds for channels if there is none, behind a
// port of its choice.
func (p *ports) impliedSerial() uint {
	d := p.Domain.Devices
	serial := func(c libvirtxml.DomainController) bool { return c.Type == "virtio-serial" }
	if len(d.Channels) == 0 || slices.ContainsFunc(d.Controllers, serial) {
		return 0
	}
	return 1
}

// withReserve returns the number of ports including free ones.
func (p *ports) withReserve(used uint) uint {
	total, minFree := uint(portsTotal), uint(portsMinFree)
	if p.Domain.Memory.Value > largeMemory {
		total, minFree = portsTotalLarge, portsMinFreeLarge
	}
	free := minFree
	if total > used+free {
		free = total - used
	}
	cards := p.cardReserve()
	free = max(free, cards) // includes those reserved for interfaces
	return max(used+cards, min(used+free, maxPorts))
}

// lastGiven returns the highest port with an address of the spec.
func (p *ports) lastGiven() uint {
	last := uint(0)
	for place := range p.taken {
		if place.Domain == 0 && place.Slot == 0 && place.Bus <= maxPorts {
			last = max(last, place.Bus)
		}
	}
	return last
}

// cards counts the interfaces without an address in the spec.
func (g *pciPlacement) cards() uint {
	n := uint(0)
	for i := range g.slots {
		if s := &g.slots[i]; s.card && *s.address == nil && g.placer.suits(s) {
			n++
		}
	}
	return n
}

// cardReserve is the number of places reserved for interfaces: KubeVirt's placeholders, or the
// number its annotation has fixed. A guest without interfaces has none.
func (g *pciPlacement) cardReserve() uint {
	interfaces := len(g.VMI.Spec.Domain.Devices.Interfaces)
	if g.VMI.Spec.Domain.Devices.DisableHotplug {
		return 0
	}
	if fixed, err := strconv.Atoi(g.VMI.Annotations[v1.PciInterfaceSlotCountAnnotation]); err == nil {
		return uint(min(max(fixed-interfaces, 0), maxPorts))
	}
	if interfaces == 0 {
		return 0
	}
	return uint(max(cardPorts-interfaces, 0))
}

// fixedSlots places the devices for which q35 reserves slots.
func (p *ports) fixedSlots() {
	for i := range p.slots {
		s := &p.slots[i]
		if place := (Place{Slot: s.slot}); s.slot != 0 && p.Facts.Arch == xmlspec.ArchX86 && *s.address == nil && p.taken[place] == "" {
			p.set(s, place)
		}
	}
}

func (p *ports) place(s *pciSlot) (Place, bool) {
	if place, ok := p.aligned[s.key]; ok {
		return place, true
	}
	if s.kind == conventional {
		return p.bridgeSlot()
	}
	if p.running() {
		return p.freePort(s)
	}
	if !s.early && !p.skipped {
		p.skipped = true
		p.next += p.cardReserve()
	}
	for ; p.next <= p.last; p.next++ {
		if place := (Place{Bus: p.next}); p.taken[place] == "" {
			p.next++
			return place, true
		}
	}
	return p.freePort(s) // ports below those of the spec
}

// freePort returns a root port without a device. A running guest cannot use ports without hotplug.
func (p *ports) freePort(s *pciSlot) (Place, bool) {
	p.noteBuses()
	usable := func(place Place) bool {
		b, there := p.byNumber[place.Bus]
		return there && place.Slot == 0 && place.Domain == 0 && b.Model == pcieRootPort && !(b.Fixed && s.hotpluggable)
	}
	for p.full < len(p.buses) && !p.empty(p.buses[p.full]) {
		p.full++
	}
	for _, b := range p.buses[p.full:] {
		if place := (Place{Bus: b.Index}); p.empty(b) && usable(place) {
			return place, true
		}
	}
	return p.unwantedPlace(usable)
}

// empty reports whether a bus belongs to a root port without a device.
func (p *ports) empty(b Bus) bool {
	return b.Model == pcieRootPort && p.taken[Place{Bus: b.Index}] == "" && !p.leading[b.Index]
}

// noteBuses computes byNumber and leading.
func (p *ports) noteBuses() {
	if p.byNumber != nil {
		return
	}
	p.byNumber, p.leading = make(map[uint]Bus, len(p.buses)), map[uint]bool{}
	for _, b := range p.buses {
		if _, twice := p.byNumber[b.Index]; !twice {
			p.byNumber[b.Index] = b
		}
		if b.Index != 0 {
			p.leading[b.Place.Bus] = true
		}
	}
}

// bridgeSlot returns a free slot of the bridge; slot 0 belongs to its hotplug controller.
func (p *ports) bridgeSlot() (Place, bool) {
	if p.bridge == 0 {
		return Place{}, false
	}
	for slot := uint(1); slot < 0x20; slot++ {
		if place := (Place{Bus: p.bridge, Slot: slot}); p.taken[place] == "" {
			return place, true
		}
	}
	return p.unwantedPlace(func(place Place) bool { return place.Bus == p.bridge })
}

// finish places the controllers, disables hotplug on ports whose device has to stay, and adds them
// to the domain.
func (p *ports) finish() error {
	if !p.running() {
		if err := p.placeBuses(); err != nil {
			return err
		}
	}
	p.addBuses(p.buses)
	return nil
}

// placeBuses places the controllers of a guest that does not run yet: eight root ports per slot of
// bus 0, the bridge behind a port.
func (p *ports) placeBuses() error {
	staying := map[uint]bool{}
	for i := range p.slots {
		if place, ok := PlaceOf(*p.slots[i].address); ok && !p.slots[i].hotpluggable {
			staying[place.Bus] = true
		}
	}
	next := slotCursor{ports: p, slot: p.freeSlot(2)}
	for i := range p.buses {
		b := &p.buses[i]
		switch {
		case b.Model == pcieBridge:
			b.Place, _ = p.place(&pciSlot{kind: express})
			p.taken[b.Place] = "controller/pci/" + strconv.FormatUint(uint64(b.Index), 10)
			p.buses[b.Place.Bus].Fixed = true
		case b.Model == pcieExpander:
			b.Place = next.alone()
		case b.Model == pcieRootPort && b.Place == (Place{}):
			b.Place = next.shared()
		}
		b.Fixed = b.Fixed || b.Model == pcieRootPort && staying[b.Index]
		if b.Place.Slot > 0x1f {
			return p.Invalid(strings.TrimSuffix(specDevices, "."), fmt.Sprintf("%d PCIe ports are too many", p.last), "remove devices")
		}
	}
	return nil
}

// slotCursor allocates places of controllers on bus 0.
type slotCursor struct {
	*ports
	slot, function uint
}

// shared returns the next function of a slot of eight.
func (s *slotCursor) shared() Place {
	if s.function > 7 {
		s.slot, s.function = s.freeSlot(s.slot+1), 0
	}
	s.function++
	return Place{Slot: s.slot, Function: s.function - 1}
}

// alone returns an exclusive slot.
func (s *slotCursor) alone() Place {
	if s.function > 0 {
		s.slot = s.freeSlot(s.slot + 1)
	}
	s.function = 8
	return Place{Slot: s.slot}
}

// freeSlot returns the first unused slot of bus 0, starting at from.
func (p *ports) freeSlot(from uint) uint {
	for slot := from; slot < 0x20; slot++ {
		free := slot != slotAudio && slot != slotChipset
		for f := range uint(8) {
			free = free && p.taken[Place{Slot: slot, Function: f}] == ""
		}
		if free {
			return slot
		}
	}
	return 0x20
}

// addBuses adds the controllers. Each has an explicit index, including the root's 0: libvirt
// rejects a domain that numbers only some of them.
func (g *pciPlacement) addBuses(buses []Bus) {
	slots := map[Place]int{}
	for _, b := range buses {
		slots[Place{Domain: b.Place.Domain, Bus: b.Place.Bus, Slot: b.Place.Slot}]++
	}
	g.Domain.Devices.Controllers = slices.Grow(g.Domain.Devices.Controllers, len(buses))
	for _, b := range buses {
		out := b.controller(slots[Place{Domain: b.Place.Domain, Bus: b.Place.Bus, Slot: b.Place.Slot}] > 1)
		if b.Model == pcieRoot && g.Facts.Arch == xmlspec.ArchX86 && strings.EqualFold(g.VMI.Annotations[v1.DisablePCIHole64], "true") {
			out.PCI.Hole64 = &libvirtxml.DomainControllerPCIHole64{Size: 0, Unit: "KiB"}
		}
		g.Domain.Devices.Controllers = append(g.Domain.Devices.Controllers, out)
	}
}
