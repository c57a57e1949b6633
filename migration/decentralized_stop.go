// SPDX-License-Identifier: Apache-2.0

package migration

import (
	v1 "kubevirt.io/api/core/v1"
)

// stopApart ends a decentralized migration as far as this side may, and lets the other one
// know. What is written here is what the synchronization controllers carry: a failure of the
// receiver as it is, one of the sender as an abort that has ended.
func (d *decision) stopApart(c cause) phase {
	if d.s.VMI == nil || d.ms == nil {
		return d.fail(c)
	}
	switch s := d.standing(); {
	case s == stayed:
		return d.fail(c)
	case s == arrived:
		return d.stay(d.plan.Owner, ReasonCompleting, "the guest has moved; too late to stop: "+c.message)
	case s == prepared || d.vain():
		d.callOff(d.s.UID(), c)
		return d.stay(OwnerController, ReasonCancelling, c.message)
	}
	at := d.answerBy()
	if !at.IsZero() && !d.now.Before(at) {
		d.callOff(d.s.UID(), c)
		return d.stay(OwnerController, ReasonCancelling, c.message)
	}
	d.askToAbort()
	d.due(at, c.reason)
	owner := OwnerSource
	if d.receives() {
		owner = OwnerOther
	}
	return d.stay(owner, ReasonAborting, "the sender is asked to abort: "+c.message)
}

// vain tells whether the guest cannot move any more, whatever the other side does: it has
// ended, or there is nowhere to go.
func (d *decision) vain() bool {
	if d.s.VMI.IsFinal() {
		return true
	}
	p := d.s.TargetPod
	return d.receives() && (p == nil || terminal(p))
}

// tellEnd adds to a state that is closed what the other side understands. Only an abort that
// has ended is carried from the sender to the receiver.
func (d *decision) tellEnd(out *v1.VirtualMachineInstanceMigrationState) {
	if !d.decentralized() || d.ms == nil {
		return
	}
	out.MigrationUID = d.s.UID()
	if d.sends() {
		out.AbortRequested, out.AbortStatus = true, v1.MigrationAbortSucceeded
	}
}

// lostApart reports whether the phase is one in which both halves must be there.
func (d *decision) lostApart() bool {
	switch d.plan.Status.Phase {
	case v1.MigrationPhaseUnset, v1.MigrationSynchronizing, v1.MigrationWaitingForSync, v1.MigrationPending:
		return d.decentralized() && d.plan.Status.Phase == v1.MigrationPending
	}
	return d.decentralized()
}

// unexplained is the cause of a failure of which the reason is not told, as none is carried
// from the receiver to the sender.
func (d *decision) unexplained() cause {
	switch {
	case !d.decentralized():
		return cause{ReasonNodeReported, "the node gave no reason"}
	case d.s.Migration.DeletionTimestamp != nil:
		return cause{ReasonAborted, "the migration was deleted"}
	}
	return cause{ReasonOtherReported, "the other cluster reports that the migration has failed"}
}
