// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/resource"
	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain/internal/xmlspec"
)

// memoryBackingPass says how the guest's memory is backed.
type memoryBackingPass struct{ *Conversion }

// memoryBacking sets how the guest's memory is allocated. Placement may have distributed it over
// NUMA nodes already.
func memoryBacking(c *Conversion) error {
	out := c.Domain.MemoryBacking
	if out == nil {
		out = &libvirtxml.DomainMemoryBacking{}
	}
	page, err := memoryBackingPass{c}.pageSize()
	if err != nil {
		return err
	}
	hugePages(out, page)
	if (memoryBackingPass{c}).sharesMemory() {
		out.MemoryAccess = &libvirtxml.DomainMemoryAccess{Mode: "shared"}
	}
	memfd := memoryBackingPass{c}.needsMemfd()
	if memfd {
		out.MemorySource = &libvirtxml.DomainMemorySource{Type: "memfd"}
	}
	if page > 0 || out.MemoryAccess != nil || memfd {
		c.Domain.MemoryBacking = out
	}
	if c.Domain.CPU.Numa == nil && (memfd || c.Domain.MaximumMemory != nil) {
		c.Domain.CPU.Numa = memoryBackingPass{c}.singleCell()
	}
	return nil
}

// hugePages sets the page size, unless placement has: a node may have several sizes, and the guest
// must not depend on its default.
func hugePages(out *libvirtxml.DomainMemoryBacking, page int64) {
	if page == 0 || out.MemoryHugePages != nil {
		return
	}
	out.MemoryHugePages = &libvirtxml.DomainMemoryHugepages{Hugepages: []libvirtxml.DomainMemoryHugepage{{Size: uint(page), Unit: "b"}}}
}

// singleCell returns one NUMA node with all CPUs and memory. QEMU shares memory by file descriptor,
// and libvirt hotplugs memory, with NUMA nodes only. The size is rounded up to whole KiB, as
// libvirt does, so that the guest has no less than requested.
func (c memoryBackingPass) singleCell() *libvirtxml.DomainNuma {
	return &libvirtxml.DomainNuma{Cell: []libvirtxml.DomainCell{{
		ID: new(uint(0)), CPUs: cpuSet(numbersBelow(c.Domain.VCPU.Value)), Memory: (c.Domain.Memory.Value + 1023) / 1024, Unit: "KiB",
	}}}
}

// sharesMemory reports whether another process, virtiofsd or passt, maps the guest's memory.
func (c memoryBackingPass) sharesMemory() bool {
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

// needsMemfd reports whether the guest's memory is an anonymous file: with huge pages unless an
// annotation disables it, and whenever another process maps it.
func (c memoryBackingPass) needsMemfd() bool {
	m := c.VMI.Spec.Domain.Memory
	huge := m != nil && m.Hugepages != nil && c.VMI.Annotations[v1.MemfdMemoryBackend] != "false"
	return c.arch.numa && (huge || c.sharesMemory())
}

// pageSize returns the size of the guest's huge pages in bytes, 0 if it has none.
func (c memoryBackingPass) pageSize() (int64, error) {
	m := c.VMI.Spec.Domain.Memory
	if m == nil || m.Hugepages == nil {
		return 0, nil
	}
	const field = specDomain + "memory.hugepages.pageSize"
	q, err := resource.ParseQuantity(m.Hugepages.PageSize)
	if err != nil || q.Sign() <= 0 {
		return 0, c.Invalid(field, fmt.Sprintf("Invalid value: %q", m.Hugepages.PageSize), "use a huge page size of the node, such as 2Mi or 1Gi")
	}
	page := xmlspec.WholeBytes(q)
	if page&(page-1) != 0 || page < 1<<10 {
		return 0, c.Invalid(field, "Invalid value: "+q.String(), "use a huge page size of the node, such as 2Mi or 1Gi")
	}
	if memory := int64(c.Domain.Memory.Value); memory%page != 0 {
		return 0, c.Invalid(field, fmt.Sprintf("memory of %d bytes is not a multiple of the page size %s", memory, q.String()),
			"set memory to a multiple of the page size")
	}
	return page, nil
}
