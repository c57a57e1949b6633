// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"time"

	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/action"
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
	// settleRetry is that interval for what the Pods of the VMI are about to provide.
	settleRetry = time.Second
)

// holder decides for the node that holds the VMI.
type holder struct{ *decision }

// decide picks what the domain, and a migration under way, ask for.
func (d holder) decide() error {
	if d.lease.State == handoff.Lost {
		// Neither report on the VMI nor act on it before the lease confirms that it still is
		// this node's.
		return d.step(handoff.Event{Kind: handoff.Return, Within: d.returnWithin()})
	}
	// Ahead of everything else: a domain that has left must not be taken for one that has ended, which
	// would release the lease while the domain runs at the target.
	if departure(d).departed() {
		return departure(d).leave()
	}
	// The name of a domain follows from the VMI's, so one that an earlier VMI or an earlier epoch has
	// left here stands in the way, and is not the one to be started.
	if command, open := d.lease.Command(handoff.CommandStart); open && d.State != nil && !d.begun(command.Epoch) {
		d.clear("a domain of an earlier handoff exists")
		d.requeueAfter(pollMigration)
		return nil
	}
	if d.State == nil || !d.State.Alive() {
		return d.withoutGuest()
	}
	return d.withGuest()
}

// returnWithin returns the new time limit of the step that was interrupted by the loss of the
// node; zero is the default.
func (d holder) returnWithin() time.Duration {
	switch d.lease.Was {
	case handoff.Releasing:
		return d.grace() + endWithin
	case handoff.Moving:
		// The copied disks are not known yet.
		return max(source(d).migrateWithin(), handoff.DefaultMoveWithin)
	}
	return 0
}

// withGuest decides when the domain runs here.
func (d holder) withGuest() error {
	report(d).reflect()
	if err := d.started(); err != nil {
		return err
	}
	switch {
	case d.lease.State == handoff.Moving:
		return source(d).moving()
	// The order of the cases is that of precedence. A migration comes before the end of the VMI:
	// where the domain is at the end of it, there it can be stopped.
	case d.torn() && !d.VMI.IsFinal():
		return ending(d).fail("its post-copy migration has failed, part of its memory is lost")
	case d.lease.State == handoff.Releasing, d.VMI.IsFinal(), d.VMI.DeletionTimestamp != nil:
		return ending(d).ending()
	case d.lease.State == handoff.Arrived:
		return finalization(d).finalize()
	case d.lease.InMove() && source(d).abortRequested():
		return source(d).revert("migration was aborted before it started")
	case pause(d).stopped():
		pause(d).resume("the migration that paused it has failed")
		return nil
	case d.lease.State == handoff.Prepared:
		return source(d).begin()
	}
	return d.keep()
}

// keep maintains a domain that runs here and stays.
func (d holder) keep() error {
	if d.meta.Epoch != d.lease.Epoch {
		d.remember("the lease has a new epoch", func(md *domain.Metadata) { md.Held = false })
	}
	if d.lease.InMove() {
		return nil
	}
	// During a migration the domain is the hypervisor's: resumed, thawed or changed now, it would
	// arrive in a state that the target was not prepared for.
	pause(d).wake()
	pause(d).thawInTime()
	return convergence(d).converge()
}

// started marks the start command as done, in the write that first sets phase Running.
func (d holder) started() error {
	_, open := d.next.Command(handoff.CommandStart)
	if !open || d.plan.VMI.Status.Phase != v1.Running {
		return nil
	}
	return d.step(handoff.Event{Kind: handoff.Started})
}

// withoutGuest decides when there is no domain, or it has ended.
func (d holder) withoutGuest() error {
	if d.lease.State == handoff.Moving {
		return d.gone()
	}
	finalization(d).complete()
	// No domain before the first start and no domain after the end look alike. What distinguishes them
	// is the open start command of the lease, which the write that sets phase Running closes.
	if d.startable() {
		d.prove()
		offer(d).defined()
		if !d.hopeless() {
			if report(d).hindered(true) {
				return nil
			}
			return offer(d).start()
		}
		report(d).synchronized()
		ending(d).failed(vmistatus.ReasonGuestLost, "The VirtualMachineInstance cannot be started: "+d.PrepareError.Error())
	}
	if !d.VMI.IsFinal() {
		vmistatus.SetPhase(d.plan.VMI, d.endPhase(), d.now)
		ending(d).crashed()
	}
	if err := d.step(handoff.Event{Kind: handoff.Release, Message: "the domain has ended"}); err != nil {
		return err
	}
	if d.State == nil && d.VMI.Status.Phase == v1.Scheduled {
		// A start whose caller has given up may still happen; these wait for it.
		name := domain.Name(d.VMI.Namespace, d.VMI.Name)
		for _, v := range []domain.Verb{domain.Destroy, domain.Undefine} {
			d.do(action.Action{Verb: action.Apply, Operation: domain.Operation{Verb: v, Domain: name}, Why: "a pending start must not complete"})
		}
	}
	// The lease is released in the write before these actions: by then the domain has ended, or, if it
	// was never seen, the actions above wait for a start that is still under way.
	d.clear("the domain has ended")
	return nil
}

// gone decides when the domain of a VMI that migrates does not run here. Even if it has
// crashed here it may run at the target: the crash may have come after the switch.
func (d holder) gone() error {
	source(d).mode()
	since := d.now.Sub(d.MigrationEnded)
	if d.Migrating || d.MigrationActive || d.migratedAway() && !d.meta.Held && since >= 0 && since < arrival {
		// The target is about to report that it runs the domain. A held one waits for Stall.
		d.requeueAfter(pollMigration)
		return nil
	}
	// From here on the hypervisor has no migration of it any more. Only what it reports about the end
	// says whether the domain can be at the target; where it says nothing, the target is asked (Stall).
	if d.ranOn() {
		return source(d).revert("the domain has ended at the source")
	}
	if d.migratedAway() && d.VMI.IsMigrationSource() {
		departure(d).left()
		return nil
	}
	return source(d).stall()
}

// startable reports whether the VMI is still to be started: the start command is open, and the
// hypervisor, which is the record of attempts, has no domain, one that was only defined, or
// one that failed to start.
func (d holder) startable() bool {
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

// endPhase returns the final phase of a VMI whose domain has ended.
func (d holder) endPhase() v1.VirtualMachineInstancePhase {
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

// migratedAway reports whether the hypervisor states that the domain has migrated.
func (d holder) migratedAway() bool {
	return d.State != nil && d.State.Reason == domain.ReasonMigrated
}
