// SPDX-License-Identifier: Apache-2.0

package migration

import (
	v1 "kubevirt.io/api/core/v1"
)

// GuestUID is the annotation of a migration with the UID of its guest, which is noted when
// the migration is adopted: a guest that is made anew under the same name is another one.
const GuestUID = "virtloom.dev/guest-uid"

// GuestOf returns the guest if it is the migration's, else nil. A migration that another
// controller has adopted has no note of its guest's UID; there an object that was made after
// the migration, which KubeVirt refuses for a guest that is not there, is another guest.
func GuestOf(m *v1.VirtualMachineInstanceMigration, vmi *v1.VirtualMachineInstance) *v1.VirtualMachineInstance {
	if vmi == nil || m.Status.Phase == v1.MigrationPhaseUnset {
		return vmi
	}
	if uid, noted := m.Annotations[GuestUID]; noted {
		if uid != string(vmi.UID) {
			return nil
		}
		return vmi
	}
	if vmi.CreationTimestamp.After(m.CreationTimestamp.Time) {
		return nil
	}
	return vmi
}

// ofItsGuest leaves out a guest that is not the migration's.
func (s Snapshot) ofItsGuest() Snapshot {
	if s.VMI != nil && GuestOf(s.Migration, s.VMI) == nil {
		s.VMI, s.SourcePod, s.TargetPod, s.Launchers, s.Attachments = nil, nil, nil, nil, nil
	}
	return s
}
