// SPDX-License-Identifier: Apache-2.0

package migration

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/internal/launcherpod"
)

// finish cleans up after a migration.
type finish struct{ *decision }

// succeeded cleans up after a migration that succeeded: it deletes the Pod that the VMI has
// left and the claim that its state has left, then releases the finalizer.
func (d finish) succeeded() phase {
	d.explain(handoff.ByNobody, "", "the VMI has migrated")
	if d.tidy() || targetObjects(d).claimFollows() && d.leave() {
		d.plan.Release = true
		d.collect()
	}
	return v1.MigrationSucceeded
}

// leave removes what the VMI has left behind, and reports whether nothing more can be
// done.
func (d finish) leave() bool {
	p := d.s.SourcePod
	switch {
	case p == nil || p.DeletionTimestamp != nil:
	case d.guestLeft(p):
		d.deletePod(p, "the VMI has left it")
	case !d.guestEnded() && d.lease.Switching():
		// The VMI is migrating again; whether it left for good is open.
		return false
	}
	targetObjects(d).dropState(true)
	return true
}

// guestLeft reports whether this migration has emptied the Pod, and lease and status agree
// that the VMI runs elsewhere.
func (d finish) guestLeft(p *corev1.Pod) bool {
	vmi := d.s.VMI
	if d.guestEnded() || vmi.DeletionTimestamp != nil || !metav1.IsControlledBy(p, vmi) || !d.emptied(p) {
		return false
	}
	node := vmi.Status.NodeName
	if node == p.Spec.NodeName {
		return d.cameBack(p)
	}
	return node != "" && d.lease.Holder == node && d.lease.MayRun(node) && !d.lease.MayRun(p.Spec.NodeName)
}

// emptied reports whether this migration took the VMI out of the Pod.
func (d finish) emptied(p *corev1.Pod) bool {
	moved := d.plan.Status.MigrationState
	if moved == nil || p.Name != moved.SourcePod {
		return false
	}
	return position(d).standing() == arrived || moved.Completed && !moved.Failed
}

// cameBack reports whether the VMI has since returned to the node it left, into another
// Pod.
func (d finish) cameBack(left *corev1.Pod) bool {
	last := d.s.VMI.Status.MigrationState
	return d.lease.State == handoff.Owned && last != nil && last.MigrationUID != d.s.uid() &&
		last.Completed && !last.Failed && last.TargetNode == d.lease.Holder && last.TargetPod != left.Name
}

// failed cleans up after a migration that failed: it rolls back the migration state on both
// nodes, then deletes the target Pod, then releases the finalizer.
func (d finish) failed() phase {
	d.explain(handoff.ByNobody, "", "the migration failed")
	if d.tidy() {
		d.plan.Release = true
		d.collect()
		return v1.MigrationFailed
	}
	if !d.guestEnded() {
		switch position(d).standing() {
		case prepared:
			r, message := ReasonAborted, "the migration failed"
			if c := Condition(d.plan.Status, ConditionFailed); c != nil {
				r, message = Reason(c.Reason), c.Message
			}
			stop(d).callOff(d.s.uid(), cause{r, message})
			return d.stay(handoff.ByController, reasonCancelling, "rolling back migration state on both nodes")
		case begunMoving:
			stop(d).decide(cause{ReasonAborted, "the migration failed"})
			return v1.MigrationFailed
		case arrived:
			// The VMI runs in the target Pod, whatever the status says.
			d.plan.Release = targetObjects(d).claimFollows() && d.leave()
			return v1.MigrationFailed
		}
	}
	if p := d.s.TargetPod; p != nil && p.DeletionTimestamp == nil && !d.runsIn(p) {
		d.deletePod(p, "the migration failed")
	}
	if d.stayedBehind() {
		targetObjects(d).dropState(false)
	}
	d.plan.Release = true
	d.collect()
	return v1.MigrationFailed
}

// tidy reports whether the earlier end was cleaned up completely: then what is observed now
// belongs to later migrations.
func (d finish) tidy() bool {
	return d.s.Migration.IsFinal() && !slices.Contains(d.s.Migration.Finalizers, v1.VirtualMachineInstanceMigrationFinalizer)
}

// runsIn reports whether the VMI may run in the target Pod: status or lease name that node,
// and it is not in its source Pod.
func (d finish) runsIn(p *corev1.Pod) bool {
	node := p.Spec.NodeName
	if d.guestEnded() || !d.s.VMI.IsRunning() || node == "" || node != d.s.VMI.Status.NodeName && node != d.lease.Holder {
		return false
	}
	left := d.s.SourcePod
	return left == nil || launcherpod.Terminal(left) || left.Spec.NodeName != node
}

// stayedBehind reports whether the VMI is known never to have run on the target. A VMI that
// ended while it was migrating may have been on either side; its state may then be in either
// claim, and none is deleted.
func (d finish) stayedBehind() bool {
	if d.s.VMI == nil {
		return !slices.ContainsFunc(d.plan.Status.PhaseTransitionTimestamps, func(t v1.VirtualMachineInstanceMigrationPhaseTransitionTimestamp) bool {
			return t.Phase == v1.MigrationScheduled // from there on a handoff is possible
		})
	}
	st := position(d).standing()
	return st == notHandedOff || st == prepared || st == stayed
}

func (d finish) guestEnded() bool { return d.s.VMI == nil || d.s.VMI.IsFinal() }

func (d finish) deletePod(p *corev1.Pod, why string) {
	grace := d.s.Config.PodGrace
	d.act(Action{
		Verb: DeletePod, Why: why, Pod: &PodRef{Name: p.Name, UID: p.UID, GraceSeconds: &grace},
		Event: &Event{Reason: EventDeleted, Message: "deleted Pod " + p.Name + ": " + why},
	})
}

// orphaned reports whether the migration is over and cleaned up and its VMI is gone: nothing
// else would delete it. A migration whose VMI never existed stays, so that its author can
// read why it failed.
func (d finish) orphaned() bool {
	m := d.s.Migration
	return d.s.VMI == nil && m.DeletionTimestamp == nil && !slices.Contains(m.Finalizers, v1.VirtualMachineInstanceMigrationFinalizer) &&
		slices.ContainsFunc(m.Status.PhaseTransitionTimestamps, func(t v1.VirtualMachineInstanceMigrationPhaseTransitionTimestamp) bool {
			return t.Phase == v1.MigrationPending
		})
}

// collect deletes the oldest finished migrations of the VMI beyond the number to keep. It
// runs when a migration finishes, so it deletes few at a time.
func (d finish) collect() {
	if d.orphaned() {
		d.act(Action{Verb: Collect, Why: "its VMI no longer exists", Name: d.s.Migration.Name})
		return
	}
	keep := d.s.Config.KeepFinished
	if keep < 0 {
		return
	}
	var done []*v1.VirtualMachineInstanceMigration
	for _, o := range d.s.Others {
		if o.IsFinal() && o.DeletionTimestamp == nil {
			done = append(done, o)
		}
	}
	// This migration counts as kept.
	surplus := len(done) + 1 - keep
	if surplus <= 0 || len(done) == 0 {
		return
	}
	slices.SortFunc(done, CompareCreated)
	for _, o := range done[:min(surplus, len(done))] {
		d.act(Action{Verb: Collect, Why: "newer ones are kept", Name: o.Name})
	}
}
