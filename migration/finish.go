// SPDX-License-Identifier: Apache-2.0

package migration

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
)

// succeeded tidies up after a migration that moved its guest: the Pod the guest
// has left goes, and the claim its state has left, then the finalizer.
func (d *decision) succeeded() phase {
	d.explain(OwnerNobody, "", "the guest has moved")
	if d.tidy() || d.claimFollows() && d.leave() {
		d.plan.Release = true
		d.collect()
	}
	return v1.MigrationSucceeded
}

// leave removes what the guest has left behind, and reports whether that is all
// that can be done.
func (d *decision) leave() bool {
	p := d.s.SourcePod
	switch {
	case p == nil || p.DeletionTimestamp != nil:
	case d.guestLeft(p):
		d.deletePod(p, "the guest has left it")
	case !d.guestEnded() && d.lease.Switching():
		// The guest is on its way again; whether it left for good is open.
		return false
	}
	d.dropState(true)
	return true
}

// guestLeft reports whether the Pod is the one this migration has emptied, and
// the guest is known to run elsewhere: both ownership and status say so.
func (d *decision) guestLeft(p *corev1.Pod) bool {
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

// emptied reports whether it is this migration that took the guest out of the Pod.
func (d *decision) emptied(p *corev1.Pod) bool {
	moved := d.plan.Status.MigrationState
	if moved == nil || p.Name != moved.SourcePod {
		return false
	}
	return d.standing() == arrived || moved.Completed && !moved.Failed
}

// cameBack reports whether the guest has returned since to the node it left, into
// another Pod than the one it left there.
func (d *decision) cameBack(left *corev1.Pod) bool {
	last := d.s.VMI.Status.MigrationState
	return d.lease.State == handoff.Owned && last != nil && last.MigrationUID != d.s.UID() &&
		last.Completed && !last.Failed && last.TargetNode == d.lease.Holder && last.TargetPod != left.Name
}

// failed tidies up after a migration that did not move its guest: whatever the
// nodes were told is taken back, then the target Pod goes, then the finalizer.
func (d *decision) failed() phase {
	d.explain(OwnerNobody, "", "the migration failed")
	if d.tidy() {
		d.plan.Release = true
		d.collect()
		return v1.MigrationFailed
	}
	if !d.guestEnded() {
		switch d.standing() {
		case prepared:
			r, message := ReasonAborted, "the migration failed"
			if c := Condition(d.plan.Status, ConditionFailed); c != nil {
				r, message = Reason(c.Reason), c.Message
			}
			d.callOff(d.s.UID(), cause{r, message})
			return d.stay(OwnerController, ReasonCancelling, "what the nodes were told is taken back")
		case begunMoving:
			d.stop(cause{ReasonAborted, "the migration failed"})
			return v1.MigrationFailed
		case arrived:
			// The guest runs in the target Pod, whatever the status says.
			d.plan.Release = d.claimFollows() && d.leave()
			return v1.MigrationFailed
		}
	}
	if p := d.s.TargetPod; p != nil && p.DeletionTimestamp == nil && !d.runsIn(p) {
		d.deletePod(p, "the guest does not move there")
	}
	if d.stayedBehind() {
		d.dropState(false)
	}
	d.plan.Release = true
	d.collect()
	return v1.MigrationFailed
}

// tidy reports whether all was tidied up after the end before: then what is seen now is
// of later migrations.
func (d *decision) tidy() bool {
	return d.s.Migration.IsFinal() && !slices.Contains(d.s.Migration.Finalizers, v1.VirtualMachineInstanceMigrationFinalizer)
}

// runsIn reports whether the guest may run in the target Pod: it is on that node, by
// its status or its owner, and not in the Pod that it was to leave.
func (d *decision) runsIn(p *corev1.Pod) bool {
	node := p.Spec.NodeName
	if d.guestEnded() || !d.s.VMI.IsRunning() || node == "" || node != d.s.VMI.Status.NodeName && node != d.lease.Holder {
		return false
	}
	left := d.s.SourcePod
	return left == nil || terminal(left) || left.Spec.NodeName != node
}

// stayedBehind reports whether the guest is known never to have run on the target. A
// guest that has ended while it was moved may have been on either side; then its state
// may be in either claim, and none is deleted.
func (d *decision) stayedBehind() bool {
	if d.s.VMI == nil {
		return !slices.ContainsFunc(d.plan.Status.PhaseTransitionTimestamps, func(t v1.VirtualMachineInstanceMigrationPhaseTransitionTimestamp) bool {
			return t.Phase == v1.MigrationScheduled // from there on it may have been handed over
		})
	}
	st := d.standing()
	return st == notHandedOff || st == prepared || st == stayed
}

func (d *decision) guestEnded() bool { return d.s.VMI == nil || d.s.VMI.IsFinal() }

func (d *decision) deletePod(p *corev1.Pod, why string) {
	grace := d.s.Config.PodGrace
	d.act(Action{
		Kind: DeletePod, Why: why, Pod: &PodRef{Name: p.Name, UID: p.UID, GraceSeconds: &grace},
		Event: &Event{Reason: EventDeleted, Message: "deleted Pod " + p.Name + ": " + why},
	})
}

// forgotten reports whether the migration is over, all is tidied up, and its guest is
// gone: nobody would ever delete it. One whose guest was not there from the beginning
// stays, so that its author can read why it failed.
func (d *decision) forgotten() bool {
	m := d.s.Migration
	return d.s.VMI == nil && m.DeletionTimestamp == nil && !slices.Contains(m.Finalizers, v1.VirtualMachineInstanceMigrationFinalizer) &&
		slices.ContainsFunc(m.Status.PhaseTransitionTimestamps, func(t v1.VirtualMachineInstanceMigrationPhaseTransitionTimestamp) bool {
			return t.Phase == v1.MigrationPending
		})
}

// collect deletes the oldest finished migrations of the guest beyond the number
// to keep. It runs when a migration finishes, so at most a few go at a time.
func (d *decision) collect() {
	if d.forgotten() {
		d.act(Action{Kind: Collect, Why: "its guest does not exist any more", Name: d.s.Migration.Name})
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
	// This one counts as kept.
	surplus := len(done) + 1 - keep
	if surplus <= 0 || len(done) == 0 {
		return
	}
	slices.SortFunc(done, created)
	for _, o := range done[:min(surplus, len(done))] {
		d.act(Action{Kind: Collect, Why: "newer ones are kept", Name: o.Name})
	}
}
