// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"time"

	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/action"
	"github.com/virtloom/virtloom/domain/status"
	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/internal/vmistatus"
)

// Reasons of the events about the end of a VMI, KubeVirt's. Those of package vmistatus are stored as status.reason, too.
const (
	// eventShuttingDown: the first graceful shutdown was requested.
	eventShuttingDown = "ShuttingDown"
	// eventDeleted: the domain is force-stopped.
	eventDeleted = "Deleted"
)

// ending stops a domain: gracefully, by force, or because it has ended by itself.
type ending struct{ *decision }

// ending stops the domain of a VMI that is to end. The lease is Releasing first, which is
// irrevocable. A VMI that is being deleted is shut down gracefully even if it is final, as in
// KubeVirt, since its disks are in use like those of any other. A domain that has lost part of
// its memory cannot react.
func (d ending) ending() error {
	why, left := "the lease is Releasing", d.grace()
	atOnce := d.VMI.IsFinal() && (d.VMI.DeletionTimestamp == nil || d.torn())
	switch {
	case atOnce:
		why, left = "the VirtualMachineInstance is final", 0
	case d.VMI.DeletionTimestamp != nil:
		why = "the VirtualMachineInstance is being deleted"
	}
	if d.lease.InMove() {
		return source(d).revert(why)
	}
	finalization(d).complete()
	if d.lease.State != handoff.Releasing {
		if err := d.step(handoff.Event{Kind: handoff.Stop, Within: left + endWithin}); err != nil {
			return err
		}
	}
	// Two clocks may end the patience: the deadline in the metadata, which shutdown watches, and that
	// of the lease, which holds even if the metadata is lost or the hypervisor was out of reach.
	if atOnce || d.lease.State == handoff.Releasing && d.lease.Overdue(d.now) {
		d.destroy(why)
		return nil
	}
	d.shutdown(left, why)
	return nil
}

// fail force-stops a domain that cannot continue, once phase Failed is stored.
func (d ending) fail(why string) error {
	if d.lease.InMove() {
		return source(d).revert(why)
	}
	finalization(d).complete()
	if d.lease.State != handoff.Releasing {
		if err := d.step(handoff.Event{Kind: handoff.Stop, Within: endWithin}); err != nil {
			return err
		}
	}
	// The phase is stored in the same write as the lease, and before the domain is destroyed: an
	// agent that crashes in between finds a final VMI, and does not start the domain again.
	vmistatus.SetPhase(d.plan.VMI, v1.Failed, d.now)
	d.failed(vmistatus.ReasonGuestLost, "The VirtualMachineInstance cannot continue: "+why)
	d.destroy(why)
	return nil
}

// silent decides while the hypervisor does not answer about the domain: its last known state
// is no evidence. A VMI that is to end is still force-stopped once its deadline has passed;
// all else waits.
func (d ending) silent() error {
	d.requeueAfter(prepareRetry)
	if d.plan.Role != handoff.RoleHolder && d.plan.Role != handoff.RoleOffered || d.lease.State == handoff.Lost {
		return nil
	}
	why := fmt.Sprintf("hypervisor of node %s has not answered about the domain since %s", d.Node, d.SilentSince.UTC().Format(time.RFC3339))
	if d.PrepareError != nil {
		why += ": " + d.PrepareError.Error()
	}
	report(d).outOfSync(status.ReasonUnresponsive, why)
	if d.State == nil {
		return nil
	}
	// Destroy goes to the same hypervisor that does not answer. It is a request without effect, or one
	// that works although questions do not, as with a monitor that hangs; either is safe, because the
	// lease is Releasing, and no node will start the domain on another node before it is Released.
	unwanted := d.VMI.IsFinal() || d.VMI.DeletionTimestamp != nil
	switch {
	case d.lease.State == handoff.Releasing && d.lease.Overdue(d.now):
		d.destroy("the hypervisor does not answer and the deadline has passed")
	case unwanted && (d.lease.State == handoff.Owned || d.lease.State == handoff.Arrived):
		return d.step(handoff.Event{Kind: handoff.Stop, Within: d.grace() + endWithin})
	}
	return nil
}

// destroy force-stops the domain.
func (d ending) destroy(why string) {
	d.emit(false, eventDeleted, "Signaled Deletion, force-stopping the VirtualMachineInstance: "+why)
	d.apply(domain.Destroy, why)
	d.requeueAfter(time.Second)
}

// failed emits an event about the failure of the VMI, and stores its reason in status.reason unless there is one.
func (d ending) failed(reason, message string) {
	d.emit(true, reason, message)
	if s := &d.plan.VMI.Status; s.Reason == "" {
		s.Reason = reason
	}
}

// crashed reports a domain that has crashed.
func (d ending) crashed() {
	switch {
	case d.State == nil:
	case d.State.Reason == domain.ReasonPanicked:
		d.failed(vmistatus.ReasonGuestPanicked, "Guest panicked")
	case d.State.Reason == domain.ReasonCrashed, d.State.Status == domain.StatusCrashed:
		d.failed(vmistatus.ReasonGuestCrashed, "The VirtualMachineInstance crashed.")
	}
}

// shutdown requests a graceful shutdown, repeats the request until the guest complies, and
// force-stops the domain at the deadline. Both times are stored in its metadata before each
// request, so that a restarted agent does not start over.
func (d ending) shutdown(grace time.Duration, why string) {
	// The first request fixes the deadline, and a longer grace period set later does not move it:
	// what KubeVirt promised to the one who deleted the object holds.
	deadline := d.now.Add(grace)
	first := d.meta.GraceDeadline == nil
	// A deadline further away than the grace period means that the clock was set back.
	if !first && d.meta.GraceDeadline.Sub(d.now) <= max(grace, 0) {
		deadline = *d.meta.GraceDeadline
	}
	left := deadline.Sub(d.now)
	if left <= 0 {
		d.destroy(why + "; its grace period has expired")
		return
	}
	under := d.State.Status == domain.StatusShuttingDown
	if under && !first {
		d.requeueAfter(left)
		return
	}
	if d.meta.ShutdownAt != nil {
		if waited := d.now.Sub(*d.meta.ShutdownAt); waited >= 0 && waited < resendAfter {
			d.requeueAfter(min(left, resendAfter-waited))
			return
		}
	}
	// Stored first, requested second. After a crash in between the guest has been asked one time
	// less than the metadata says, and is asked again after resendAfter; the other way round, it
	// would get a new grace period with each crash.
	d.remember(why, func(m *domain.Metadata) { m.GraceDeadline, m.ShutdownAt = &deadline, &d.now })
	if first {
		d.emit(false, eventShuttingDown, fmt.Sprintf("Signaled Graceful Shutdown, deadline %s", deadline.UTC().Format(time.RFC3339)))
	}
	if under {
		d.requeueAfter(left)
		return
	}
	d.press(why)
	d.requeueAfter(min(left, resendAfter))
}

// press requests the shutdown, after resuming a paused domain.
func (d ending) press(why string) {
	// Its CPUs have to run to see the power button. Whoever ends a VMI has paused it for the last time.
	if d.State.Status == domain.StatusPaused {
		d.apply(domain.Resume, "a paused domain cannot shut down")
	}
	d.apply(domain.Shutdown, why)
	if d.frozen() && status.AgentConnected(d.State.Domain) {
		d.do(action.Action{Verb: action.Thaw, Why: "a guest with frozen file systems cannot shut down"})
	}
}
