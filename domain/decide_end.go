// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"fmt"
	"time"

	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/internal/vmistatus"
)

// Reasons of the notices about a guest's end. NoticeShuttingDown, NoticeDeleted and
// NoticeGuestPanicked are KubeVirt's event reasons.
const (
	// NoticeShuttingDown: the guest was asked to shut down for the first time.
	NoticeShuttingDown = "ShuttingDown"
	// NoticeDeleted: the guest is ended without being asked.
	NoticeDeleted = "Deleted"
	// NoticeGuestPanicked: the guest's kernel has panicked.
	NoticeGuestPanicked = "GuestPanicked"
	// NoticeGuestCrashed: the guest's process has crashed, or ended because the
	// guest did.
	NoticeGuestCrashed = "GuestCrashed"
	// NoticeGuestLost: a part of the guest is lost, so that it cannot go on.
	NoticeGuestLost = "GuestLost"
)

// ending brings a guest that is not wanted any more to its end. That it shall end
// is stored first, and from then on not taken back. One whose object is being deleted is
// asked to shut down even if the object is final, as in KubeVirt: its disks are as much in
// use as those of any other. One that has lost its memory cannot be asked.
func (d *decision) ending() error {
	why, left := "the lease says so", d.grace()
	atOnce := d.VMI.IsFinal() && (d.VMI.DeletionTimestamp == nil || d.torn())
	switch {
	case atOnce:
		why, left = "the VirtualMachineInstance is final", 0
	case d.VMI.DeletionTimestamp != nil:
		why = "the VirtualMachineInstance is being deleted"
	}
	if d.lease.InMove() {
		return d.revert(why)
	}
	d.complete()
	if d.lease.State != handoff.Releasing {
		if err := d.step(handoff.Event{Kind: handoff.Stop, Within: left + endWithin}); err != nil {
			return err
		}
	}
	if atOnce || d.lease.State == handoff.Releasing && d.lease.Overdue(d.now) {
		d.destroy(why)
		return nil
	}
	d.shutdown(left, why)
	return nil
}

// fail ends a guest that cannot go on, without asking it, and says so first.
func (d *decision) fail(why string) error {
	if d.lease.InMove() {
		return d.revert(why)
	}
	d.complete()
	if d.lease.State != handoff.Releasing {
		if err := d.step(handoff.Event{Kind: handoff.Stop, Within: endWithin}); err != nil {
			return err
		}
	}
	vmistatus.SetPhase(d.plan.VMI, v1.Failed, d.now)
	d.tell(true, NoticeGuestLost, "the guest cannot go on: "+why)
	d.destroy(why)
	return nil
}

// torn tells whether the guest's memory is spread over two nodes that have lost
// each other.
func (d *decision) torn() bool {
	return d.State.Alive() && d.State.Reason == ReasonPostcopyFailed
}

// silent decides while the hypervisor does not answer about the domain: what was
// known of it before proves nothing. A guest that is not wanted any more is still
// ended, once its time is up; all else waits.
func (d *decision) silent() error {
	d.again(obstacleRetry)
	if d.plan.Role != RoleHolder && d.plan.Role != RoleOffered || d.lease.State == handoff.Lost {
		return nil
	}
	why := fmt.Sprintf("the hypervisor of node %s does not answer about the guest since %s", d.Node, d.SilentSince.UTC().Format(time.RFC3339))
	if d.Obstacle != nil {
		why += ": " + d.Obstacle.Error()
	}
	d.outOfSync(ReasonUnresponsive, why)
	if d.State == nil {
		return nil
	}
	unwanted := d.VMI.IsFinal() || d.VMI.DeletionTimestamp != nil
	switch {
	case d.lease.State == handoff.Releasing && d.lease.Overdue(d.now):
		d.destroy("it does not answer, and its time is up")
	case unwanted && (d.lease.State == handoff.Owned || d.lease.State == handoff.Arrived):
		return d.step(handoff.Event{Kind: handoff.Stop, Within: d.grace() + endWithin})
	}
	return nil
}

// destroy ends the guest at once.
func (d *decision) destroy(why string) {
	d.tell(false, NoticeDeleted, "the guest is stopped at once: "+why)
	d.apply(Destroy, why)
	d.again(time.Second)
}

// crashed tells of a guest that ended by a crash.
func (d *decision) crashed() {
	switch {
	case d.State == nil:
	case d.State.Reason == ReasonPanicked:
		d.tell(true, NoticeGuestPanicked, "the guest has panicked")
	case d.State.Reason == ReasonCrashed, d.State.Status == StatusCrashed:
		d.tell(true, NoticeGuestCrashed, "the guest's process has ended by a crash")
	}
}

// shutdown asks the guest to power off, repeats that until it begins to, and ends
// it when its time is up. Both times are stored in the domain before each request,
// so that a restarted agent does not begin anew.
func (d *decision) shutdown(grace time.Duration, why string) {
	deadline := d.now.Add(grace)
	first := d.meta.GraceDeadline == nil
	// A deadline further away than it can have been set tells of a clock that
	// was put back.
	if !first && d.meta.GraceDeadline.Sub(d.now) <= max(grace, 0) {
		deadline = *d.meta.GraceDeadline
	}
	left := deadline.Sub(d.now)
	if left <= 0 {
		d.destroy(why + "; its grace period is over")
		return
	}
	under := d.State.Status == StatusShuttingDown
	if under && !first {
		d.again(left)
		return
	}
	if d.meta.ShutdownAt != nil {
		if waited := d.now.Sub(*d.meta.ShutdownAt); waited >= 0 && waited < resendAfter {
			d.again(min(left, resendAfter-waited))
			return
		}
	}
	d.remember(why, func(m *Metadata) { m.GraceDeadline, m.ShutdownAt = &deadline, &d.now })
	if first {
		d.tell(false, NoticeShuttingDown, fmt.Sprintf("the guest is asked to shut down and has until %s", deadline.UTC().Format(time.RFC3339)))
	}
	if under {
		d.again(left)
		return
	}
	d.press(why)
	d.again(min(left, resendAfter))
}

// press asks the guest to power off, in a state in which it can.
func (d *decision) press(why string) {
	if d.State.Status == StatusPaused {
		d.apply(Resume, "a paused guest cannot shut down")
	}
	d.apply(Shutdown, why)
	if d.frozen() && AgentConnected(d.State.Domain) {
		d.do(Task{Verb: TaskThaw, Why: "a guest that cannot write cannot shut down"})
	}
}

// grace is how long the guest may take to shut down: as its spec says, else as it
// was started with.
func (d *decision) grace() time.Duration {
	if s := d.VMI.Spec.TerminationGracePeriodSeconds; s != nil {
		return time.Duration(*s) * time.Second
	}
	if d.meta.GracePeriod != nil {
		return *d.meta.GracePeriod
	}
	return DefaultGrace
}
