// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"fmt"

	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain/internal/xmlspec"
)

// minMemory is the minimum size of guest memory: below it, no firmware runs.
const minMemory = 1 << 20

// memorySlots is the number of memory devices that a guest with room for more memory can have.
// virtio-mem needs none, but libvirt requires a number, and DIMMs need one each.
const memorySlots = 16

// memory sets the size of the guest's memory in bytes: memory.guest, else the request, else the
// limit, else one huge page; and the room for more of memory.maxGuest.
func memory(c *Conversion) error {
	q, field := xmlspec.GuestMemory(c.VMI)
	if q == nil {
		return c.Invalid(specDomain+"memory.guest", "Required value",
			"set it or "+specDomain+"resources.requests.memory")
	}
	bytes := xmlspec.WholeBytes(*q)
	if bytes < minMemory {
		return c.Invalid(field, "Invalid value: "+q.String()+" is too small", "use at least 1Mi")
	}
	c.Domain.Memory = &libvirtxml.DomainMemory{Value: uint(bytes), Unit: "b"}
	return c.maxMemory(bytes)
}

// maxMemory sets the room for more memory. s390x, which has no memory hotplug, gets none, just as
// arm64 gets no room for more CPUs.
func (c *Conversion) maxMemory(bytes int64) error {
	m := c.VMI.Spec.Domain.Memory
	if m == nil || m.MaxGuest == nil {
		return nil
	}
	most := xmlspec.WholeBytes(*m.MaxGuest)
	if most < bytes {
		return c.Invalid(specDomain+"memory.maxGuest", fmt.Sprintf("Invalid value: %s is less than the guest memory", m.MaxGuest),
			"set it to at least "+specDomain+"memory.guest")
	}
	if most > bytes && c.arch.hotplugMemory {
		c.Domain.MaximumMemory = &libvirtxml.DomainMaxMemory{Value: uint(most), Unit: "b", Slots: memorySlots}
	}
	return nil
}
