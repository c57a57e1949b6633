// SPDX-License-Identifier: Apache-2.0

package status

import (
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/internal/vmistatus"
)

// MigrationProgress is the type of the condition with the progress of the VMI's live
// migration: its reason is the mode (status.migrationState.mode), its message the text of
// [domain.Progress.String]. It exists during the migration only.
const MigrationProgress v1.VirtualMachineInstanceConditionType = "virtloom.dev/MigrationProgress"

// ProgressOf parses the condition [MigrationProgress]; false if it is missing or invalid.
func ProgressOf(vmi *v1.VirtualMachineInstance) (domain.Progress, bool) {
	c := vmistatus.Condition(vmi, MigrationProgress)
	if c == nil {
		return domain.Progress{}, false
	}
	p, err := domain.ParseProgress(c.Message)
	p.PostCopy = c.Reason == string(v1.MigrationPostCopy)
	return p, err == nil
}
