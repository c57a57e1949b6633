// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"fmt"
	"slices"

	"libvirt.org/go/libvirtxml"
)

// passNUMA gives the guest the NUMA nodes its CPUs are pinned to: numbered from 0
// in the order of the host's topology, each with its CPUs, its share of the memory
// in whole huge pages of that node, and the distances to the others.
func (p *pinning) passNUMA() error {
	const field = specCPU + "numa.guestMappingPassthrough"
	page, err := p.pageSize()
	switch {
	case err != nil:
		return err
	case !p.arch.numa:
		return p.Invalid(field, p.arch.name+" guests have no NUMA nodes", "remove it")
	case page == 0:
		return p.Invalid(field, "needs huge pages", "set "+specDomain+"memory.hugepages, or remove it")
	}
	nodes := p.nodes()
	for _, n := range nodes {
		// A topology that lists no sizes tells nothing about them.
		if sizes := n.host.HugepagesKiB; len(sizes) > 0 && !slices.Contains(sizes, uint64(page>>10)) {
			return &Error{
				Object: p.object(), Field: specDomain + "memory.hugepages.pageSize",
				Reason: fmt.Sprintf("NUMA node %d of the host has no huge pages of %d KiB", n.host.ID, page>>10),
				Remedy: "use a size the node has, or another node", Err: ErrUnsupported,
			}
		}
	}
	pages := p.Domain.Memory.Value / uint(page)
	if pages < uint(len(nodes)) {
		return p.Invalid(field, fmt.Sprintf("%d bytes of memory are less than a huge page for each of %d NUMA nodes", p.Domain.Memory.Value, len(nodes)),
			"give the guest more memory, or use smaller pages")
	}
	p.Domain.CPU.Numa = &libvirtxml.DomainNuma{}
	p.Domain.NUMATune = &libvirtxml.DomainNUMATune{}
	p.Domain.MemoryBacking = &libvirtxml.DomainMemoryBacking{
		MemoryHugePages:  &libvirtxml.DomainMemoryHugepages{},
		MemoryAllocation: &libvirtxml.DomainMemoryAllocation{Mode: "immediate"},
	}
	if p.in.Realtime != nil {
		p.Domain.MemoryBacking.MemoryNosharepages = &libvirtxml.DomainMemoryNosharepages{}
	}
	var hosts []uint
	for i, n := range nodes {
		share := pages / uint(len(nodes))
		if uint(i) < pages%uint(len(nodes)) {
			share++
		}
		p.addNode(uint(i), n, nodes, share*uint(page))
		p.Domain.MemoryBacking.MemoryHugePages.Hugepages = append(p.Domain.MemoryBacking.MemoryHugePages.Hugepages,
			libvirtxml.DomainMemoryHugepage{Size: uint(page), Unit: "b", Nodeset: cpuSet([]uint{uint(i)})})
		hosts = append(hosts, n.host.ID)
	}
	p.Domain.NUMATune.Memory = &libvirtxml.DomainNUMATuneMemory{Mode: "strict", Nodeset: cpuSet(hosts)}
	return nil
}

// guestNode is a NUMA node of the host that the guest gets, and the guest's CPUs
// on it.
type guestNode struct {
	host  *Cell
	vcpus []uint
}

// nodes lists the NUMA nodes the guest's CPUs are pinned to. CPUs that are not
// plugged yet belong to the first, as libvirt would have it.
func (p *pinning) nodes() []guestNode {
	var out []guestNode
	for i := range p.Facts.Cells {
		n := guestNode{host: &p.Facts.Cells[i]}
		for vcpu, host := range p.hosts {
			if slices.ContainsFunc(n.host.CPUs, func(t HostCPU) bool { return t.ID == host }) {
				n.vcpus = append(n.vcpus, uint(vcpu))
			}
		}
		if len(n.vcpus) > 0 {
			out = append(out, n)
		}
	}
	for vcpu := uint(len(p.hosts)); vcpu < p.Domain.VCPU.Value; vcpu++ {
		out[0].vcpus = append(out[0].vcpus, vcpu)
	}
	return out
}

// addNode adds a NUMA node of the guest and ties its memory to the host's.
func (p *pinning) addNode(id uint, n guestNode, all []guestNode, bytes uint) {
	cell := libvirtxml.DomainCell{ID: &id, CPUs: cpuSet(n.vcpus), Memory: bytes, Unit: "b"}
	distances := &libvirtxml.DomainCellDistances{}
	for i, other := range all {
		if d, known := n.host.Distances[other.host.ID]; known {
			distances.Siblings = append(distances.Siblings, libvirtxml.DomainCellSibling{ID: uint(i), Value: d})
		}
	}
	if len(distances.Siblings) > 0 {
		cell.Distances = distances
	}
	p.Domain.CPU.Numa.Cell = append(p.Domain.CPU.Numa.Cell, cell)
	p.Domain.NUMATune.MemNodes = append(p.Domain.NUMATune.MemNodes, libvirtxml.DomainNUMATuneMemNode{
		CellID: id, Mode: "strict", Nodeset: cpuSet([]uint{n.host.ID}),
	})
}
