// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/action"
	"github.com/virtloom/virtloom/domain/internal/xmlspec"
	"github.com/virtloom/virtloom/domain/migrate"
	"github.com/virtloom/virtloom/domain/status"
	"github.com/virtloom/virtloom/domain/transport"
	"github.com/virtloom/virtloom/handoff"
)

// abortedText begins the failure reason of an aborted migration, as in KubeVirt
// (status.migrationState.failureReason).
const abortedText = "Live migration has been aborted"

// source migrates the VMI to another node.
type source struct{ *decision }

// begin stores that the migration starts, then starts it.
func (d source) begin() error {
	m := d.plan.VMI.Status.MigrationState
	switch {
	case m == nil || m.TargetNodeAddress == "":
		return nil
	case d.Migrating || d.MigrationActive:
		d.requeueAfter(pollMigration) // an earlier migration has not ended
		return nil
	}
	if why := d.refusal(); why != "" {
		return d.revert(why)
	}
	// Everything that can be wrong is found out before Begin: from then on the lease has to be led
	// through Moving to an end, with the target as a party.
	definition, err := status.ReplaceVolumes(d.VMI, d.State.Domain, d.Destinations, d.diskBytes)
	if err != nil {
		return d.revert(err.Error())
	}
	request := d.request()
	request.Definition = definition
	held := d.holds(request)
	request.Paused = request.Paused || held
	// The step is stored before the hypervisor is asked. If the agent crashes in between, the next one
	// finds Moving without a migration in progress and a domain that runs here, and reverts; if it
	// were stored afterwards, a migration could run of which no lease knows.
	if err := d.step(handoff.Event{Kind: handoff.Begin, Within: d.migrateWithin()}); err != nil {
		return err
	}
	command, _ := d.next.Command(handoff.CommandMigrateOut)
	now := metav1.NewTime(d.now)
	m.StartTimestamp = &now
	m.Mode = v1.MigrationPreCopy
	// The metadata migrates with the domain. At the target it says which migration brought it, and
	// whether it has to stay paused until the source confirms that it has let go.
	d.remember("the migration is recorded", func(md *domain.Metadata) { md.MigrationUID, md.Held = d.lease.Tag, held })
	if definition != nil { // its metadata is from before
		if err := d.meta.Put(definition); err != nil {
			return err
		}
	}
	d.do(action.Action{Verb: action.Migrate, Why: "the target is ready", Command: command, Request: request, Tunnel: d.tunnel(), To: d.destination()})
	return nil
}

// refusal returns why the migration may not start; empty if it may.
func (d source) refusal() string {
	if d.PrepareError != nil {
		// Without the facts of the disks it is unknown which have to be copied.
		return "cannot inspect the disks of the VMI: " + d.PrepareError.Error()
	}
	if _, known := d.lease.MoveOutcome(d.lease.Tag); known || d.lease.Tag != "" && d.meta.MigrationUID == d.lease.Tag {
		return fmt.Sprintf("migration %s was attempted before and is not retried; create another migration", d.lease.Tag)
	}
	if c := d.VMI.Status.ChangedBlockTracking; c != nil && c.BackupStatus != nil && !c.BackupStatus.Completed && !c.BackupStatus.Failed {
		return fmt.Sprintf("backup %q of the VMI is in progress (status.changedBlockTracking.backupStatus); wait for its completion", c.BackupStatus.BackupName)
	}
	if err := d.destination().Check(transport.ChannelControl); err != nil {
		return err.Error()
	}
	return ""
}

// destination returns the endpoint that the target has published.
func (d source) destination() transport.Endpoint {
	m := d.VMI.Status.MigrationState
	if m == nil {
		return transport.Endpoint{}
	}
	return transport.Endpoint{Address: m.TargetNodeAddress, Ports: m.TargetDirectMigrationNodePorts}
}

// lastResort is the reserve of a migration beyond the limits of its monitor.
const lastResort = 5 * time.Minute

// migrateWithin returns how long the migration may take before its lease is overdue. Its
// [migrate.Monitor], which knows the progress, ends it long before: this is the extended budget
// of a disrupted migration, the progress timeout and a reserve. Without a budget there is no
// limit.
func (d source) migrateWithin() time.Duration {
	s := migrate.MigrationSettingsOf(d.VMI, d.Migrations)
	memory, _ := xmlspec.GuestMemory(d.VMI)
	bytes := d.CopyBytes
	if memory != nil {
		bytes += memory.Value()
	}
	budget := s.Budget(bytes)
	if budget == 0 {
		return migrate.MaxMove * time.Second
	}
	over := 2.0
	if s.Stall != nil {
		over = max(over, min(s.Stall.Completion, 100))
	}
	within := time.Duration(min(over*budget.Seconds(), migrate.MaxMove))*time.Second + s.ProgressTimeout + lastResort
	if memory == nil || len(d.CopyDisks) > 0 && d.CopyBytes == 0 {
		within = max(within, handoff.DefaultMoveWithin) // their size is unknown
	}
	return min(within, migrate.MaxMove*time.Second)
}

// request returns the request to the hypervisor.
func (d source) request() domain.MigrationRequest {
	s := migrate.MigrationSettingsOf(d.VMI, d.Migrations)
	r := domain.MigrationRequest{
		Domain: d.State.Name, CopyDisks: d.CopyDisks, BandwidthMiB: s.BandwidthMiB, MaxDowntime: s.MaxDowntime,
		AutoConverge: s.AutoConverge, PostCopy: s.PostCopy, Parallel: s.Parallel,
		// Regardless of the settings: writable disks that are not copied are known to be
		// shared, and read-only ones exist at the target. The hypervisor would only check
		// cache modes and the type of the file system.
		Unsafe: true,
	}
	if r.Parallel > 1 {
		r.Compression = s.Compression
	}
	r.Paused = d.State.Status == domain.StatusPaused && (d.meta.Paused || d.State.Reason == domain.ReasonUser)
	return r
}

// diskBytes returns the size of a volume's disk as the guest knows it; 0 if unknown.
func (d source) diskBytes(volume string) int64 {
	if bytes := d.meta.DiskBytes[volume]; bytes > 0 {
		return bytes
	}
	return d.Facts.Disks[volume].Bytes
}

// tunnel returns the VMI's migration as its source sees it.
func (d source) tunnel() transport.Tunnel {
	p := transport.TunnelOf(d.VMI, d.Node)
	p.CopyDisks = len(d.CopyDisks) > 0
	return p
}

// moving decides for a VMI that still runs here during its migration.
func (d source) moving() error {
	d.mode()
	switch {
	case d.Migrating, d.MigrationActive && !d.torn():
		d.watchMigration()
		return nil
	case d.lease.Stalled:
		return d.rejoin() // else the target decides, whatever the state here
	case d.handingOver():
		return d.stall()
	case d.justBegun():
		d.requeueAfter(pollMigration)
		return nil
	}
	// No migration is in progress and the domain runs here: it has not migrated.
	why := d.MigrationFailure
	switch {
	case why != "":
	case d.meta.MigrationUID != d.lease.Tag:
		why = "the migration could not be started"
	default:
		why = "the migration ended without migrating the VMI"
	}
	if unwanted := d.unwanted(); unwanted != "" {
		why = abortedText + ": " + unwanted + ": " + strings.TrimPrefix(why, abortedText+": ")
	}
	return d.revert(why)
}

// watchMigration checks a migration in progress, and aborts it if it must not continue.
func (d source) watchMigration() {
	d.requeueAfter(pollMigration)
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
		status = v1.MigrationAbortFailed // the domain cannot run here any more
	}
	if m != nil && aborted {
		m.AbortStatus = status
	}
	if !d.ahead() {
		d.do(action.Action{Verb: action.Abort, Why: unwanted, Command: command})
	}
}

// mode updates status.migrationState.mode.
func (d source) mode() {
	m := d.plan.VMI.Status.MigrationState
	switch {
	case m == nil || m.Mode == v1.MigrationPostCopy:
	case d.ahead():
		m.Mode = v1.MigrationPostCopy
	case d.MigrationMode != "":
		m.Mode = d.MigrationMode
	}
}

// ahead reports whether the migration has switched to post-copy, so that the domain can run at
// the target only.
func (d source) ahead() bool {
	if d.MigrationMode == v1.MigrationPostCopy || d.Progress != nil && d.Progress.Active && d.Progress.PostCopy {
		return true
	}
	return d.State != nil && (d.State.Reason == domain.ReasonPostcopy || d.State.Reason == domain.ReasonPostcopyFailed)
}

// unwanted returns why a migration in progress must not continue; empty if it may.
func (d source) unwanted() string {
	_, abort := d.lease.Command(handoff.CommandAbort)
	switch {
	case abort || d.abortRequested():
		return "cancellation was requested"
	case d.VMI.DeletionTimestamp != nil:
		return "the VirtualMachineInstance is being deleted"
	case d.lease.Overdue(d.now) && !d.now.Before(d.migrationDeadline()):
		return "migration has exceeded its deadline " + d.migrationDeadline().UTC().Format(time.RFC3339)
	}
	return ""
}

// migrationDeadline returns the deadline of the lease, by the settings at the start of the
// migration, or a later one if the present settings grant more time.
func (d source) migrationDeadline() time.Time {
	at := d.lease.Deadline.Time
	if m := d.VMI.Status.MigrationState; m != nil && m.StartTimestamp != nil {
		if granted := m.StartTimestamp.Add(d.migrateWithin()); granted.After(at) {
			return granted
		}
	}
	return at
}

func (d source) abortRequested() bool {
	m := d.VMI.Status.MigrationState
	return m != nil && m.AbortRequested
}

// handingOver reports whether the hypervisor has paused the domain for the switch, or failed
// during it: the domain may run, or have run, elsewhere.
func (d source) handingOver() bool {
	if d.State.Status != domain.StatusPaused {
		return false
	}
	switch d.State.Reason {
	case domain.ReasonMigration, domain.ReasonPostcopy, domain.ReasonPostcopyFailed, domain.ReasonStartingUp:
		return true
	}
	return false
}

// justBegun reports whether the request of another process for the migration may not have
// reached the hypervisor yet.
func (d source) justBegun() bool {
	m := d.VMI.Status.MigrationState
	if !d.MigrationEnded.IsZero() || m == nil || m.StartTimestamp == nil {
		return false
	}
	since := d.now.Sub(m.StartTimestamp.Time)
	return since >= 0 && since < arrival
}

const (
	// rejoinWithin is how long a post-copy migration without a connection may take to resume
	// before it has failed.
	rejoinWithin = 5 * time.Minute
	// rejoinEvery is the interval of the attempts.
	rejoinEvery = 5 * time.Second
)

// stall stores that this node neither migrates nor runs the domain, so that only the target
// knows where it is: resuming it, or failing the VMI, could lead to a second one.
func (d source) stall() error {
	d.requeueAfter(pollMigration)
	if d.lease.Stalled {
		return nil // stored already
	}
	e := handoff.Event{Kind: handoff.Stall}
	if d.State != nil && d.torn() {
		e.Within = rejoinWithin
	}
	return d.step(e)
}

// rejoin resumes a post-copy migration that has lost its connection: the source, which has the
// rest of the memory, dials the endpoint that the target publishes now. Both nodes follow the
// lease's deadline: until then the source retries, afterwards the target fails the VMI.
func (d source) rejoin() error {
	d.requeueAfter(pollMigration)
	if !d.torn() || d.lease.Overdue(d.now) {
		return nil
	}
	since := d.now.Sub(d.MigrationEnded)
	tried := !d.MigrationEnded.IsZero() && since >= 0 && since < rejoinEvery
	reachable := d.destination().Check(transport.ChannelControl) == nil
	command, open := d.lease.Command(handoff.CommandMigrateOut)
	if tried || !reachable || !open {
		return nil
	}
	request := d.request() // the target has its definition already
	request.Resume = true
	d.do(action.Action{
		Verb: action.Migrate, Why: "the connection was lost after the switch to post-copy", Command: command,
		Request: request, Tunnel: d.tunnel(), To: d.destination(),
	})
	return nil
}

// revert keeps the VMI here and marks the migration as failed.
func (d source) revert(why string) error { return d.stay(handoff.Revert, why) }

// stay ends the migration by an event that leaves the VMI to its holder.
func (d source) stay(kind handoff.Kind, why string) error {
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
