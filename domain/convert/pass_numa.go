// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"fmt"
	"slices"

	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
)

// passNUMA gives the guest the NUMA nodes to which its CPUs are pinned: numbered from 0 in the
// order of the host's topology, each with its CPUs, its share of the memory in whole huge pages of
// that node, and the distances to the others.
func (p *pinning) passNUMA() error {
	const field = specCPU + "numa.guestMappingPassthrough"
	page, err := memoryBackingPass{p.Conversion}.pageSize()
	switch {
	case err != nil:
		return err
	case !p.arch.numa:
		return p.Invalid(field, "NUMA nodes are not supported on "+p.arch.name, "remove it")
	case page == 0:
		return p.Invalid(field, "Invalid value: requires huge pages", "set "+specDomain+"memory.hugepages, or remove it")
	}
	nodes := p.nodes()
	for _, n := range nodes {
		// Without a list, the page sizes of the node are unknown.
		if sizes := n.host.HugepagesKiB; len(sizes) > 0 && !slices.Contains(sizes, uint64(page>>10)) {
			return &Error{
				Object: p.object(), Field: specDomain + "memory.hugepages.pageSize",
				Reason: fmt.Sprintf("host NUMA node %d has no huge pages of %d KiB", n.host.ID, page>>10),
				Remedy: "use a page size of the node, or another node", Err: domain.ErrUnsupported,
			}
		}
	}
	pages := p.Domain.Memory.Value / uint(page)
	if pages < uint(len(nodes)) {
		return p.Invalid(field, fmt.Sprintf("memory of %d bytes is less than one huge page for each of %d NUMA nodes", p.Domain.Memory.Value, len(nodes)),
			"give the VMI more memory, or use smaller pages")
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

// guestNode is a host NUMA node that the guest uses, and the guest's CPUs on it.
type guestNode struct {
	host  *domain.Cell
	vcpus []uint
}

// nodes lists the NUMA nodes to which the guest's CPUs are pinned. CPUs that are not hotplugged yet
// belong to the first, as in libvirt.
func (p *pinning) nodes() []guestNode {
	var out []guestNode
	for i := range p.Facts.Cells {
		n := guestNode{host: &p.Facts.Cells[i]}
		for vcpu, host := range p.hosts {
			if slices.ContainsFunc(n.host.CPUs, func(t domain.HostCPU) bool { return t.ID == host }) {
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

// addNode adds a guest NUMA node and binds its memory to that of the host.
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
