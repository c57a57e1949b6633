// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"libvirt.org/go/libvirtxml"
)

// lastBus is the highest PCI bus number there is.
const lastBus = 255

// alignment finds the guest's NUMA node for host devices of a guest with dedicated
// CPUs, by key. A device whose node the guest has no part of is placed like any
// other, unless the guest was promised the host's topology.
func (p *ports) alignment() (map[string]*uint, error) {
	if !p.Facts.Cluster.NUMAAlignedPCI || !p.VMI.IsCPUDedicated() {
		return nil, nil
	}
	cpu := p.VMI.Spec.Domain.CPU
	strict := cpu.NUMA != nil && cpu.NUMA.GuestMappingPassthrough != nil
	out := map[string]*uint{}
	for i := range p.seats {
		s := &p.seats[i]
		if s.host == nil || s.plug != express || *s.address != nil {
			continue
		}
		cell := p.hostCell(s.host)
		if cell == nil {
			continue
		}
		if node := p.guestNode(*cell); node != nil {
			out[s.key] = node
		} else if strict {
			return nil, p.Invalid(s.field, "its NUMA node is not one of the guest's", "use a device of a node that the guest's CPUs are on")
		}
	}
	return out, nil
}

// hostCell is the host's NUMA node of a device; nil if it is not known.
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

// guestNode is the guest's NUMA node whose memory comes from that node of the host.
func (p *ports) guestNode(host uint) *uint {
	if p.Domain.NUMATune == nil {
		return nil
	}
	for _, n := range p.Domain.NUMATune.MemNodes {
		if n.Nodeset == strconv.FormatUint(uint64(host), 10) {
			return ptr(n.CellID)
		}
	}
	return nil
}

// expand adds an expander bus for each NUMA node with devices, with a root port for
// each. Bus numbers are handed out from the top, so that they leave the ordinary
// ones alone: the ports of an expander bus have the numbers behind its own.
func (p *ports) expand(aligned map[string]*uint) error {
	groups := map[uint][]*seat{}
	for i := range p.seats {
		if node := aligned[p.seats[i].key]; node != nil {
			groups[*node] = append(groups[*node], &p.seats[i])
		}
	}
	p.aligned = map[string]Place{}
	index, top := uint(len(p.buses)), uint(lastBus)
	for _, node := range slices.Sorted(maps.Keys(groups)) {
		number := top - min(top, uint(len(groups[node])))
		if number <= index+uint(len(groups[node])) {
			return p.Invalid(groups[node][0].field, "there are too many devices for one guest", "remove some")
		}
		top = number - 1
		expander := index
		p.buses = append(p.buses, Bus{Index: expander, Model: pcieExpander, NUMANode: ptr(node), Number: ptr(number)})
		index++
		for i, s := range groups[node] {
			p.buses = append(p.buses, Bus{Index: index, Model: pcieRootPort, Place: Place{Bus: expander, Slot: uint(i)}})
			p.aligned[s.key] = Place{Bus: index}
			index++
		}
	}
	return nil
}
