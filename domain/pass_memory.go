// SPDX-License-Identifier: Apache-2.0

package domain

import (
	k8sv1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"libvirt.org/go/libvirtxml"
)

// minMemory is the least a guest gets: below, no firmware runs.
const minMemory = 1 << 20

// memory sets the guest's memory in bytes: memory.guest, else the request, else
// the limit.
func memory(c *Conversion) error {
	q, field := guestMemory(c)
	if q == nil {
		return c.Invalid(specDomain+"memory.guest", "the guest has no memory",
			"set it, or "+specDomain+"resources.requests.memory")
	}
	bytes := q.Value()
	if bytes < minMemory {
		return c.Invalid(field, q.String()+" is too little for a guest", "give it 1Mi at least")
	}
	c.Domain.Memory = &libvirtxml.DomainMemory{Value: uint(bytes), Unit: "b"}
	return nil
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
	return nil, ""
}
