// SPDX-License-Identifier: Apache-2.0

package migration

import (
	v1 "kubevirt.io/api/core/v1"
)

// Automatic reports whether a controller, not a user, asked for the migration.
func Automatic(m *v1.VirtualMachineInstanceMigration) bool {
	_, evacuated := m.Annotations[v1.EvacuationMigrationAnnotation]
	_, updated := m.Annotations[v1.WorkloadUpdateMigrationAnnotation]
	return evacuated || updated
}
