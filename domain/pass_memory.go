// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"fmt"

	k8sv1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"libvirt.org/go/libvirtxml"
)

// minMemory is the least a guest gets: below, no firmware runs.
const minMemory = 1 << 20

// memorySlots is how many memory devices a guest with room for more memory can be
// given. Virtio-mem needs none, but libvirt insists on a number, and DIMMs need one
// each.
const memorySlots = 16

// memory sets the guest's memory in bytes: memory.guest, else the request, else
// the limit, else one huge page; and with memory.maxGuest the room for more.
func memory(c *Conversion) error {
	q, field := guestMemory(c)
	if q == nil {
		return c.Invalid(specDomain+"memory.guest", "the guest has no memory",
			"set it, or "+specDomain+"resources.requests.memory")
	}
	bytes := wholeBytes(*q)
	if bytes < minMemory {
		return c.Invalid(field, q.String()+" is too little for a guest", "give it 1Mi at least")
	}
	c.Domain.Memory = &libvirtxml.DomainMemory{Value: uint(bytes), Unit: "b"}
	return c.maxMemory(bytes)
}

// maxMemory leaves room for more memory. An architecture whose guests cannot be
// given more, s390x, gets none, as it gets no room for CPUs it cannot plug.
func (c *Conversion) maxMemory(bytes int64) error {
	m := c.VMI.Spec.Domain.Memory
	if m == nil || m.MaxGuest == nil {
		return nil
	}
	most := wholeBytes(*m.MaxGuest)
	if most < bytes {
		return c.Invalid(specDomain+"memory.maxGuest", fmt.Sprintf("%s is less than the guest's memory", m.MaxGuest),
			"set it to "+specDomain+"memory.guest at least")
	}
	if most > bytes && c.arch.hotplugMemory {
		c.Domain.MaximumMemory = &libvirtxml.DomainMaxMemory{Value: uint(most), Unit: "b", Slots: memorySlots}
	}
	return nil
}

// wholeBytes returns a quantity in bytes; a fraction of one is dropped.
func wholeBytes(q resource.Quantity) int64 {
	if n, whole := q.AsInt64(); whole {
		return n
	}
	return q.Value() - 1 // Value rounds up
}

// mebibytes returns a quantity in MiB, rounded to the nearest, and never to nothing
// what is more.
func mebibytes(q resource.Quantity) uint64 {
	switch b := wholeBytes(q); {
	case b <= 0:
		return 0
	case b < 1<<20:
		return 1
	default:
		return (uint64(b) + 1<<19) >> 20
	}
}

// guestMemory returns the quantity that counts, and its field.
func guestMemory(c *Conversion) (*resource.Quantity, string) {
	s := &c.VMI.Spec.Domain
	if s.Memory != nil && s.Memory.Guest != nil {
		return s.Memory.Guest, specDomain + "memory.guest"
	}
	if q, ok := s.Resources.Requests[k8sv1.ResourceMemory]; ok {
		return &q, specDomain + "resources.requests.memory"
	}
	if q, ok := s.Resources.Limits[k8sv1.ResourceMemory]; ok {
		return &q, specDomain + "resources.limits.memory"
	}
	if s.Memory != nil && s.Memory.Hugepages != nil {
		if q, err := resource.ParseQuantity(s.Memory.Hugepages.PageSize); err == nil {
			return &q, specDomain + "memory.hugepages.pageSize"
		}
	}
	return nil, ""
}
