// SPDX-License-Identifier: Apache-2.0

package migration

import (
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/migration/internal/launcherpod"
)

// cause is why a migration must end without success.
type cause struct {
	reason  Reason
	message string
}

// standing is how far a migration has come, by what is stored on the VMI.
type standing int

const (
	// notHandedOff: the nodes have no record of the migration.
	notHandedOff standing = iota
	// prepared: the nodes are preparing; the controller may cancel it alone.
	prepared
	// begunMoving: only the nodes know where the VMI runs.
	begunMoving
	// stayed: the nodes, or a cancellation, have ended it without success.
	stayed
	// arrived: the VMI runs on the target.
	arrived
)

// standing reads the lease where there is one, else KubeVirt's own fields.
func (d *decision) standing() standing {
	if d.decentralized() {
		return d.standingApart()
	}
	if d.leased {
		if known, s := d.leaseStanding(); known {
			return s
		}
	}
	switch ms := d.ms; {
	case ms == nil:
		return notHandedOff
	case ms.Failed:
		return stayed
	case ms.Completed:
		return arrived
	case ms.StartTimestamp != nil && !d.leased:
		return begunMoving
	}
	return prepared
}

// leaseStanding reads this migration's part of the lease, if it has one.
func (d *decision) leaseStanding() (known bool, s standing) {
	uid := d.s.UID()
	switch {
	case d.lease.Tag != uid:
	case d.lease.Switching():
		return true, begunMoving
	case d.lease.InMove():
		return true, prepared
	}
	switch last, known := d.lease.MoveOutcome(uid); {
	case !known:
		return false, notHandedOff
	case last.Result == handoff.ResultMoved:
		return true, arrived
	}
	return true, stayed
}

func (d *decision) handedOff() bool {
	if d.receives() {
		return d.ms != nil && d.ms.MigrationUID == d.s.UID()
	}
	return d.standing() != notHandedOff
}

func (d *decision) begun() bool { s := d.standing(); return s == begunMoving || s == arrived }

// moved reports whether the VMI is known to run on the target, with its
// migration state still there to report it.
func (d *decision) moved() bool { return d.ms != nil && d.standing() == arrived }

// interrupted looks for a cause that ends the migration in any unfinished phase. The first
// one counts: events come before requests.
func (d *decision) interrupted(r row) (cause, bool) {
	for _, look := range []func(row) (cause, bool){
		d.endedByNodes, d.guestGone, d.stateLost, d.deleted, d.targetPodLost, d.attachmentLost, d.tooLate,
	} {
		if c, hit := look(r); hit {
			return c, true
		}
	}
	return cause{}, false
}

// endedByNodes: a node, or a cancellation, has already ended the migration.
func (d *decision) endedByNodes(row) (cause, bool) {
	switch {
	case d.ms != nil && (d.ms.Failed || closedEarly(d.ms)):
		return d.stored(), true
	case d.standing() == stayed:
		last, _ := d.lease.MoveOutcome(d.s.UID())
		r, message := splitFailure(last.Message)
		return cause{r, message}, true
	}
	return cause{}, false
}

// stored returns why the migration failed by its state on the VMI.
func (d *decision) stored() cause {
	text := d.ms.FailureReason
	if head, tail, found := strings.Cut(text, ": "); found && d.ms.TargetNode == "" && !strings.Contains(head, " ") {
		// Without a target no node has read it: the text is forestall's.
		return cause{Reason(head), tail}
	}
	r, message := splitFailure(text)
	if message == "" {
		return d.unexplained()
	}
	return cause{r, message}
}

// guestGone: the VMI is gone, has ended or is being deleted.
func (d *decision) guestGone(row) (cause, bool) {
	switch vmi := d.s.VMI; {
	case d.plan.Status.Phase == v1.MigrationPhaseUnset && d.s.Migration.DeletionTimestamp == nil:
		// The checks report it in more detail.
		return cause{}, false
	case vmi == nil:
		return cause{ReasonGuestNotFound, fmt.Sprintf("VirtualMachineInstance %q no longer exists", d.s.Migration.Spec.VMIName)}, true
	case d.moved() && (d.ms.Completed || d.sends()):
		return cause{}, false
	case vmi.IsFinal():
		return cause{ReasonGuestFinal, fmt.Sprintf("the VMI has ended in phase %s", vmi.Status.Phase)}, true
	case vmi.DeletionTimestamp != nil:
		return cause{ReasonGuestDeleted, "the VMI is being deleted"}, true
	}
	return cause{}, false
}

// stateLost: the handoff happened, and its record is gone.
func (d *decision) stateLost(row) (cause, bool) {
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
		return cause{ReasonStateLost, "the VMI's migration state was cleared"}, true
	}
	return cause{ReasonStateLost, fmt.Sprintf("the VMI's migration state was taken over by migration %q", d.s.VMI.Status.MigrationState.MigrationUID)}, true
}

// deleted: the migration was deleted. One that has transferred the domain is completed all
// the same.
func (d *decision) deleted(row) (cause, bool) {
	if d.s.Migration.DeletionTimestamp == nil || d.moved() {
		return cause{}, false
	}
	return cause{ReasonAborted, "the migration was deleted"}, true
}

// targetPodLost: the target Pod is gone.
func (d *decision) targetPodLost(row) (cause, bool) {
	switch d.plan.Status.Phase {
	case v1.MigrationPhaseUnset, v1.MigrationPending, v1.MigrationWaitingForSync:
		return cause{}, false
	}
	if d.standing() == arrived || d.sends() {
		return cause{}, false
	}
	switch p := d.s.TargetPod; {
	case p == nil:
		return cause{ReasonTargetPodLost, "the target Pod no longer exists"}, true
	case launcherpod.Terminal(p):
		return cause{ReasonTargetPodLost, fmt.Sprintf("target Pod %q has ended in phase %s: %s", p.Name, p.Status.Phase, p.Status.Message)}, true
	case p.DeletionTimestamp != nil:
		return cause{ReasonTargetPodLost, fmt.Sprintf("target Pod %q is being deleted", p.Name)}, true
	}
	return cause{}, false
}

// tooLate: the owner of the phase has missed its deadline.
func (d *decision) tooLate(r row) (cause, bool) {
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

// stop ends the migration as far as the controller may, and returns the resulting phase.
func (d *decision) stop(c cause) phase {
	if d.decentralized() {
		return d.stopApart(c)
	}
	if d.s.VMI == nil || d.s.VMI.IsFinal() {
		return d.fail(c)
	}
	switch d.standing() {
	case notHandedOff:
		if d.handoffMayFollow() {
			d.forestall(c)
			return d.stay(OwnerController, ReasonCancelling, c.message)
		}
		return d.fail(c)
	case stayed:
		return d.fail(c)
	case prepared:
		d.callOff(d.s.UID(), c)
		return d.stay(OwnerController, ReasonCancelling, c.message)
	case begunMoving:
		d.askToAbort()
		d.due(time.Time{}, "") // only the nodes know the outcome, however long they take
		return d.stay(OwnerSource, ReasonAborting, "abort requested from the nodes: "+c.message)
	}
	if d.movedByLease() {
		return d.complete()
	}
	return d.stay(OwnerTarget, ReasonCompleting, "the VMI has arrived; too late to stop: "+c.message)
}

// movedByLease reports whether the VMI has migrated by its lease, whatever its migration
// state says.
func (d *decision) movedByLease() bool {
	return d.leased && (d.ms == nil || d.ms.Failed) && d.lease.Holder == d.s.VMI.Status.NodeName
}

// handoffMayFollow reports whether a handoff, sent by a crashed process or an earlier leader,
// may be in flight to the VMI as observed here. Handoffs are sent in the stored phases
// Scheduling and Scheduled alone, and to no VMI whose migration state or lease is another
// migration's.
func (d *decision) handoffMayFollow() bool {
	return d.mayHandOff() && d.leased && !d.lease.InMove() && d.s.owner() == nil
}

// mayHandOff reports whether the stored phase is one in which a handoff may be in flight when
// the migration ends.
func (d *decision) mayHandOff() bool {
	p := d.s.Migration.Status.Phase
	return p == v1.MigrationScheduling || p == v1.MigrationScheduled
}

// forestall records on the VMI that the migration has failed before the migration's status
// does. A handoff in flight then finds another migration state and is rejected. Nothing would
// cancel it later, and the target Pod would be gone.
func (d *decision) forestall(c cause) {
	now := d.stamp()
	state := &v1.VirtualMachineInstanceMigrationState{
		MigrationUID: d.s.UID(), EndTimestamp: &now, Failed: true, Completed: true, FailureReason: failureText(c.reason, c.message),
	}
	state.SourcePersistentStatePVCName, state.TargetPersistentStatePVCName = d.s.StateClaims()
	if d.s.Migration.DeletionTimestamp != nil {
		state.AbortRequested, state.AbortStatus = true, v1.MigrationAbortSucceeded
	}
	d.act(Action{Kind: ChangeVMI, Why: "reject a late handoff", Change: &VMIChange{State: state}})
}

// askToAbort requests, once, that the node running the migration aborts it.
func (d *decision) askToAbort() {
	change := &VMIChange{}
	if d.ms != nil && !d.ms.AbortRequested {
		change.State = d.ms.DeepCopy()
		change.State.AbortRequested = true
	}
	if d.leased && d.lease.State == handoff.Moving {
		d.abortLease(change)
	}
	if change.State != nil || change.Lease != nil {
		d.act(Action{Kind: ChangeVMI, Why: "request the nodes to abort", Change: change})
	}
}

// abortLease requests the abort by the VMI's lease, once, from the node that runs the migration.
func (d *decision) abortLease(change *VMIChange) {
	if _, asked := d.lease.Command(handoff.CommandAbort); asked {
		return
	}
	next, _, err := handoff.Step(d.lease, handoff.Event{Kind: handoff.Abort, Epoch: d.lease.Epoch, Tag: d.s.UID()}, d.now)
	if err == nil { // else the migration has ended, which the next pass observes
		change.Lease = &next
	}
}

// callOff cancels the migration of the tag, which has not begun: lease, migration state and
// label in one change. The label of a VMI without a lease stays: a stock virt-handler finds
// by it what to clean up.
func (d *decision) callOff(tag types.UID, c cause) {
	change := &VMIChange{}
	text := failureText(c.reason, c.message)
	if d.leased && d.lease.InMove() && d.lease.Tag == tag {
		next, _, err := handoff.Step(d.lease, handoff.Event{Kind: handoff.Cancel, Epoch: d.lease.Epoch, Tag: tag, Message: text}, d.now)
		if err != nil {
			// Only a lease whose migration has begun rejects; the next pass observes it.
			d.explain(OwnerController, ReasonCancelling, err.Error())
			return
		}
		change.Lease = &next
	}
	if ms := d.s.VMI.Status.MigrationState; ms != nil && (ms.MigrationUID == tag || ms == d.ms && tag == d.s.UID()) {
		change.State = d.closed(ms, text)
	}
	if d.sends() {
		d.keepVolumes(change)
	}
	d.act(Action{Kind: ChangeVMI, Why: "cancel the migration", Change: change})
}

// closed returns the migration state as failed and completed.
func (d *decision) closed(ms *v1.VirtualMachineInstanceMigrationState, text string) *v1.VirtualMachineInstanceMigrationState {
	out, now := ms.DeepCopy(), d.stamp()
	if out.StartTimestamp == nil {
		out.StartTimestamp = &now
	}
	if out.EndTimestamp == nil {
		out.EndTimestamp = &now
	}
	if out.AbortRequested || d.s.Migration.DeletionTimestamp != nil {
		out.AbortRequested, out.AbortStatus = true, v1.MigrationAbortSucceeded
	}
	d.recordEnd(out)
	out.Failed, out.Completed, out.FailureReason = true, true, text
	return out
}

// early reports whether the VMI was not handed off yet when the pass began.
func (d *decision) early() bool {
	switch d.s.Migration.Status.Phase {
	case v1.MigrationPhaseUnset, v1.MigrationPending, v1.MigrationScheduling, v1.MigrationScheduled:
		return true
	default:
		return false
	}
}

// fail ends the migration without success.
func (d *decision) fail(c cause) phase {
	d.enter(v1.MigrationFailed)
	setCondition(&d.plan.Status, isTrue(ConditionFailed, c.reason, c.message), d.stamp())
	e := Event{Warning: true, Reason: EventFailed, Message: string(c.reason) + ": " + c.message}
	if c.reason == ReasonAborted && !d.early() { // otherwise KubeVirt warns, and alerts depend on it
		e = Event{Reason: EventAborted, Message: c.message}
	}
	d.emit(e)
	if d.s.VMI != nil {
		e.OnVMI = true
		d.emit(e)
	}
	return v1.MigrationFailed
}
