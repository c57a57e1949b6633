// SPDX-License-Identifier: Apache-2.0

package migration

import (
	"fmt"
	"time"

	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/migration/queue"
)

// checkBackup waits until no backup of the VMI is in progress: a hypervisor runs either a
// backup job or a migration.
func checkBackup(s Snapshot, _ time.Time) Finding {
	b := runningBackup(s.VMI)
	if b == nil {
		return Finding{}
	}
	f := later(ReasonBackup, fmt.Sprintf("backup %q of the VMI is in progress", b.BackupName), "it must end")
	f.Object = "VirtualMachineInstance " + s.VMI.Name
	return f
}

// runningBackup returns the VMI's backup in progress, or nil.
func runningBackup(vmi *v1.VirtualMachineInstance) *v1.VirtualMachineInstanceBackupStatus {
	if vmi == nil || vmi.Status.ChangedBlockTracking == nil {
		return nil
	}
	b := vmi.Status.ChangedBlockTracking.BackupStatus
	if b == nil || b.BackupName == "" || b.Completed {
		return nil
	}
	return b
}

// abortBackup requests once that a backup that blocks a critical migration ends;
// KubeVirt's condition records the request. A backup that only a custom check knows
// cannot be aborted.
func (d refusal) abortBackup() {
	critical := queue.PriorityOf(d.s.Migration.Spec.Priority) == queue.PriorityCritical
	asked := Condition(d.s.Migration.Status, v1.VirtualMachineInstanceMigrationBlockedByBackup) != nil
	b := runningBackup(d.s.VMI)
	if !critical || !d.s.Config.AbortBackups || asked || b == nil {
		d.mark(v1.VirtualMachineInstanceMigrationBlockedByBackup, ReasonBackup, "a backup of the VMI is in progress")
		return
	}
	switch err := d.s.Failures[AbortBackup]; {
	case d.s.BackupAborted:
		d.mark(v1.VirtualMachineInstanceMigrationBlockedByBackup, ReasonBackup, "abort of the VMI's backup requested")
	case err != nil:
		d.emitOnce(ReasonBackup, Event{Warning: true, OnVMI: true, Reason: eventBackupAbortFailed, Message: err.Error()})
	default:
		d.act(Action{Verb: AbortBackup, Why: "the migration is critical", Name: b.BackupName, Event: &Event{
			OnVMI: true, Reason: eventBackupAborted, Message: fmt.Sprintf("Requested abort of backup %q for migration %q", b.BackupName, d.s.Migration.Name),
		}})
	}
}

// checkUtilityVolumes waits until the VMI's utility volumes are detached, at most for the
// timeout, which starts at the migration's creation.
func checkUtilityVolumes(s Snapshot, now time.Time) Finding {
	if s.VMI == nil || len(s.VMI.Spec.UtilityVolumes) == 0 {
		return Finding{}
	}
	f := later(reasonUtilityVolumes, fmt.Sprintf("%d utility volumes are attached", len(s.VMI.Spec.UtilityVolumes)), "they must be detached")
	f.Object = "VirtualMachineInstance " + s.VMI.Name
	if s.acting() {
		return f // bounded by its phase
	}
	limit := s.Config.utilityVolumesTimeout(s.Migration)
	f.Until = s.Migration.CreationTimestamp.Add(limit)
	f.Unblock = "they must be detached before " + clock(f.Until)
	if !now.Before(f.Until) {
		return never(reasonUtilityVolumes, fmt.Sprintf("%s, still after %s", f.Message, limit), "detach them, then create the migration again")
	}
	return f
}

// utilityVolumesTimeout is KubeVirt's setting, which an annotation of the migration
// overrides.
func (c Config) utilityVolumesTimeout(m *v1.VirtualMachineInstanceMigration) time.Duration {
	limit := 150 * time.Second
	if c.Cluster != nil && c.Cluster.UtilityVolumesTimeout != nil {
		limit = time.Duration(*c.Cluster.UtilityVolumesTimeout) * time.Second
	}
	return annotatedSeconds(m, v1.MigrationUtilityVolumesTimeoutSecondsAnnotation, limit)
}

// mark sets a condition of KubeVirt's with what the migration waits for.
func (d refusal) mark(t v1.VirtualMachineInstanceMigrationConditionType, r Reason, message string) {
	setCondition(&d.plan.Status, isTrue(t, r, message), d.stamp())
}

// blocked waits until the check's finding is lifted, and reports it as KubeVirt does.
func (d refusal) blocked(f Finding) phase {
	if !f.Temporary {
		return stop(d).fail(cause{f.Reason, f.Text()})
	}
	d.plan.RequeueAt = f.Until
	switch f.Reason {
	case ReasonBackup:
		d.abortBackup()
	case reasonUtilityVolumes:
		d.mark(v1.VirtualMachineInstanceMigrationBlockedByUtilityVolumes, reasonUtilityVolumes, "utility volumes are attached to the VMI")
		d.emitOnce(f.Reason, Event{Warning: true, Reason: eventUtilityVolumes, Message: f.Text()})
	case ReasonBackoff:
		d.emitOnce(f.Reason, Event{Warning: true, OnVMI: true, Reason: eventBackoff, Message: f.Text()})
	}
	return d.stay(handoff.ByController, f.Reason, f.Text())
}

// unblocked removes the conditions of a wait that is over.
func (d refusal) unblocked() {
	st, r := &d.plan.Status, d.plan.Reason
	if r != ReasonBackup {
		dropCondition(st, v1.VirtualMachineInstanceMigrationBlockedByBackup)
	}
	if r != reasonUtilityVolumes {
		dropCondition(st, v1.VirtualMachineInstanceMigrationBlockedByUtilityVolumes)
	}
	if st.Phase != v1.MigrationPending {
		dropCondition(st, v1.VirtualMachineInstanceMigrationRejectedByResourceQuota)
		dropCondition(st, ConditionNoNode)
	}
}

// emitOnce emits the event when the migration begins to wait for the reason.
func (d refusal) emitOnce(r Reason, e Event) {
	if c := Condition(d.s.Migration.Status, ConditionWaiting); c != nil && c.Reason == string(r) {
		return
	}
	d.emit(e)
}
