// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain/internal/xmlspec"
)

// MovingBytes returns the number of bytes that the VMI's migration copies: its memory
// (spec.domain.memory.guest, else its memory request) and copied, the bytes of its copied
// disks.
func MovingBytes(vmi *v1.VirtualMachineInstance, copied int64) int64 {
	memory, _ := xmlspec.GuestMemory(vmi)
	if memory == nil {
		return copied
	}
	return memory.Value() + copied
}

// HasPassthrough reports whether the domain has a host device (VFIO), with which its
// migration cannot switch to post-copy. d may be nil.
func HasPassthrough(d *libvirtxml.Domain) bool {
	if d == nil || d.Devices == nil {
		return false
	}
	for i := range d.Devices.Interfaces {
		if s := d.Devices.Interfaces[i].Source; s != nil && s.Hostdev != nil {
			return true
		}
	}
	return len(d.Devices.Hostdevs) > 0
}
