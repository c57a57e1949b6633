// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"fmt"
	"time"

	v1 "kubevirt.io/api/core/v1"
)

// MonitorEvery is how often a running migration is looked at, as in KubeVirt.
const MonitorEvery = 400 * time.Millisecond

// MigrationAction is what a [Monitor] asks for.
type MigrationAction string

// The actions.
const (
	// Carry on: nothing is to be done.
	Carry MigrationAction = ""
	// AbortMove: the migration shall be aborted ([Migrator.AbortMigration]).
	AbortMove MigrationAction = "Abort"
	// SwitchToPostCopy: the guest shall run at the target now ([PostCopier]).
	SwitchToPostCopy MigrationAction = "SwitchToPostCopy"
	// PauseGuest: the guest shall be suspended, so that it writes no more.
	PauseGuest MigrationAction = "Pause"
	// RaiseDowntime: the guest may stand still for longer at the switch
	// ([MigrationTuner]).
	RaiseDowntime MigrationAction = "RaiseDowntime"
)

// Advice is what a [Monitor] has to say about a migration.
type Advice struct {
	// Action is what to do now. It is repeated until it shows in what is observed, or
	// is refused; see [Monitor.Refuse].
	Action MigrationAction
	// Why explains the action in a sentence without a capital or a full stop.
	Why string
	// MaxDowntime is for RaiseDowntime.
	MaxDowntime time.Duration
	// Mode is what to report as status.migrationState.mode.
	Mode v1.MigrationMode
}

// Monitor watches one running migration and says when it must be helped or ended. It
// reads no clock and does nothing itself; it is not safe for concurrent use. One that
// was made anew for a migration under way, after a restart, gives it its progress
// timeout again and keeps to its budget, which counts from the start of the job.
//
// With a budget every migration ends: it is aborted at twice the budget at the latest
// (or [StallSettings.Completion] times), unless the guest runs at the target by then.
type Monitor struct {
	// Settings are the migration's.
	Settings MigrationSettings
	// Bytes is how much there is to travel: memory, and the disks that are copied.
	Bytes int64
	// Passthrough says that the guest has a device of the host (VFIO), with which
	// there is no post-copy.
	Passthrough bool
	// Disrupted says that a monitor before this one has made the guest pay for the end
	// (status.migrationState.mode is Paused).
	Disrupted bool

	first    time.Time // when the migration was looked at first
	pass     pass
	sent     uint64    // that was processed, as seen last
	sentAt   time.Time // when it was seen to grow
	throttle int       // the most the guest was slowed down
	stood    bool      // the guest was seen to stand still last

	paused  bool      // it was seen to stand still after that was asked for
	raised  time.Time // when a longer standstill was asked for last
	stall   stall
	refused map[MigrationAction]bool
}

// raiseEvery is how often a longer standstill is asked for: it does not show in what is
// observed whether the hypervisor has allowed it.
const raiseEvery = 10 * time.Second

// Observe takes note of how far the migration has come and says what to do.
// guestPaused tells whether the guest's CPUs stand still.
func (m *Monitor) Observe(p Progress, guestPaused bool, now time.Time) Advice {
	m.note(p, guestPaused, now)
	if p.PostCopy {
		return Advice{Mode: v1.MigrationPostCopy} // there is no way back
	}
	a := m.decide(p, guestPaused, now)
	a.Mode = v1.MigrationPreCopy
	if m.Disrupted {
		a.Mode = v1.MigrationPaused
	}
	return a
}

// Refuse says that the hypervisor cannot do what was asked, so that it is not asked
// again and the next best is.
func (m *Monitor) Refuse(a MigrationAction) {
	if m.refused == nil {
		m.refused = map[MigrationAction]bool{}
	}
	m.refused[a] = true
	m.raised, m.stall.helped, m.paused = time.Time{}, time.Time{}, false
}

// budget is how long the migration may take, and how long if the guest pays for its end;
// zero is without limit.
func (m *Monitor) budget() (plain, extended time.Duration) {
	plain = m.Settings.Budget(m.Bytes)
	factor := 2.0
	if m.Settings.Stall != nil {
		factor = max(m.Settings.Stall.Completion, 1)
	}
	return plain, times(plain, factor)
}

// times is a year at most.
func times(d time.Duration, factor float64) time.Duration {
	return time.Duration(min(float64(d)*factor, maxMove*float64(time.Second)))
}

// elapsed is what the hypervisor says, or what was seen here if that is more.
func (m *Monitor) elapsed(p Progress, now time.Time) time.Duration {
	return max(p.Elapsed, now.Sub(m.first))
}

// decide goes through the reasons to act, in KubeVirt's order.
func (m *Monitor) decide(p Progress, guestPaused bool, now time.Time) Advice {
	plain, extended := m.budget()
	elapsed := m.elapsed(p, now)
	allowed := m.Settings.AllowWorkloadDisruption
	limit := plain
	if allowed || m.Disrupted {
		limit = extended
	}
	late := plain > 0 && elapsed > limit
	if !late {
		if a, done := m.help(p, guestPaused, now); done {
			return a
		}
	}
	if why := m.stuck(plain, now); why != "" {
		return Advice{Action: AbortMove, Why: why}
	}
	if late {
		return Advice{Action: AbortMove, Why: fmt.Sprintf("it has taken longer than the %s it may for its size", limit)}
	}
	return Advice{}
}

// help is what is done so that the migration ends well; not done if that is nothing at
// the moment.
func (m *Monitor) help(p Progress, guestPaused bool, now time.Time) (a Advice, done bool) {
	plain, _ := m.budget()
	switch over := plain > 0 && m.elapsed(p, now) > plain; {
	case over && m.Settings.AllowWorkloadDisruption:
		why := fmt.Sprintf("it has taken longer than the %s it may for its size, and the guest may be disturbed", plain)
		a, done = m.disrupt(why, plain, guestPaused, now)
	case m.Disrupted:
		a, done = m.disrupt("the guest is disturbed so that it ends", plain, guestPaused, now)
	}
	if done {
		return a, true
	}
	a = m.stalled(p, now)
	return a, a.Action != Carry
}

// disrupt chooses how the guest pays for the end of the migration: the first way that is
// open. It is not done if there is nothing to do at the moment.
func (m *Monitor) disrupt(why string, budget time.Duration, guestPaused bool, now time.Time) (a Advice, done bool) {
	switch {
	case m.paused || guestPaused && !m.Disrupted:
		return Advice{}, false // it writes nothing that would have to be copied again
	case m.postCopy():
		return Advice{Action: SwitchToPostCopy, Why: why}, true
	case m.Passthrough && !m.refused[RaiseDowntime]:
		m.Disrupted = true
		if !m.raised.IsZero() && now.Sub(m.raised) < raiseEvery {
			return Advice{}, false
		}
		m.raised = now
		return Advice{Action: RaiseDowntime, Why: why, MaxDowntime: min(max(times(budget, 2), m.Settings.MaxDowntime), MaxDowntimeCeiling)}, true
	case m.refused[PauseGuest]:
		return Advice{Action: AbortMove, Why: why + ", but the hypervisor has refused each way to do that"}, true
	case guestPaused:
		m.paused = true
		return Advice{}, false
	}
	m.Disrupted = true
	return Advice{Action: PauseGuest, Why: why}, true
}

// postCopy tells whether the guest may run at the target before its memory is there.
// Once it pays in another way that is not changed.
func (m *Monitor) postCopy() bool {
	return m.Settings.PostCopy && !m.Passthrough && !m.Disrupted && !m.refused[SwitchToPostCopy]
}

// stuck says why the migration makes no progress; empty if it does. Where the guest may
// be disturbed once the budget is used up, one that sends and does not converge is left
// until then.
func (m *Monitor) stuck(budget time.Duration, now time.Time) string {
	limit := m.Settings.ProgressTimeout
	if limit <= 0 || now.Sub(m.pass.leastAt) <= limit {
		return ""
	}
	if m.Settings.AllowWorkloadDisruption && budget > 0 && now.Sub(m.sentAt) <= limit {
		return ""
	}
	return fmt.Sprintf("it has made no progress for %s: %d bytes remain", limit, m.pass.remaining)
}
