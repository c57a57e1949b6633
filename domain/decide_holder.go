// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"errors"
	"time"

	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/internal/vmistatus"
)

const (
	// DefaultGrace is how long a guest may take to shut down when its spec does
	// not say (spec.terminationGracePeriodSeconds): KubeVirt's 30 seconds.
	DefaultGrace = 30 * time.Second
	// resendAfter is when an unanswered shutdown request is repeated.
	resendAfter = 5 * time.Second
	// pollMove is how often a move is looked at that another process began.
	pollMove = time.Second
	// arrival is how long a target may take to report a guest that has left.
	arrival = 5 * time.Second
	// endWithin is how long, after its grace period, a guest may take to end before
	// the stop is overdue: one call to the hypervisor.
	endWithin = 30 * time.Second
	// obstacleRetry is when something that is missing on the node is looked for
	// again: nobody tells when it is there.
	obstacleRetry = 5 * time.Second
)

// holder decides for the node that owns the guest.
func (d *decision) holder() error {
	if d.lease.State == handoff.Lost {
		// Not a word about the guest, and nothing done to it, before it is known
		// that it still is this node's.
		return d.step(handoff.Event{Kind: handoff.Return, Within: d.returnWithin()})
	}
	if d.departed() {
		return d.leave()
	}
	if command, open := d.lease.Command(handoff.CommandStart); open && d.State != nil && !d.begun(command.Epoch) {
		d.clear("a domain of an earlier hand-over is in the way")
		d.again(pollMove)
		return nil
	}
	if d.State == nil || !d.State.Alive() {
		return d.holderWithoutGuest()
	}
	return d.holderWithGuest()
}

// returnWithin is how long what the silence interrupted may take now; zero leaves it
// to the default.
func (d *decision) returnWithin() time.Duration {
	switch d.lease.Was {
	case handoff.Releasing:
		return d.grace() + endWithin
	case handoff.Moving:
		// Which disks travel has not been looked at.
		return max(d.moveWithin(), handoff.DefaultMoveWithin)
	}
	return 0
}

// holderWithGuest decides when the guest is here.
func (d *decision) holderWithGuest() error {
	d.reflect()
	if err := d.started(); err != nil {
		return err
	}
	switch {
	case d.lease.State == handoff.Moving:
		return d.moving()
	case d.torn() && !d.VMI.IsFinal():
		return d.fail("its memory is lost: the post-copy migration that brought it has failed")
	case d.lease.State == handoff.Releasing, d.VMI.IsFinal(), d.VMI.DeletionTimestamp != nil:
		return d.ending()
	case d.lease.State == handoff.Arrived:
		return d.finalize()
	case d.lease.InMove() && d.abortRequested():
		return d.revert("the migration was aborted before it began")
	case d.stopped():
		d.resume("the migration it was stopped for has failed")
		return nil
	case d.lease.State == handoff.Prepared:
		return d.begin()
	}
	return d.keep()
}

// keep looks after a guest that is here and stays.
func (d *decision) keep() error {
	if d.meta.Epoch != d.lease.Epoch {
		d.remember("the lease has a new epoch", func(md *Metadata) { md.Held = false })
	}
	if d.lease.InMove() {
		return nil
	}
	d.wake()
	d.thawInTime()
	return d.converge()
}

// started reports the start done, in the write that first says that the guest runs.
func (d *decision) started() error {
	_, open := d.next.Command(handoff.CommandStart)
	if !open || d.plan.VMI.Status.Phase != v1.Running {
		return nil
	}
	return d.step(handoff.Event{Kind: handoff.Started})
}

// holderWithoutGuest decides when the guest is not there, or has ended.
func (d *decision) holderWithoutGuest() error {
	if d.lease.State == handoff.Moving {
		return d.gone()
	}
	d.complete()
	if d.startable() {
		d.prove()
		if !d.hopeless() {
			if d.hindered(true) {
				return nil
			}
			return d.start()
		}
		d.synchronized()
		d.tell(true, NoticeGuestLost, "the guest cannot be started: "+d.Obstacle.Error())
	}
	if !d.VMI.IsFinal() {
		vmistatus.SetPhase(d.plan.VMI, d.endPhase(), d.now)
		d.crashed()
	}
	if err := d.step(handoff.Event{Kind: handoff.Release, Message: "the guest has ended"}); err != nil {
		return err
	}
	if d.State == nil && d.VMI.Status.Phase == v1.Scheduled {
		// A start that was given up may still come to pass; these wait for it.
		name := Name(d.VMI.Namespace, d.VMI.Name)
		for _, v := range []Verb{Destroy, Undefine} {
			d.do(Task{Verb: TaskApply, Operation: Operation{Verb: v, Domain: name}, Why: "it shall not start any more"})
		}
	}
	d.clear("the guest has ended")
	return nil
}

// gone decides when a guest that is being moved is not here. Even one whose
// domain crashed here may run at the target: the crash may have come after the
// switch.
func (d *decision) gone() error {
	d.mode()
	since := d.now.Sub(d.MoveEnded)
	if d.Moving || d.MoveActive || d.movedAway() && !d.meta.Held && since >= 0 && since < arrival {
		// The target is about to report that it runs the guest. One that is held waits
		// for our word.
		d.again(pollMove)
		return nil
	}
	if d.ranOn() {
		return d.revert("the guest has ended at the source")
	}
	if d.movedAway() && d.VMI.IsMigrationSource() {
		d.left()
		return nil
	}
	return d.stall()
}

// startable tells whether the guest is still to be started: the start is open, and
// the hypervisor, which is the ledger of what was begun, has nothing of it, a
// domain that is defined and was cut short there, or one that failed to start.
func (d *decision) startable() bool {
	if d.VMI.DeletionTimestamp != nil || d.VMI.Status.Phase != v1.Scheduled || !d.lease.MayStart(d.Node) {
		return false
	}
	if d.State == nil {
		return true
	}
	if d.State.Status != StatusShutoff {
		return false
	}
	switch d.State.Reason {
	case ReasonUnknown, ReasonFailed, "":
		return true
	}
	return false
}

// hopeless tells whether nothing will make the guest's start possible on this node.
func (d *decision) hopeless() bool { return d.State == nil && errors.Is(d.Obstacle, ErrBroken) }

// endPhase is the final phase of a guest that is not there any more.
func (d *decision) endPhase() v1.VirtualMachineInstancePhase {
	if d.State == nil {
		unwanted := d.VMI.DeletionTimestamp != nil || d.lease.State == handoff.Releasing
		if d.VMI.Status.Phase == v1.Scheduled && unwanted {
			return v1.Succeeded
		}
		return v1.Failed
	}
	if p := Phase(d.VMI, d.State); p == v1.Succeeded || p == v1.Failed {
		return p
	}
	return v1.Failed
}

// movedAway tells whether the hypervisor says that the guest went elsewhere.
func (d *decision) movedAway() bool {
	return d.State != nil && d.State.Reason == ReasonMigrated
}
