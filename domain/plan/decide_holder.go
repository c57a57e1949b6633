// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"errors"
	"time"

	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/status"
	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/internal/vmistatus"
)

const (
	// DefaultGrace is the grace period of a VMI without spec.terminationGracePeriodSeconds:
	// KubeVirt's 30 seconds.
	DefaultGrace = 30 * time.Second
	// resendAfter is the interval at which a shutdown request is repeated.
	resendAfter = 5 * time.Second
	// pollMigration is the interval at which a migration of another process is checked.
	pollMigration = time.Second
	// arrival is how long a target may take to report a domain that has left.
	arrival = 5 * time.Second
	// endWithin is how long after the grace period the domain may take to end before the
	// stop is overdue: one call to the hypervisor.
	endWithin = 30 * time.Second
	// prepareRetry is the interval at which a missing resource of the node is checked again,
	// since no event reports it.
	prepareRetry = 5 * time.Second
)

// holder decides for the node that owns the VMI.
func (d *decision) holder() error {
	if d.lease.State == handoff.Lost {
		// Neither report on the VMI nor act on it before the lease confirms that it still is
		// this node's.
		return d.step(handoff.Event{Kind: handoff.Return, Within: d.returnWithin()})
	}
	if d.departed() {
		return d.leave()
	}
	if command, open := d.lease.Command(handoff.CommandStart); open && d.State != nil && !d.begun(command.Epoch) {
		d.clear("a domain of an earlier handoff exists")
		d.requeueAfter(pollMigration)
		return nil
	}
	if d.State == nil || !d.State.Alive() {
		return d.holderWithoutGuest()
	}
	return d.holderWithGuest()
}

// returnWithin returns the new time limit of the step that was interrupted by the loss of the
// node; zero is the default.
func (d *decision) returnWithin() time.Duration {
	switch d.lease.Was {
	case handoff.Releasing:
		return d.grace() + endWithin
	case handoff.Moving:
		// The copied disks are not known yet.
		return max(d.moveWithin(), handoff.DefaultMoveWithin)
	}
	return 0
}

// holderWithGuest decides when the domain runs here.
func (d *decision) holderWithGuest() error {
	d.reflect()
	if err := d.started(); err != nil {
		return err
	}
	switch {
	case d.lease.State == handoff.Moving:
		return d.moving()
	case d.torn() && !d.VMI.IsFinal():
		return d.fail("its post-copy migration has failed, part of its memory is lost")
	case d.lease.State == handoff.Releasing, d.VMI.IsFinal(), d.VMI.DeletionTimestamp != nil:
		return d.ending()
	case d.lease.State == handoff.Arrived:
		return d.finalize()
	case d.lease.InMove() && d.abortRequested():
		return d.revert("migration was aborted before it started")
	case d.stopped():
		d.resume("the migration that paused it has failed")
		return nil
	case d.lease.State == handoff.Prepared:
		return d.begin()
	}
	return d.keep()
}

// keep maintains a domain that runs here and stays.
func (d *decision) keep() error {
	if d.meta.Epoch != d.lease.Epoch {
		d.remember("the lease has a new epoch", func(md *domain.Metadata) { md.Held = false })
	}
	if d.lease.InMove() {
		return nil
	}
	d.wake()
	d.thawInTime()
	return d.converge()
}

// started marks the start command as done, in the write that first sets phase Running.
func (d *decision) started() error {
	_, open := d.next.Command(handoff.CommandStart)
	if !open || d.plan.VMI.Status.Phase != v1.Running {
		return nil
	}
	return d.step(handoff.Event{Kind: handoff.Started})
}

// holderWithoutGuest decides when there is no domain, or it has ended.
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
		d.emit(true, eventGuestLost, "The VirtualMachineInstance cannot be started: "+d.PrepareError.Error())
	}
	if !d.VMI.IsFinal() {
		vmistatus.SetPhase(d.plan.VMI, d.endPhase(), d.now)
		d.crashed()
	}
	if err := d.step(handoff.Event{Kind: handoff.Release, Message: "the domain has ended"}); err != nil {
		return err
	}
	if d.State == nil && d.VMI.Status.Phase == v1.Scheduled {
		// A start whose caller has given up may still happen; these wait for it.
		name := domain.Name(d.VMI.Namespace, d.VMI.Name)
		for _, v := range []domain.Verb{domain.Destroy, domain.Undefine} {
			d.do(domain.Action{Verb: domain.ActionApply, Operation: domain.Operation{Verb: v, Domain: name}, Why: "a pending start must not complete"})
		}
	}
	d.clear("the domain has ended")
	return nil
}

// gone decides when the domain of a VMI that migrates does not run here. Even if it has
// crashed here it may run at the target: the crash may have come after the switch.
func (d *decision) gone() error {
	d.mode()
	since := d.now.Sub(d.MoveEnded)
	if d.Moving || d.MoveActive || d.movedAway() && !d.meta.Held && since >= 0 && since < arrival {
		// The target is about to report that it runs the domain. A held one waits for Stall.
		d.requeueAfter(pollMigration)
		return nil
	}
	if d.ranOn() {
		return d.revert("the domain has ended at the source")
	}
	if d.movedAway() && d.VMI.IsMigrationSource() {
		d.left()
		return nil
	}
	return d.stall()
}

// startable reports whether the VMI is still to be started: the start command is open, and the
// hypervisor, which is the record of attempts, has no domain, one that was only defined, or
// one that failed to start.
func (d *decision) startable() bool {
	if d.VMI.DeletionTimestamp != nil || d.VMI.Status.Phase != v1.Scheduled || !d.lease.MayStart(d.Node) {
		return false
	}
	if d.State == nil {
		return true
	}
	if d.State.Status != domain.StatusShutoff {
		return false
	}
	switch d.State.Reason {
	case domain.ReasonUnknown, domain.ReasonFailed, "":
		return true
	}
	return false
}

// hopeless reports whether a start on this node can never succeed.
func (d *decision) hopeless() bool {
	return d.State == nil && errors.Is(d.PrepareError, domain.ErrBroken)
}

// endPhase returns the final phase of a VMI whose domain has ended.
func (d *decision) endPhase() v1.VirtualMachineInstancePhase {
	if d.State == nil {
		unwanted := d.VMI.DeletionTimestamp != nil || d.lease.State == handoff.Releasing
		if d.VMI.Status.Phase == v1.Scheduled && unwanted {
			return v1.Succeeded
		}
		return v1.Failed
	}
	if p := status.Phase(d.VMI, d.State); p == v1.Succeeded || p == v1.Failed {
		return p
	}
	return v1.Failed
}

// movedAway reports whether the hypervisor states that the domain has migrated.
func (d *decision) movedAway() bool {
	return d.State != nil && d.State.Reason == domain.ReasonMigrated
}
