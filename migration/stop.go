// SPDX-License-Identifier: Apache-2.0

package migration

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
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

// stop ends a migration before its VMI has moved.
type stop struct{ *decision }

// decide ends the migration as far as the controller may, and returns the resulting phase.
func (d stop) decide(c cause) phase {
	if d.decentralized() {
		return d.stopApart(c)
	}
	if d.s.VMI == nil || d.s.VMI.IsFinal() {
		return d.fail(c)
	}
	switch position(d).standing() {
	case notHandedOff:
		if position(d).handoffMayFollow() {
			d.forestall(c)
			return d.stay(handoff.ByController, reasonCancelling, c.message)
		}
		return d.fail(c)
	case stayed:
		return d.fail(c)
	case prepared:
		d.callOff(d.s.uid(), c)
		return d.stay(handoff.ByController, reasonCancelling, c.message)
	case begunMoving:
		d.askToAbort()
		d.due(time.Time{}, "") // only the nodes know the outcome, however long they take
		return d.stay(handoff.BySourceNode, reasonAborting, "abort requested from the nodes: "+c.message)
	}
	if position(d).movedByLease() {
		return advance(d).complete()
	}
	return d.stay(handoff.ByTargetNode, reasonCompleting, "the VMI has arrived; too late to stop: "+c.message)
}

// forestall records on the VMI that the migration has failed before the migration's status
// does. A handoff in flight then finds another migration state and is rejected. Nothing would
// cancel it later, and the target Pod would be gone.
func (d stop) forestall(c cause) {
	now := d.stamp()
	state := &v1.VirtualMachineInstanceMigrationState{
		MigrationUID: d.s.uid(), EndTimestamp: &now, Failed: true, Completed: true, FailureReason: failureText(c.reason, c.message),
	}
	state.SourcePersistentStatePVCName, state.TargetPersistentStatePVCName = d.s.StateClaims()
	if d.s.Migration.DeletionTimestamp != nil {
		state.AbortRequested, state.AbortStatus = true, v1.MigrationAbortSucceeded
	}
	d.act(Action{Verb: ChangeVMI, Why: "reject a late handoff", Change: &VMIChange{State: state}})
}

// askToAbort requests, once, that the node running the migration aborts it.
func (d stop) askToAbort() {
	change := &VMIChange{}
	if d.ms != nil && !d.ms.AbortRequested {
		change.State = d.ms.DeepCopy()
		change.State.AbortRequested = true
	}
	if d.leased && d.lease.State == handoff.Moving {
		d.abortLease(change)
	}
	if change.State != nil || change.Lease != nil {
		d.act(Action{Verb: ChangeVMI, Why: "request the nodes to abort", Change: change})
	}
}

// abortLease requests the abort by the VMI's lease, once, from the node that runs the migration.
func (d stop) abortLease(change *VMIChange) {
	if _, asked := d.lease.Command(handoff.CommandAbort); asked {
		return
	}
	next, _, err := handoff.Step(d.lease, handoff.Event{Kind: handoff.Abort, Epoch: d.lease.Epoch, Tag: d.s.uid()}, d.now)
	if err == nil { // else the migration has ended, which the next pass observes
		change.Lease = &next
	}
}

// callOff cancels the migration of the tag, which has not begun: lease, migration state and
// label in one change. The label of a VMI without a lease stays: a stock virt-handler finds
// by it what to clean up.
func (d stop) callOff(tag types.UID, c cause) {
	change := &VMIChange{}
	text := failureText(c.reason, c.message)
	if d.leased && d.lease.InMove() && d.lease.Tag == tag {
		next, _, err := handoff.Step(d.lease, handoff.Event{Kind: handoff.Cancel, Epoch: d.lease.Epoch, Tag: tag, Message: text}, d.now)
		if err != nil {
			// Only a lease whose migration has begun rejects; the next pass observes it.
			d.explain(handoff.ByController, reasonCancelling, err.Error())
			return
		}
		change.Lease = &next
	}
	if ms := d.s.VMI.Status.MigrationState; ms != nil && (ms.MigrationUID == tag || ms == d.ms && tag == d.s.uid()) {
		change.State = d.closed(ms, text)
	}
	if d.sends() {
		sender(d).keepVolumes(change)
	}
	d.act(Action{Verb: ChangeVMI, Why: "cancel the migration", Change: change})
}

// closed returns the migration state as failed and completed.
func (d stop) closed(ms *v1.VirtualMachineInstanceMigrationState, text string) *v1.VirtualMachineInstanceMigrationState {
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
func (d stop) early() bool {
	switch d.s.Migration.Status.Phase {
	case v1.MigrationPhaseUnset, v1.MigrationPending, v1.MigrationScheduling, v1.MigrationScheduled:
		return true
	default:
		return false
	}
}

// fail ends the migration without success.
func (d stop) fail(c cause) phase {
	d.enter(v1.MigrationFailed)
	setCondition(&d.plan.Status, isTrue(ConditionFailed, c.reason, c.message), d.stamp())
	e := Event{Warning: true, Reason: eventFailed, Message: string(c.reason) + ": " + c.message}
	if c.reason == ReasonAborted && !d.early() { // otherwise KubeVirt warns, and alerts depend on it
		e = Event{Reason: eventAborted, Message: c.message}
	}
	d.emit(e)
	if d.s.VMI != nil {
		e.OnVMI = true
		d.emit(e)
	}
	return v1.MigrationFailed
}
