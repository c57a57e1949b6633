// SPDX-License-Identifier: Apache-2.0

package domain

import (
	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"
)

// MovingBytes is how much the guest's migration has to carry: its memory
// (spec.domain.memory.guest, else what it requests), and what its copied disks hold.
func MovingBytes(vmi *v1.VirtualMachineInstance, copied int64) int64 {
	memory, _ := guestMemory(&Conversion{VMI: vmi})
	if memory == nil {
		return copied
	}
	return memory.Value() + copied
}

// HasPassthrough tells whether the guest has a device of the host (VFIO), with which its
// migration cannot change to post-copy. d may be nil.
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
