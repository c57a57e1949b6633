// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"time"

	"github.com/virtloom/virtloom/handoff"
)

const (
	// firstRetry and lastRetry bound how long a guest that was stopped by an error of
	// a disk is left alone before it is resumed again; the time doubles in between.
	firstRetry = 10 * time.Second
	lastRetry  = 3 * time.Minute
	// quietAfter is how long a guest has to run after that to count as well again.
	quietAfter = 30 * time.Second
	// agentRetry is when an agent that is not there is looked for again.
	agentRetry = 10 * time.Second
)

// stopped tells whether the guest stands still for a migration that is over, and
// nobody else wants it to.
func (d *decision) stopped() bool {
	return d.State.Status == StatusPaused && d.State.Reason == ReasonMigration &&
		!d.Moving && !d.MoveActive && !d.meta.Paused
}

// wake lets a guest go on that stands still without having been asked to. Only
// the node that owns it, outside of any move, may do so: else it might run twice.
// Pauses in which somebody is at work, or from which there is no way on, are left
// alone.
func (d *decision) wake() {
	if d.State.Status != StatusPaused {
		d.settle()
		return
	}
	if d.meta.Paused || d.lease.State != handoff.Owned || d.Moving || d.MoveActive {
		return
	}
	switch d.State.Reason {
	case ReasonUser, ReasonUnknown, "":
		d.resume("nobody has asked for it to be paused")
	case ReasonIOError:
		d.retry()
	}
}

// retry resumes a guest that was stopped by an error of a disk: at once for the
// first time, then after a while that grows. The while is kept in the domain, so
// that a restarted agent does not hurry.
func (d *decision) retry() {
	delay := d.meta.ResumeDelay
	if at := d.meta.ResumedAt; at != nil {
		since := d.now.Sub(*at)
		switch {
		case since < 0, since > delay+quietAfter:
			delay = 0 // the clock was put back, or nobody has looked for long
		case since < delay:
			d.again(delay - since)
			return
		}
	}
	next := min(max(2*delay, firstRetry), lastRetry)
	d.remember("when it was resumed is kept", func(m *Metadata) { m.ResumedAt, m.ResumeDelay = &d.now, next })
	d.resume("the disk may work again")
}

// settle forgets about errors of disks once the guest has run for a while.
func (d *decision) settle() {
	at := d.meta.ResumedAt
	if at == nil {
		return
	}
	if since := d.now.Sub(*at); since >= 0 && since <= quietAfter {
		d.again(quietAfter - since + time.Second)
		return
	}
	d.remember("its disks work", func(m *Metadata) { m.ResumedAt, m.ResumeDelay = nil, 0 })
}

// resume lets the guest's CPUs run, and looks whether they do.
func (d *decision) resume(why string) {
	d.apply(Resume, why)
	d.syncTime("it stood still")
	d.again(time.Second)
}

// syncTime sets the clock of a guest that stood still, if its agent is there.
func (d *decision) syncTime(why string) {
	if AgentConnected(d.State.Domain) {
		d.do(Task{Verb: TaskSyncTime, Why: why})
	}
}

// frozen tells whether the guest's file systems are frozen, as far as is known.
func (d *decision) frozen() bool {
	return d.meta.ThawAt != nil || d.Guest != nil && d.Guest.Frozen
}

// thawInTime releases frozen file systems that nobody has released within the time
// that was set for it.
func (d *decision) thawInTime() {
	at := d.meta.ThawAt
	switch {
	case at == nil:
		return
	case at.After(d.now):
		d.again(at.Sub(d.now))
		return
	case !AgentConnected(d.State.Domain):
		d.again(agentRetry)
		return
	}
	d.do(Task{Verb: TaskThaw, Why: "nobody has thawed its file systems in time"})
	d.remember("its file systems are thawed", func(m *Metadata) { m.ThawAt = nil })
}
