// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"time"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/action"
	"github.com/virtloom/virtloom/domain/status"
	"github.com/virtloom/virtloom/handoff"
)

const (
	// firstRetry and lastRetry bound the delay before a domain that was paused by a disk error
	// is resumed again; the delay doubles in between.
	firstRetry = 10 * time.Second
	lastRetry  = 3 * time.Minute
	// quietAfter is how long the domain has to run after that to count as recovered.
	quietAfter = 30 * time.Second
	// agentRetry is the interval at which a missing guest agent is checked again.
	agentRetry = 10 * time.Second
)

// pause pauses, resumes and thaws the guest.
type pause struct{ *decision }

// stopped reports whether the domain is paused for a migration that is over, and no user has
// paused the VMI.
func (d pause) stopped() bool {
	return d.State.Status == domain.StatusPaused && d.State.Reason == domain.ReasonMigration &&
		!d.Migrating && !d.MigrationActive && !d.meta.Paused
}

// wake resumes a domain that no user has paused. Only the node that owns the VMI, outside of
// any migration, may do so: else it might run twice. Pauses of an operation in progress, and
// those from which the domain cannot continue, are left alone.
func (d pause) wake() {
	if d.State.Status != domain.StatusPaused {
		d.settle()
		return
	}
	if d.meta.Paused || d.lease.State != handoff.Owned || d.Migrating || d.MigrationActive {
		return
	}
	switch d.State.Reason {
	case domain.ReasonUser, domain.ReasonUnknown, "":
		d.resume("no user has paused it")
	case domain.ReasonIOError:
		d.retry()
	}
}

// retry resumes a domain that was paused by a disk error: at once for the first time, then
// with a growing delay. The delay is stored in the metadata, so that a restarted agent keeps
// to it.
func (d pause) retry() {
	delay := d.meta.ResumeDelay
	if at := d.meta.ResumedAt; at != nil {
		since := d.now.Sub(*at)
		switch {
		case since < 0, since > delay+quietAfter:
			delay = 0 // the clock was set back, or the last pass is long ago
		case since < delay:
			d.requeueAfter(delay - since)
			return
		}
	}
	next := min(max(2*delay, firstRetry), lastRetry)
	d.remember("the time of the resume", func(m *domain.Metadata) { m.ResumedAt, m.ResumeDelay = &d.now, next })
	d.resume("retry after a disk error")
}

// settle forgets disk errors once the domain has run for a while.
func (d pause) settle() {
	at := d.meta.ResumedAt
	if at == nil {
		return
	}
	if since := d.now.Sub(*at); since >= 0 && since <= quietAfter {
		d.requeueAfter(quietAfter - since + time.Second)
		return
	}
	d.remember("its disks have recovered", func(m *domain.Metadata) { m.ResumedAt, m.ResumeDelay = nil, 0 })
}

// resume resumes the domain and checks the result in the next pass.
func (d pause) resume(why string) {
	d.apply(domain.Resume, why)
	d.syncTime("the domain was paused")
	d.requeueAfter(time.Second)
}

// syncTime sets the clock of a guest that was paused, if its agent is connected.
func (d pause) syncTime(why string) {
	if status.AgentConnected(d.State.Domain) {
		d.do(action.Action{Verb: action.SyncTime, Why: why})
	}
}

// thawInTime thaws frozen file systems once the time limit of the freeze has expired.
func (d pause) thawInTime() {
	at := d.meta.ThawAt
	switch {
	case at == nil:
		return
	case at.After(d.now):
		d.requeueAfter(at.Sub(d.now))
		return
	case !status.AgentConnected(d.State.Domain):
		d.requeueAfter(agentRetry)
		return
	}
	d.do(action.Action{Verb: action.Thaw, Why: "the time limit of the freeze has expired"})
	d.remember("its file systems are thawed", func(m *domain.Metadata) { m.ThawAt = nil })
}
