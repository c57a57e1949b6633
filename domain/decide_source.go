// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
)

// AbortedText begins the failure reason of a migration that was aborted, as in
// KubeVirt (status.migrationState.failureReason).
const AbortedText = "Live migration has been aborted"

// begin stores that the guest starts to move, then lets it.
func (d *decision) begin() error {
	m := d.plan.VMI.Status.MigrationState
	switch {
	case m == nil || m.TargetNodeAddress == "":
		return nil
	case d.Moving || d.MoveActive:
		d.again(pollMove) // an earlier migration has not ended, whoever began it
		return nil
	}
	if why := d.refusal(); why != "" {
		return d.revert(why)
	}
	definition, err := ReplaceVolumes(d.VMI, d.State.Domain, d.Destinations, d.diskBytes)
	if err != nil {
		return d.revert(err.Error())
	}
	request := d.request()
	request.Definition = definition
	held := d.holds(request)
	request.Paused = request.Paused || held
	if err := d.step(handoff.Event{Kind: handoff.Begin, Within: d.moveWithin()}); err != nil {
		return err
	}
	command, _ := d.next.Command(handoff.CommandMigrateOut)
	now := metav1.NewTime(d.now)
	m.StartTimestamp = &now
	m.Mode = v1.MigrationPreCopy
	d.remember("its migration is noted", func(md *Metadata) { md.MigrationUID, md.Held = d.lease.Tag, held })
	if definition != nil { // which carries what was noted before
		if err := PutMetadata(definition, d.meta); err != nil {
			return err
		}
	}
	d.do(Task{Verb: TaskMigrate, Why: "the target is ready", Command: command, Request: request, Passage: d.passage(), To: d.destination()})
	return nil
}

// refusal says why the guest may not begin to move, empty if it may.
func (d *decision) refusal() string {
	if d.Obstacle != nil {
		// Without knowing the guest's disks there is no telling which must travel.
		return "the guest's disks cannot be looked at: " + d.Obstacle.Error()
	}
	if _, known := d.lease.MoveOutcome(d.lease.Tag); known || d.lease.Tag != "" && d.meta.MigrationUID == d.lease.Tag {
		return fmt.Sprintf("migration %s has been tried before, and is tried once only: create another", d.lease.Tag)
	}
	if c := d.VMI.Status.ChangedBlockTracking; c != nil && c.BackupStatus != nil && !c.BackupStatus.Completed && !c.BackupStatus.Failed {
		return fmt.Sprintf("backup %q of the guest is under way (status.changedBlockTracking.backupStatus): wait for its end", c.BackupStatus.BackupName)
	}
	if err := d.destination().Check(ChannelControl); err != nil {
		return err.Error()
	}
	return ""
}

// destination is where the target has said that it takes the guest.
func (d *decision) destination() Listening {
	m := d.VMI.Status.MigrationState
	if m == nil {
		return Listening{}
	}
	return Listening{Address: m.TargetNodeAddress, Ports: m.TargetDirectMigrationNodePorts}
}

// lastResort is what a move is granted beyond all that its monitor grants it.
const lastResort = 5 * time.Minute

// moveWithin is how long the move may take before it counts as forgotten. Its
// [Monitor], which knows how it comes along, ends it long before: this is twice the
// budget, which is what a disrupted one has, the progress timeout and a reserve. A move
// without a budget may take as long as it likes.
func (d *decision) moveWithin() time.Duration {
	s := MigrationSettingsOf(d.VMI, d.Migrations)
	memory, _ := guestMemory(&Conversion{VMI: d.VMI})
	bytes := d.CopyBytes
	if memory != nil {
		bytes += memory.Value()
	}
	budget := s.Budget(bytes)
	if budget == 0 {
		return maxMove * time.Second
	}
	over := 2.0
	if s.Stall != nil {
		over = max(over, min(s.Stall.Completion, 100))
	}
	within := time.Duration(min(over*budget.Seconds(), maxMove))*time.Second + s.ProgressTimeout + lastResort
	if memory == nil || len(d.CopyDisks) > 0 && d.CopyBytes == 0 {
		within = max(within, handoff.DefaultMoveWithin) // who knows how large they are
	}
	return min(within, maxMove*time.Second)
}

// maxMove bounds a move in seconds: a year, which is as good as for ever.
const maxMove = 365 * 24 * 60 * 60

// request is what the hypervisor is asked for.
func (d *decision) request() MigrationRequest {
	s := MigrationSettingsOf(d.VMI, d.Migrations)
	r := MigrationRequest{
		Domain: d.State.Name, CopyDisks: d.CopyDisks, BandwidthMiB: s.BandwidthMiB, MaxDowntime: s.MaxDowntime,
		AutoConverge: s.AutoConverge, PostCopy: s.PostCopy, Parallel: s.Parallel,
		// Whatever the settings say: what is writable and not copied is known to be
		// shared, and what is read-only is on the target already. The hypervisor would
		// only look at cache modes and the type of the file system.
		Unsafe: true,
	}
	if r.Parallel > 1 {
		r.Compression = s.Compression
	}
	r.Paused = d.State.Status == StatusPaused && (d.meta.Paused || d.State.Reason == ReasonUser)
	return r
}

// diskBytes is how large the guest knows the disk of a volume to be; 0 if that is not
// known.
func (d *decision) diskBytes(volume string) int64 {
	if bytes := d.meta.DiskBytes[volume]; bytes > 0 {
		return bytes
	}
	return d.Facts.Disks[volume].Bytes
}

// passage is the guest's migration as its source sees it.
func (d *decision) passage() Passage {
	p := PassageOf(d.VMI, d.Node)
	p.CopyDisks = len(d.CopyDisks) > 0
	return p
}

// moving decides for a guest that still runs here while it is being moved.
func (d *decision) moving() error {
	d.mode()
	switch {
	case d.Moving, d.MoveActive && !d.torn():
		d.watchMove()
		return nil
	case d.lease.Stalled:
		return d.rejoin() // else the target's word decides, whatever it looks like here
	case d.handingOver():
		return d.stall()
	case d.justBegun():
		d.again(pollMove)
		return nil
	}
	// No migration is under way and the guest runs here: it did not move.
	why := d.MoveFailure
	switch {
	case why != "":
	case d.meta.MigrationUID != d.lease.Tag:
		why = "the migration could not be begun"
	default:
		why = "the migration ended without moving the guest"
	}
	if unwanted := d.unwanted(); unwanted != "" {
		why = AbortedText + ": " + unwanted + ": " + strings.TrimPrefix(why, AbortedText+": ")
	}
	return d.revert(why)
}

// watchMove looks after a move that is under way, and aborts it if it shall not go on.
func (d *decision) watchMove() {
	d.again(pollMove)
	unwanted := d.unwanted()
	if unwanted == "" {
		return
	}
	m, command, aborted := d.plan.VMI.Status.MigrationState, handoff.Command{}, d.abortRequested()
	if c, open := d.lease.Command(handoff.CommandAbort); open {
		command, aborted = c, true
	}
	status := v1.MigrationAbortInProgress
	if d.ahead() {
		status = v1.MigrationAbortFailed // the guest can run here no more
	}
	if m != nil && aborted {
		m.AbortStatus = status
	}
	if !d.ahead() {
		d.do(Task{Verb: TaskAbort, Why: unwanted, Command: command})
	}
}

// mode keeps what kind of copying the object tells of up to date.
func (d *decision) mode() {
	m := d.plan.VMI.Status.MigrationState
	switch {
	case m == nil || m.Mode == v1.MigrationPostCopy:
	case d.ahead():
		m.Mode = v1.MigrationPostCopy
	case d.MoveMode != "":
		m.Mode = d.MoveMode
	}
}

// ahead tells whether the guest has left ahead of its memory (post-copy), so that it
// can run at the target only.
func (d *decision) ahead() bool {
	if d.MoveMode == v1.MigrationPostCopy || d.Progress != nil && d.Progress.Active && d.Progress.PostCopy {
		return true
	}
	return d.State != nil && (d.State.Reason == ReasonPostcopy || d.State.Reason == ReasonPostcopyFailed)
}

// unwanted says why a move that has begun shall not go on, empty if it shall.
func (d *decision) unwanted() string {
	_, abort := d.lease.Command(handoff.CommandAbort)
	switch {
	case abort || d.abortRequested():
		return "somebody has asked for it"
	case d.VMI.DeletionTimestamp != nil:
		return "the VirtualMachineInstance is being deleted"
	case d.lease.Overdue(d.now) && !d.now.Before(d.moveDeadline()):
		return "it was not done by " + d.moveDeadline().UTC().Format(time.RFC3339) + ", its deadline"
	}
	return ""
}

// moveDeadline is the lease's, which goes by the settings that the move began with, or a
// later one if they grant it more time by now.
func (d *decision) moveDeadline() time.Time {
	at := d.lease.Deadline.Time
	if m := d.VMI.Status.MigrationState; m != nil && m.StartTimestamp != nil {
		if granted := m.StartTimestamp.Add(d.moveWithin()); granted.After(at) {
			return granted
		}
	}
	return at
}

func (d *decision) abortRequested() bool {
	m := d.VMI.Status.MigrationState
	return m != nil && m.AbortRequested
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

const (
	// rejoinWithin is how long the two halves of a guest whose post-copy migration has
	// broken may take to find each other again, before it is given up.
	rejoinWithin = 5 * time.Minute
	// rejoinEvery is how often that is tried.
	rejoinEvery = 5 * time.Second
)

// stall says that this node neither moves nor runs the guest and that only the
// target can tell where it is: a resumed or a failed guest could be a second one.
func (d *decision) stall() error {
	d.again(pollMove)
	if d.lease.Stalled {
		return nil // said already
	}
	e := handoff.Event{Kind: handoff.Stall}
	if d.State != nil && d.torn() {
		e.Within = rejoinWithin
	}
	return d.step(e)
}

// rejoin lets a guest whose memory is spread over two nodes that have lost each other
// come together again: the source, which has the rest of it, dials to where the target
// says that it listens by now. Both nodes go by the lease's deadline: until then this
// one tries, and afterwards the target gives the guest up.
func (d *decision) rejoin() error {
	d.again(pollMove)
	if !d.torn() || d.lease.Overdue(d.now) {
		return nil
	}
	since := d.now.Sub(d.MoveEnded)
	tried := !d.MoveEnded.IsZero() && since >= 0 && since < rejoinEvery
	reachable := d.destination().Check(ChannelControl) == nil
	command, open := d.lease.Command(handoff.CommandMigrateOut)
	if tried || !reachable || !open {
		return nil
	}
	request := d.request() // the target has its definition already
	request.Resume = true
	d.do(Task{
		Verb: TaskMigrate, Why: "the connection broke after the switch to post-copy", Command: command,
		Request: request, Passage: d.passage(), To: d.destination(),
	})
	return nil
}

// revert keeps the guest here and reports the migration as failed.
func (d *decision) revert(why string) error { return d.stay(handoff.Revert, why) }

// stay ends the move by an event that leaves the guest to its holder.
func (d *decision) stay(kind handoff.Kind, why string) error {
	_, abort := d.lease.Command(handoff.CommandAbort)
	if err := d.step(handoff.Event{Kind: kind, Message: why}); err != nil {
		return err
	}
	if m := d.plan.VMI.Status.MigrationState; m != nil {
		now := metav1.NewTime(d.now)
		if m.StartTimestamp == nil {
			m.StartTimestamp = &now
		}
		m.EndTimestamp, m.Failed, m.Completed, m.FailureReason = &now, true, true, why
		if m.AbortRequested || abort {
			m.AbortStatus = v1.MigrationAbortSucceeded
		}
	}
	return nil
}
