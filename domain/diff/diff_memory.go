// SPDX-License-Identifier: Apache-2.0

package diff

import (
	"strconv"
	"strings"

	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/internal/xmlspec"
)

const (
	// memoryBlock is the unit of memory hotplug (KubeVirt: 2 MiB), memoryBlockLarge that for guests
	// with huge pages of 1 GiB.
	memoryBlock, memoryBlockLarge = 2 << 20, 1 << 30
	// memoryRounding is the amount by which QEMU may round up the memory of a guest.
	memoryRounding = 1 << 20
)

// memory compares the size of memory. Boot memory is fixed; a single virtio memory device provides
// the rest, up to the maximum, and its requested size is what the guest shall have beyond boot
// memory.
//
// Memory is not compared through the rule table, as one number of the spec is spread over four of a
// domain: the boot memory, the size and the requested size of a virtio-mem device, and the maximum.
func (c *comparison) memory() {
	const field = fieldDomain + "memory.guest"
	if c.want.Memory == nil || c.live.Memory == nil {
		return
	}
	want := xmlspec.BytesOf(c.want.Memory.Value, c.want.Memory.Unit)
	m := memoryInUse(c.live)
	have := m.boot + m.requested
	// QEMU rounds boot memory up, and a device can be resized by whole blocks only. A rest below one
	// block is what rounding left, and an operation for it would be repeated in every pass.
	if want <= have && have-want < max(memoryRounding, c.blockIf(m.device)) {
		return
	}
	text := func(n uint64) string { return strconv.FormatUint(n, 10) }
	if reason := c.unpluggable(m, want); reason != "" {
		c.add(NextBoot, field, text(want), text(have), reason)
		return
	}
	d := c.add(Live, field, text(want), text(have), "memory can be hotplugged")
	// The device is made as large as the guest may ever become, with what is wanted now as its
	// requested size: a second device would need another slot, and could not be removed.
	if m.device == nil {
		c.operate(d, domain.AttachDevice, newMemory(m.limit-m.boot, want-m.boot, c.block()))
		return
	}
	changed, target := *m.device, *m.device.Target
	target.Requested = &libvirtxml.DomainMemorydevTargetRequested{Value: uint(want - m.boot), Unit: "b"}
	changed.Target = &target
	c.operate(d, domain.UpdateDevice, &changed)
}

// unpluggable returns the reason why the running guest cannot have the size, empty if it can.
func (c *comparison) unpluggable(m memoryUse, want uint64) string {
	switch block := c.block(); {
	case m.limit == 0 || want > m.limit:
		return "the maximum memory of the running domain is exceeded"
	case osType(c.live).Arch != xmlspec.ArchX86:
		return "memory hotplug is supported on amd64 only"
	case want < m.boot:
		return "boot memory cannot be removed from a running domain"
	case want%block != 0 || m.boot%block != 0 || m.limit%block != 0:
		return "memory is hotplugged in blocks of " + strconv.FormatUint(block>>20, 10) + " MiB"
	}
	return ""
}

// block returns the unit of memory hotplug for this guest.
func (c *comparison) block() uint64 {
	b := c.live.MemoryBacking
	if b == nil || b.MemoryHugePages == nil {
		return memoryBlock
	}
	for _, page := range b.MemoryHugePages.Hugepages {
		if xmlspec.BytesOf(page.Size, page.Unit) == memoryBlockLarge {
			return memoryBlockLarge
		}
	}
	return memoryBlock
}

// blockIf returns block for a guest with the device, else 0.
func (c *comparison) blockIf(device *libvirtxml.DomainMemorydev) uint64 {
	if device == nil {
		return 0
	}
	return c.block()
}

// memoryUse is the memory of a running guest.
type memoryUse struct {
	// boot is the boot memory, requested the size requested from the memory device, and limit the
	// maximum, 0 without memory hotplug.
	boot, requested, limit uint64
	// device is the hotplugged memory device, nil if there is none.
	device *libvirtxml.DomainMemorydev
}

func memoryInUse(d *libvirtxml.Domain) memoryUse {
	m := memoryUse{boot: xmlspec.BytesOf(d.Memory.Value, d.Memory.Unit)}
	for i := range deviceLists(d).Memorydevs {
		dev := &d.Devices.Memorydevs[i]
		if dev.Target == nil || dev.Target.Size == nil {
			continue
		}
		size := xmlspec.BytesOf(dev.Target.Size.Value, dev.Target.Size.Unit)
		// libvirt's <memory> is the sum of boot memory and devices, in the definition and in the live
		// domain alike. min guards against a hypervisor that reports less.
		m.boot -= min(m.boot, size) // the memory of a domain includes memory devices
		switch {
		case dev.Model == string(domain.VirtioMem) && dev.Target.Requested != nil:
			m.requested += xmlspec.BytesOf(dev.Target.Requested.Value, dev.Target.Requested.Unit)
		default:
			m.requested += size
		}
		if dev.Alias != nil && strings.HasPrefix(dev.Alias.Name, xmlspec.PrefixMemory) {
			m.device = dev
		}
	}
	// Cells are exact where <memory> was rounded. A domain without cells was started without memory
	// hotplug, whatever maximum it reports, so its limit remains 0.
	if cells := cellsOf(d); cells > 0 {
		m.boot = cells
		if d.MaximumMemory != nil {
			m.limit = xmlspec.BytesOf(d.MaximumMemory.Value, d.MaximumMemory.Unit)
		}
	}
	return m
}

// cellsOf returns the memory of the guest's NUMA nodes, which memory hotplug requires.
func cellsOf(d *libvirtxml.Domain) uint64 {
	sum := uint64(0)
	if d.CPU != nil && d.CPU.Numa != nil {
		for _, c := range d.CPU.Numa.Cell {
			sum += xmlspec.BytesOf(c.Memory, c.Unit)
		}
	}
	return sum
}

// newMemory returns a memory device, with sizes in bytes.
func newMemory(size, requested, block uint64) *libvirtxml.DomainMemorydev {
	return &libvirtxml.DomainMemorydev{
		Model: string(domain.VirtioMem),
		Target: &libvirtxml.DomainMemorydevTarget{
			Size:      &libvirtxml.DomainMemorydevTargetSize{Value: uint(size), Unit: "b"},
			Node:      &libvirtxml.DomainMemorydevTargetNode{},
			Block:     &libvirtxml.DomainMemorydevTargetBlock{Value: uint(block), Unit: "b"},
			Requested: &libvirtxml.DomainMemorydevTargetRequested{Value: uint(requested), Unit: "b"},
		},
		Alias: &libvirtxml.DomainAlias{Name: xmlspec.PrefixMemory + "0"},
	}
}
