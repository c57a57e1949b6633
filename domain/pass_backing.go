// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/resource"
	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"
)

// memoryBacking sets what the guest's memory is made of. Placement may have
// spread it over NUMA nodes already.
func memoryBacking(c *Conversion) error {
	out := c.Domain.MemoryBacking
	if out == nil {
		out = &libvirtxml.DomainMemoryBacking{}
	}
	page, err := c.pageSize()
	if err != nil {
		return err
	}
	hugePages(out, page)
	if c.sharesMemory() {
		out.MemoryAccess = &libvirtxml.DomainMemoryAccess{Mode: "shared"}
	}
	memfd := c.needsMemfd()
	if memfd {
		out.MemorySource = &libvirtxml.DomainMemorySource{Type: "memfd"}
	}
	if page > 0 || out.MemoryAccess != nil || memfd {
		c.Domain.MemoryBacking = out
	}
	if c.Domain.CPU.Numa == nil && (memfd || c.Domain.MaximumMemory != nil) {
		c.Domain.CPU.Numa = c.singleCell()
	}
	return nil
}

// hugePages names the size of the pages, unless placement has: a node may have
// several sizes, and its default is not the guest's concern.
func hugePages(out *libvirtxml.DomainMemoryBacking, page int64) {
	if page == 0 || out.MemoryHugePages != nil {
		return
	}
	out.MemoryHugePages = &libvirtxml.DomainMemoryHugepages{Hugepages: []libvirtxml.DomainMemoryHugepage{{Size: uint(page), Unit: "b"}}}
}

// singleCell is one NUMA node with all the guest has. QEMU takes memory by file
// descriptor, and libvirt memory that is plugged later, for NUMA nodes only. What is no
// whole KiB is rounded up, as libvirt does: the guest shall not have less than it asks for.
func (c *Conversion) singleCell() *libvirtxml.DomainNuma {
	return &libvirtxml.DomainNuma{Cell: []libvirtxml.DomainCell{{
		ID: ptr(uint(0)), CPUs: cpuSet(upTo(c.Domain.VCPU.Value)), Memory: (c.Domain.Memory.Value + 1023) / 1024, Unit: "KiB",
	}}}
}

// sharesMemory tells whether another process has the guest's memory mapped:
// virtiofsd or passt.
func (c *Conversion) sharesMemory() bool {
	for _, fs := range c.VMI.Spec.Domain.Devices.Filesystems {
		if fs.Virtiofs != nil {
			return true
		}
	}
	for _, in := range c.VMI.Spec.Domain.Devices.Interfaces {
		if in.PasstBinding != nil {
			return true
		}
	}
	return false
}

// needsMemfd tells whether the guest's memory is an anonymous file: with huge pages
// unless an annotation says otherwise, and whenever others map it.
func (c *Conversion) needsMemfd() bool {
	m := c.VMI.Spec.Domain.Memory
	huge := m != nil && m.Hugepages != nil && c.VMI.Annotations[v1.MemfdMemoryBackend] != "false"
	return c.arch.numa && (huge || c.sharesMemory())
}

// pageSize returns the size of the guest's huge pages in bytes; 0 if it has none.
func (c *Conversion) pageSize() (int64, error) {
	m := c.VMI.Spec.Domain.Memory
	if m == nil || m.Hugepages == nil {
		return 0, nil
	}
	const field = specDomain + "memory.hugepages.pageSize"
	q, err := resource.ParseQuantity(m.Hugepages.PageSize)
	if err != nil || q.Sign() <= 0 {
		return 0, c.Invalid(field, fmt.Sprintf("%q is no size", m.Hugepages.PageSize), "use a size of huge pages the node has, such as 2Mi or 1Gi")
	}
	page := wholeBytes(q)
	if page&(page-1) != 0 || page < 1<<10 {
		return 0, c.Invalid(field, q.String()+" is no size of a page", "use a size of huge pages the node has, such as 2Mi or 1Gi")
	}
	if memory := int64(c.Domain.Memory.Value); memory%page != 0 {
		return 0, c.Invalid(field, fmt.Sprintf("%d bytes of memory are no whole number of pages of %s", memory, q.String()),
			"give the guest a multiple of the page size as memory")
	}
	return page, nil
}
