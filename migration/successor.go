// SPDX-License-Identifier: Apache-2.0

package migration

import (
	v1 "kubevirt.io/api/core/v1"
)

// VMIUID is the annotation of a migration with the UID of its VMI, recorded when the
// migration is adopted: a VMI that is recreated under the same name is another one.
const VMIUID = "virtloom.dev/guest-uid"

// VMIOf returns the VMI if it is the migration's, else nil. A migration adopted by another
// controller has no record of its VMI's UID; there a VMI created after the migration is another
// one, as KubeVirt rejects migrations of VMIs that do not exist.
func VMIOf(m *v1.VirtualMachineInstanceMigration, vmi *v1.VirtualMachineInstance) *v1.VirtualMachineInstance {
	if vmi == nil || m.Status.Phase == v1.MigrationPhaseUnset {
		return vmi
	}
	if uid, noted := m.Annotations[VMIUID]; noted {
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

// ofItsVMI removes a VMI that is not the migration's from the snapshot.
func (s Snapshot) ofItsVMI() Snapshot {
	if s.VMI != nil && VMIOf(s.Migration, s.VMI) == nil {
		s.VMI, s.SourcePod, s.TargetPod, s.Launchers, s.Attachments = nil, nil, nil, nil, nil
	}
	return s
}
