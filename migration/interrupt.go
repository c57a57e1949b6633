// SPDX-License-Identifier: Apache-2.0

package migration

import (
	"fmt"

	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/internal/launcherpod"
)

// interrupt is what ends a phase other than its own step.
type interrupt struct{ *decision }

// interrupted looks for a cause that ends the migration in any unfinished phase. The first
// one counts: events come before requests.
func (d interrupt) interrupted(r row) (cause, bool) {
	for _, look := range []func(row) (cause, bool){
		d.endedByNodes, d.guestGone, d.stateLost, d.deleted, d.targetPodLost, d.attachmentLost, d.tooLate,
	} {
		if c, hit := look(r); hit {
			return c, true
		}
	}
	return cause{}, false
}

// deleted: the migration was deleted. One that has transferred the domain is completed all
// the same.
func (d interrupt) deleted(row) (cause, bool) {
	if d.s.Migration.DeletionTimestamp == nil || position(d).moved() {
		return cause{}, false
	}
	return cause{ReasonAborted, "the migration was deleted"}, true
}

// endedByNodes: a node, or a cancellation, has already ended the migration.
func (d interrupt) endedByNodes(row) (cause, bool) {
	switch {
	case d.ms != nil && (d.ms.Failed || closedEarly(d.ms)):
		return position(d).stored(), true
	case position(d).standing() == stayed:
		last, _ := d.lease.MoveOutcome(d.s.uid())
		r, message := splitFailure(last.Message)
		return cause{r, message}, true
	}
	return cause{}, false
}

// stateLost: the handoff happened, and its record is gone.
func (d interrupt) stateLost(row) (cause, bool) {
	switch d.plan.Status.Phase {
	case v1.MigrationPreparingTarget, v1.MigrationTargetReady, v1.MigrationRunning:
	default:
		if !d.lostApart() {
			return cause{}, false
		}
	}
	switch {
	case d.ms != nil:
		return cause{}, false
	case d.s.VMI.Status.MigrationState == nil:
		return cause{reasonStateLost, "the VMI's migration state was cleared"}, true
	}
	return cause{reasonStateLost, fmt.Sprintf("the VMI's migration state was taken over by migration %q", d.s.VMI.Status.MigrationState.MigrationUID)}, true
}

// guestGone: the VMI is gone, has ended or is being deleted.
func (d interrupt) guestGone(row) (cause, bool) {
	switch vmi := d.s.VMI; {
	case d.plan.Status.Phase == v1.MigrationPhaseUnset && d.s.Migration.DeletionTimestamp == nil:
		// The checks report it in more detail.
		return cause{}, false
	case vmi == nil:
		return cause{ReasonGuestNotFound, fmt.Sprintf("VirtualMachineInstance %q no longer exists", d.s.Migration.Spec.VMIName)}, true
	case position(d).moved() && (d.ms.Completed || d.sends()):
		return cause{}, false
	case vmi.IsFinal():
		return cause{ReasonGuestFinal, fmt.Sprintf("the VMI has ended in phase %s", vmi.Status.Phase)}, true
	case vmi.DeletionTimestamp != nil:
		return cause{ReasonGuestDeleted, "the VMI is being deleted"}, true
	}
	return cause{}, false
}

// targetPodLost: the target Pod is gone.
func (d interrupt) targetPodLost(row) (cause, bool) {
	switch d.plan.Status.Phase {
	case v1.MigrationPhaseUnset, v1.MigrationPending, v1.MigrationWaitingForSync:
		return cause{}, false
	}
	if position(d).standing() == arrived || d.sends() {
		return cause{}, false
	}
	switch p := d.s.TargetPod; {
	case p == nil:
		return cause{reasonTargetPodLost, "the target Pod no longer exists"}, true
	case launcherpod.Terminal(p):
		return cause{reasonTargetPodLost, fmt.Sprintf("target Pod %q has ended in phase %s: %s", p.Name, p.Status.Phase, p.Status.Message)}, true
	case p.DeletionTimestamp != nil:
		return cause{reasonTargetPodLost, fmt.Sprintf("target Pod %q is being deleted", p.Name)}, true
	}
	return cause{}, false
}

// tooLate: the owner of the phase has missed its deadline.
func (d interrupt) tooLate(r row) (cause, bool) {
	at, late := d.overdue()
	if !late {
		return cause{}, false
	}
	message := fmt.Sprintf("phase %s did not end before %s: %s", d.plan.Status.Phase, at.UTC().Format("2006-01-02T15:04:05Z07:00"), r.message)
	if d.plan.Status.Phase == v1.MigrationPending {
		message = "the migration did not start in time"
		if c := Condition(d.plan.Status, ConditionWaiting); c != nil {
			message += ": " + c.Message
		}
	} else if d.ms != nil && d.ms.FailureReason != "" {
		message += ": " + d.ms.FailureReason
	}
	return cause{r.overdue, message}, true
}

// lostApart reports whether the phase is one in which both halves must be there.
func (d interrupt) lostApart() bool {
	switch d.plan.Status.Phase {
	case v1.MigrationPhaseUnset, v1.MigrationSynchronizing, v1.MigrationWaitingForSync, v1.MigrationPending:
		return d.decentralized() && d.plan.Status.Phase == v1.MigrationPending
	}
	return d.decentralized()
}

// unexplained returns the cause of a failure without a reason; none is carried from the
// receiver to the sender.
func (d interrupt) unexplained() cause {
	switch {
	case !d.decentralized():
		return cause{ReasonNodeReported, "the node reported no reason"}
	case d.s.Migration.DeletionTimestamp != nil:
		return cause{ReasonAborted, "the migration was deleted"}
	}
	return cause{reasonOtherReported, "the other cluster reports that the migration has failed"}
}
