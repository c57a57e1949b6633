// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"fmt"
	"net"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
)

// libvirtSocketPort is the value KubeVirt gives, in the map of a migration
// target's ports, to the one that leads to libvirt's own socket.
const libvirtSocketPort = 0

// begin stores that the guest starts to move, then lets it.
func (d *decision) begin() error {
	m := d.plan.VMI.Status.MigrationState
	if m == nil || m.TargetNodeAddress == "" {
		return nil
	}
	if d.Obstacle != nil {
		// Without knowing the guest's disks there is no telling which must travel.
		return d.revert("the guest's disks cannot be looked at: " + d.Obstacle.Error())
	}
	uri, err := destination(m)
	if err != nil {
		return d.revert(err.Error())
	}
	if err := d.step(handoff.Event{Kind: handoff.Begin, Within: d.moveWithin(m)}); err != nil {
		return err
	}
	command, _ := d.next.Command(handoff.CommandMigrateOut)
	now := metav1.NewTime(d.now)
	m.StartTimestamp = &now
	m.Mode = v1.MigrationPreCopy
	d.do(Task{Verb: TaskMigrate, Why: "the target is ready", Command: command, Request: d.request(m, uri)})
	return nil
}

// moveWithin is how long the move may take: what its configuration grants for each
// GiB that travels, of memory and of disks, a begun one included. Zero leaves it
// to the default.
func (d *decision) moveWithin(m *v1.VirtualMachineInstanceMigrationState) time.Duration {
	c := m.VMIMConfigurationOptions
	if c == nil || c.CompletionTimeoutPerGiB == nil || *c.CompletionTimeoutPerGiB <= 0 {
		return 0
	}
	memory, _ := guestMemory(&Conversion{VMI: d.VMI})
	if memory == nil {
		return 0
	}
	gib := (max(memory.Value()+d.CopyBytes, 1)-1)>>30 + 1
	seconds := min(*c.CompletionTimeoutPerGiB, maxMove/gib) * gib
	within := time.Duration(seconds) * time.Second
	if len(d.CopyDisks) > 0 && d.CopyBytes == 0 {
		within = max(within, handoff.DefaultMoveWithin) // who knows how large they are
	}
	return within
}

// maxMove bounds a move in seconds: a year, which is as good as for ever.
const maxMove = 365 * 24 * 60 * 60

// request fills in what the migration's configuration asks for.
func (d *decision) request(m *v1.VirtualMachineInstanceMigrationState, uri string) MigrationRequest {
	r := MigrationRequest{Domain: d.State.Name, DestinationURI: uri, CopyDisks: d.CopyDisks, Unsafe: true}
	r.Paused = d.State.Status == StatusPaused && (d.meta.Paused || d.State.Reason == ReasonUser)
	if c := m.VMIMConfigurationOptions; c != nil {
		if c.BandwidthPerMigration != nil {
			r.BandwidthMiB = mebibytes(*c.BandwidthPerMigration)
		}
		r.AutoConverge = c.AllowAutoConverge != nil && *c.AllowAutoConverge
		if c.MaxDowntimeMs != nil {
			r.MaxDowntime = time.Duration(*c.MaxDowntimeMs) * time.Millisecond
		}
	}
	return r
}

// destination is how the hypervisor here reaches the one at the target.
func destination(m *v1.VirtualMachineInstanceMigrationState) (string, error) {
	for port, to := range m.TargetDirectMigrationNodePorts {
		if to != libvirtSocketPort {
			continue
		}
		if _, err := strconv.ParseUint(port, 10, 16); err != nil {
			return "", fmt.Errorf("status.migrationState.targetDirectMigrationNodePorts: %q is not a port", port)
		}
		if net.ParseIP(m.TargetNodeAddress) == nil {
			return "", fmt.Errorf("status.migrationState.targetNodeAddress: %q is not an IP address", m.TargetNodeAddress)
		}
		return "qemu+tcp://" + net.JoinHostPort(m.TargetNodeAddress, port) + "/system", nil
	}
	return "", fmt.Errorf("status.migrationState.targetDirectMigrationNodePorts names no port of the target's hypervisor")
}

// moving decides for a guest that still runs here while it is being moved.
func (d *decision) moving() error {
	unwanted := d.unwanted()
	switch {
	case d.Moving || d.MoveActive:
		if unwanted != "" {
			command, _ := d.lease.Command(handoff.CommandAbort)
			d.do(Task{Verb: TaskAbort, Why: unwanted, Command: command})
		}
		d.again(pollMove)
		return nil
	case d.lease.Stalled:
		d.again(pollMove) // the target's word decides, whatever it looks like here
		return nil
	case d.handingOver():
		return d.stall()
	case d.justBegun():
		d.again(pollMove)
		return nil
	}
	// No migration is under way and the guest runs here: it did not move.
	why := d.MoveFailure
	if why == "" {
		why = "the migration ended without moving the guest"
	}
	if unwanted != "" {
		why = unwanted + ": " + why
	}
	return d.revert(why)
}

// unwanted says why a move that has begun shall not go on, empty if it shall.
func (d *decision) unwanted() string {
	_, abort := d.lease.Command(handoff.CommandAbort)
	switch {
	case abort || d.abortRequested():
		return "the migration was aborted"
	case d.VMI.DeletionTimestamp != nil:
		return "the VirtualMachineInstance is being deleted"
	case d.lease.Overdue(d.now):
		return "the migration was not done by " + d.lease.Deadline.UTC().Format(time.RFC3339) + ", its deadline"
	}
	return ""
}

// handingOver tells whether the hypervisor stopped the guest for the switch, or
// failed in the middle of it: the guest may run, or have run, elsewhere.
func (d *decision) handingOver() bool {
	if d.State.Status != StatusPaused {
		return false
	}
	switch d.State.Reason {
	case ReasonMigration, ReasonPostcopy, ReasonPostcopyFailed, ReasonStartingUp:
		return true
	}
	return false
}

// justBegun tells whether a migration that another process asked for may not
// have reached the hypervisor yet.
func (d *decision) justBegun() bool {
	m := d.VMI.Status.MigrationState
	if !d.MoveEnded.IsZero() || m == nil || m.StartTimestamp == nil {
		return false
	}
	since := d.now.Sub(m.StartTimestamp.Time)
	return since >= 0 && since < arrival
}

// stall says that this node neither moves nor runs the guest and that only the
// target can tell where it is: a resumed or a failed guest could be a second one.
func (d *decision) stall() error {
	d.again(pollMove)
	if d.lease.Stalled {
		return nil // said already
	}
	return d.step(handoff.Event{Kind: handoff.Stall})
}

// revert keeps the guest here and reports the migration as failed.
func (d *decision) revert(why string) error { return d.stay(handoff.Revert, why) }

// stay ends the move by an event that leaves the guest to its holder.
func (d *decision) stay(kind handoff.Kind, why string) error {
	if err := d.step(handoff.Event{Kind: kind, Message: why}); err != nil {
		return err
	}
	if m := d.plan.VMI.Status.MigrationState; m != nil {
		now := metav1.NewTime(d.now)
		if m.StartTimestamp == nil {
			m.StartTimestamp = &now
		}
		m.EndTimestamp, m.Failed, m.Completed, m.FailureReason = &now, true, true, why
		if m.AbortRequested {
			m.AbortStatus = v1.MigrationAbortSucceeded
		}
	}
	return nil
}

func (d *decision) abortRequested() bool {
	m := d.VMI.Status.MigrationState
	return m != nil && m.AbortRequested
}

// target decides for the node that shall receive the guest.
func (d *decision) target() error {
	switch d.lease.State {
	case handoff.Preparing:
		return d.prepare()
	case handoff.Prepared:
		return nil
	default:
		return d.receive()
	}
}

// prepare reports this node ready once the guest's files are in place.
func (d *decision) prepare() error {
	if d.VMI.DeletionTimestamp != nil || d.VMI.IsFinal() || d.abortRequested() {
		return nil
	}
	if d.Obstacle != nil {
		d.again(obstacleRetry)
		if m := d.plan.VMI.Status.MigrationState; m != nil {
			m.FailureReason = "target not ready: " + d.Obstacle.Error()
		}
		return nil
	}
	if d.State != nil {
		// What is left of an earlier visit must go before the guest can come.
		d.clear("an earlier domain of the guest is in the way")
		d.again(pollMove)
		return nil
	}
	m := d.plan.VMI.Status.MigrationState
	if m == nil {
		return nil
	}
	if err := d.step(handoff.Event{Kind: handoff.Ready}); err != nil {
		return err
	}
	m.TargetNodeAddress = d.Address
	m.TargetDirectMigrationNodePorts = map[string]int{strconv.Itoa(d.Port): libvirtSocketPort}
	m.FailureReason = ""
	return nil
}

// receive takes the guest over once the hypervisor lets it run here, or answers
// whoever has to know where it is.
func (d *decision) receive() error {
	switch {
	case d.arrived():
		return d.takeOver("the guest has arrived")
	case d.lease.Stalled, d.lease.State == handoff.Fenced:
		return d.answer()
	case d.State != nil:
		d.detected()
	}
	return nil
}

// answer says where the guest is when only this node can tell. That it has not
// come is certain where the hypervisor has no domain of the guest, or one that
// failed at the switch: one that stands still may be about to run.
func (d *decision) answer() error {
	switch {
	case d.State == nil:
		return d.decline()
	case d.State.Alive() && d.waits() && d.lease.Overdue(d.now):
		// Nobody passes it the guest any more, and it has run nothing of it.
		d.clear("the guest has not come in time")
		d.again(pollMove)
		return nil
	case d.State.Alive():
		d.detected()
		return nil
	case d.State.Reason == ReasonFailed:
		// The switch failed: the guest never ran here.
		d.clear("the guest did not arrive")
		return d.decline()
	}
	return d.takeOver("the guest has arrived, and ended")
}

// detected says that a domain is here for the guest that comes.
func (d *decision) detected() {
	if m := d.plan.VMI.Status.MigrationState; m != nil {
		m.TargetNodeDomainDetected = true
	}
	d.again(pollMove)
}

// waits tells whether the domain here still waits for the guest.
func (d *decision) waits() bool {
	return d.State.Status == StatusPaused && d.State.Reason == ReasonMigration
}

func (d *decision) decline() error {
	return d.stay(handoff.Decline, "the migration broke off at the switch; the guest has not reached the target")
}

// takeOver makes this node the guest's owner, in one write, which also ends the
// move: nothing waits for its end.
func (d *decision) takeOver(why string) error {
	for _, kind := range []handoff.Kind{handoff.TakeOver, handoff.Finalize} {
		if err := d.step(handoff.Event{Kind: kind}); err != nil {
			return err
		}
	}
	vmi, now := d.plan.VMI, metav1.NewTime(d.now)
	vmi.Status.EvacuationNodeName = ""
	vmi.Status.LauncherContainerImageVersion = ""
	delete(vmi.Labels, v1.OutdatedLauncherImageLabel)
	if m := vmi.Status.MigrationState; m != nil {
		m.TargetNodeDomainDetected = true
		m.TargetNodeDomainReadyTimestamp, m.EndTimestamp, m.Completed = &now, &now, true
	}
	if d.State.Alive() {
		d.reflect()
	}
	d.remember(why, func(*Metadata) {})
	d.syncTime("it stood still at the switch")
	return nil
}

// arrived tells whether the hypervisor has finished the switch to this node.
func (d *decision) arrived() bool {
	if d.State == nil || d.MoveActive {
		return false
	}
	switch d.State.Status {
	case StatusRunning, StatusBlocked, StatusPMSuspended:
		return true
	case StatusPaused:
		switch d.State.Reason {
		case ReasonUser, ReasonIOError, ReasonWatchdog, ReasonCrashed, ReasonPostcopyFailed:
			return true // the last one has run here, ahead of its memory
		}
	}
	return false
}
