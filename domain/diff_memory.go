// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"strconv"
	"strings"

	"libvirt.org/go/libvirtxml"
)

const (
	// memoryBlock is the unit in which memory is plugged (KubeVirt: 2 MiB), and
	// memoryBlockLarge that for guests on huge pages of 1 GiB.
	memoryBlock, memoryBlockLarge = 2 << 20, 1 << 30
	// memoryRounding is what QEMU may round the size of a guest up by.
	memoryRounding = 1 << 20
)

// memory compares the size of the guest. What it was started with stays; on top of
// it there is one virtio memory device of all that may come, of which as much is
// requested as the guest shall have.
func (c *comparison) memory() {
	const field = specDomain + "memory.guest"
	if c.want.Memory == nil || c.live.Memory == nil {
		return
	}
	want := bytesOf(c.want.Memory.Value, c.want.Memory.Unit)
	m := memoryInUse(c.live)
	have := m.boot + m.requested
	if want <= have && have-want < max(memoryRounding, c.blockIf(m.device)) {
		return
	}
	text := func(n uint64) string { return strconv.FormatUint(n, 10) }
	if reason := c.unpluggable(m, want); reason != "" {
		c.add(NextBoot, field, text(want), text(have), reason)
		return
	}
	d := c.add(Live, field, text(want), text(have), "memory can be plugged")
	if m.device == nil {
		c.operate(d, AttachDevice, newMemory(m.limit-m.boot, want-m.boot, c.block()))
		return
	}
	changed, target := *m.device, *m.device.Target
	target.Requested = &libvirtxml.DomainMemorydevTargetRequested{Value: uint(want - m.boot), Unit: "b"}
	changed.Target = &target
	c.operate(d, UpdateDevice, &changed)
}

// unpluggable tells why the size cannot be had in the running guest; empty if it can.
func (c *comparison) unpluggable(m memoryUse, want uint64) string {
	switch block := c.block(); {
	case m.limit == 0 || want > m.limit:
		return "the guest was started without room for so much memory"
	case osType(c.live).Arch != archX86:
		return "memory can be plugged on amd64 only"
	case want < m.boot:
		return "memory that the guest was started with cannot be taken away while it runs"
	case want%block != 0 || m.boot%block != 0 || m.limit%block != 0:
		return "memory is plugged in blocks of " + strconv.FormatUint(block>>20, 10) + " MiB"
	}
	return ""
}

// block is the unit in which memory is plugged into this guest.
func (c *comparison) block() uint64 {
	b := c.live.MemoryBacking
	if b == nil || b.MemoryHugePages == nil {
		return memoryBlock
	}
	for _, page := range b.MemoryHugePages.Hugepages {
		if bytesOf(page.Size, page.Unit) == memoryBlockLarge {
			return memoryBlockLarge
		}
	}
	return memoryBlock
}

// blockIf is block for a guest that has the device, else 0.
func (c *comparison) blockIf(device *libvirtxml.DomainMemorydev) uint64 {
	if device == nil {
		return 0
	}
	return c.block()
}

// memoryUse is what a running guest has.
type memoryUse struct {
	// boot is what it was started with, requested what it was asked to have on
	// top of it, limit the most it can have; 0 without room for more.
	boot, requested, limit uint64
	// device is the one that we plugged; nil if there is none.
	device *libvirtxml.DomainMemorydev
}

func memoryInUse(d *libvirtxml.Domain) memoryUse {
	m := memoryUse{boot: bytesOf(d.Memory.Value, d.Memory.Unit)}
	for i := range deviceLists(d).Memorydevs {
		dev := &d.Devices.Memorydevs[i]
		if dev.Target == nil || dev.Target.Size == nil {
			continue
		}
		size := bytesOf(dev.Target.Size.Value, dev.Target.Size.Unit)
		m.boot -= min(m.boot, size) // a domain's memory includes that of devices
		switch {
		case dev.Model == string(VirtioMem) && dev.Target.Requested != nil:
			m.requested += bytesOf(dev.Target.Requested.Value, dev.Target.Requested.Unit)
		default:
			m.requested += size
		}
		if dev.Alias != nil && strings.HasPrefix(dev.Alias.Name, memoryDevice) {
			m.device = dev
		}
	}
	if cells := cellsOf(d); cells > 0 {
		m.boot = cells
		if d.MaximumMemory != nil {
			m.limit = bytesOf(d.MaximumMemory.Value, d.MaximumMemory.Unit)
		}
	}
	return m
}

// cellsOf is the memory of the guest's NUMA nodes, without which none can be plugged.
func cellsOf(d *libvirtxml.Domain) uint64 {
	sum := uint64(0)
	if d.CPU != nil && d.CPU.Numa != nil {
		for _, c := range d.CPU.Numa.Cell {
			sum += bytesOf(c.Memory, c.Unit)
		}
	}
	return sum
}

// newMemory is the device for memory that is plugged, in bytes.
func newMemory(size, requested, block uint64) *libvirtxml.DomainMemorydev {
	return &libvirtxml.DomainMemorydev{
		Model: string(VirtioMem),
		Target: &libvirtxml.DomainMemorydevTarget{
			Size:      &libvirtxml.DomainMemorydevTargetSize{Value: uint(size), Unit: "b"},
			Node:      &libvirtxml.DomainMemorydevTargetNode{},
			Block:     &libvirtxml.DomainMemorydevTargetBlock{Value: uint(block), Unit: "b"},
			Requested: &libvirtxml.DomainMemorydevTargetRequested{Value: uint(requested), Unit: "b"},
		},
		Alias: &libvirtxml.DomainAlias{Name: memoryDevice + "0"},
	}
}
