// SPDX-License-Identifier: Apache-2.0

package migration

import (
	"time"

	v1 "kubevirt.io/api/core/v1"
)

// conclusion writes conditions and status.
type conclusion struct{ *decision }

// conclude writes the explanation into the conditions and copies the VMI's migration
// state into the status.
func (d conclusion) conclude() {
	st := &d.plan.Status
	// Pending actions come first: their executor decides again afterwards. A Pod or claim that is created after
	// the finalizer is gone would stay forever.
	d.plan.Release = d.plan.Release && len(d.plan.Actions) == 0 && d.s.Late == ""
	if d.s.Migration.DeletionTimestamp != nil && st.Phase != v1.MigrationSucceeded {
		setCondition(st, isTrue(v1.VirtualMachineInstanceMigrationAbortRequested, "", "the migration was deleted"), d.stamp())
	}
	d.mirror()
	refusal(d).unblocked()
	d.concludeApart()
	if d.final() {
		d.due(time.Time{}, "")
		dropCondition(st, ConditionWaiting)
		if d.ms != nil {
			st.MigrationState = d.ms.DeepCopy()
		}
		return
	}
	d.waits()
	if st.Phase == v1.MigrationPending || st.Phase == v1.MigrationScheduling && notBegun(d.s.Migration) {
		d.noteSource()
	}
}

// waits writes what the migration waits for, and its deadline, into the condition.
func (d conclusion) waits() {
	st := &d.plan.Status
	if d.plan.Reason == "" {
		return
	}
	text := d.plan.Message
	if !d.plan.Deadline.IsZero() && st.Phase != v1.MigrationPending {
		text += "; " + string(d.plan.Responsible) + " has until " + clock(d.plan.Deadline)
	}
	setCondition(st, isTrue(ConditionWaiting, d.plan.Reason, text), d.stamp())
}

// noteSource records the source of the migration in the status.
func (d conclusion) noteSource() {
	st := &d.plan.Status
	if d.s.SourcePod == nil {
		return
	}
	if st.MigrationState == nil {
		st.MigrationState = &v1.VirtualMachineInstanceMigrationState{}
	}
	st.MigrationState.SourcePod = d.s.SourcePod.Name
	st.MigrationState.SourcePersistentStatePVCName, st.MigrationState.TargetPersistentStatePVCName = d.s.StateClaims()
}
