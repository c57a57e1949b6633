// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package libvirt

import (
	"cmp"
	"slices"

	"github.com/virtloom/virtloom/domain"
	"libvirt.org/go/libvirtxml"
)

// kibibytes are libvirt's units of memory in KiB.
var kibibytes = map[string]uint64{"": 1, "KiB": 1, "MiB": 1 << 10, "GiB": 1 << 20, "TiB": 1 << 30}

// cells converts the NUMA topology of the host; nil without one.
func cells(t *libvirtxml.CapsHostNUMATopology) []domain.Cell {
	if t == nil || t.Cells == nil {
		return nil
	}
	var out []domain.Cell
	for _, in := range t.Cells.Cells {
		c := domain.Cell{ID: uint(in.ID)}
		if in.Memory != nil {
			c.MemoryKiB = in.Memory.Size * kibibytes[in.Memory.Unit]
		}
		if in.CPUS != nil {
			for _, cpu := range in.CPUS.CPUs {
				c.CPUs = append(c.CPUs, domain.HostCPU{ID: uint(cpu.ID), Core: valueOrZero(cpu.CoreID), Socket: valueOrZero(cpu.SocketID)})
			}
		}
		c.HugepagesKiB = hugepages(in.PageInfo)
		if in.Distances != nil {
			c.Distances = map[uint]uint{}
			for _, s := range in.Distances.Siblings {
				c.Distances[uint(s.ID)] = uint(s.Value)
			}
		}
		out = append(out, c)
	}
	slices.SortFunc(out, func(a, b domain.Cell) int { return cmp.Compare(a.ID, b.ID) })
	return out
}

// hugepages lists the page sizes beyond the smallest, which is that of ordinary pages.
func hugepages(pages []libvirtxml.CapsHostNUMAPageInfo) []uint64 {
	var out []uint64
	for _, p := range pages {
		out = append(out, uint64(p.Size)*kibibytes[p.Unit])
	}
	slices.Sort(out)
	if len(out) < 2 {
		return nil
	}
	return out[1:]
}

// valueOrZero is 0 for a missing number.
func valueOrZero(n *int) uint {
	if n == nil {
		return 0
	}
	return uint(*n)
}
