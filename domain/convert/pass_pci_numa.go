// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"libvirt.org/go/libvirtxml"
)

// lastBus is the highest PCI bus number.
const lastBus = 255

// alignment returns, by device key, the guest NUMA node of each host device of a guest with
// dedicated CPUs. A device whose node the guest does not use is placed like any other device,
// unless the guest requests the host's topology.
func (p *ports) alignment() (map[string]*uint, error) {
	if !p.Facts.Cluster.NUMAAlignedPCI || !p.VMI.IsCPUDedicated() {
		return nil, nil
	}
	cpu := p.VMI.Spec.Domain.CPU
	strict := cpu.NUMA != nil && cpu.NUMA.GuestMappingPassthrough != nil
	out := map[string]*uint{}
	for i := range p.slots {
		s := &p.slots[i]
		if s.host == nil || s.kind != express || *s.address != nil {
			continue
		}
		cell := p.hostCell(s.host)
		if cell == nil {
			continue
		}
		if node := p.guestNode(*cell); node != nil {
			out[s.key] = node
		} else if strict {
			return nil, p.Invalid(s.field, "the VMI does not use the NUMA node of the device", "use a device of a NUMA node with guest CPUs")
		}
	}
	return out, nil
}

// hostCell returns the host NUMA node of a device, nil if unknown.
func (p *ports) hostCell(h *libvirtxml.DomainHostdev) *uint {
	name := ""
	switch {
	case h.SubsysPCI != nil && h.SubsysPCI.Source != nil && h.SubsysPCI.Source.Address != nil:
		a := h.SubsysPCI.Source.Address
		name = fmt.Sprintf("%04x:%02x:%02x.%x", deref(a.Domain), deref(a.Bus), deref(a.Slot), deref(a.Function))
	case h.SubsysMDev != nil && h.SubsysMDev.Source != nil && h.SubsysMDev.Source.Address != nil:
		name = h.SubsysMDev.Source.Address.UUID
	}
	for _, resource := range slices.Sorted(maps.Keys(p.Facts.Devices)) {
		for _, d := range p.Facts.Devices[resource] {
			if name != "" && strings.EqualFold(cmp.Or(d.PCI, d.MDev), name) {
				return d.Cell
			}
		}
	}
	return nil
}

// guestNode returns the guest NUMA node with memory of the given host NUMA node.
func (p *ports) guestNode(host uint) *uint {
	if p.Domain.NUMATune == nil {
		return nil
	}
	for _, n := range p.Domain.NUMATune.MemNodes {
		if n.Nodeset == strconv.FormatUint(uint64(host), 10) {
			return new(n.CellID)
		}
	}
	return nil
}

// expand adds an expander bus, with one root port per device, for each NUMA node with devices. Its
// bus numbers are allocated from the top, so that they do not collide with others: the ports of an
// expander bus have the numbers that follow its own.
func (p *ports) expand(aligned map[string]*uint) error {
	groups := map[uint][]*pciSlot{}
	for i := range p.slots {
		if node := aligned[p.slots[i].key]; node != nil {
			groups[*node] = append(groups[*node], &p.slots[i])
		}
	}
	p.aligned = map[string]Place{}
	index, top := uint(len(p.buses)), uint(lastBus)
	for _, node := range slices.Sorted(maps.Keys(groups)) {
		number := top - min(top, uint(len(groups[node])))
		if number <= index+uint(len(groups[node])) {
			return p.Invalid(groups[node][0].field, "too many devices", "remove devices")
		}
		top = number - 1
		expander := index
		p.buses = append(p.buses, Bus{Index: expander, Model: pcieExpander, NUMANode: new(node), Number: new(number)})
		index++
		for i, s := range groups[node] {
			p.buses = append(p.buses, Bus{Index: index, Model: pcieRootPort, Place: Place{Bus: expander, Slot: uint(i)}})
			p.aligned[s.key] = Place{Bus: index}
			index++
		}
	}
	return nil
}
