// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"fmt"
	"time"

	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
)

// MonitorEvery is the interval of observations of a running migration, as in KubeVirt.
const MonitorEvery = 400 * time.Millisecond

// MigrationAction is an action that a [Monitor] advises.
type MigrationAction string

// The actions.
const (
	// Carry: the migration continues; there is nothing to do.
	Carry MigrationAction = ""
	// AbortMove: abort the migration ([domain.Migrator.AbortMigration]).
	AbortMove MigrationAction = "Abort"
	// SwitchToPostCopy: let the domain run at the target now ([domain.PostCopier]).
	SwitchToPostCopy MigrationAction = "SwitchToPostCopy"
	// PauseGuest: suspend the domain, so that it writes no more memory.
	PauseGuest MigrationAction = "Pause"
	// RaiseDowntime: allow a longer standstill at the switch ([domain.MigrationTuner]).
	RaiseDowntime MigrationAction = "RaiseDowntime"
)

// Advice is the advice of a [Monitor] about a migration.
type Advice struct {
	// Action is the action to take now. It is repeated until an observation shows its
	// effect, or it is refused; see [Monitor.Refuse].
	Action MigrationAction
	// Why is the reason of the action, a sentence without a capital or a full stop; empty
	// with Carry.
	Why string
	// MaxDowntime is for RaiseDowntime.
	MaxDowntime time.Duration
	// Mode is the value to report as status.migrationState.mode.
	Mode v1.MigrationMode
}

// Monitor observes one running migration and advises when to intervene in it or to abort it.
// It reads no clock and has no effects; it is not safe for concurrent use. A new monitor for
// a migration in progress, after a restart, grants the full progress timeout again and keeps
// to the budget, which counts from the start of the job.
//
// With a budget every migration ends: it is aborted at twice the budget at the latest
// (or [StallSettings.Completion] times), unless the domain runs at the target by then.
type Monitor struct {
	// Settings are the options of the migration.
	Settings MigrationSettings
	// Bytes is the number of bytes to copy: memory, and the disks that are copied; see
	// [MovingBytes].
	Bytes int64
	// Passthrough says that the domain has a host device (VFIO), with which there is no
	// post-copy; see [HasPassthrough].
	Passthrough bool
	// Disrupted says that an earlier monitor has disrupted the workload
	// (status.migrationState.mode is Paused).
	Disrupted bool

	first    time.Time // of the first observation
	pass     pass
	sent     uint64    // processed bytes of the last observation
	sentAt   time.Time // when they last grew
	throttle int       // the most that the guest was throttled
	stood    bool      // the domain was paused in the last observation

	paused  bool      // it was found paused after that was advised
	raised  time.Time // when a longer standstill was last advised
	stall   stall
	refused map[MigrationAction]bool
}

// raiseEvery is the interval at which a longer standstill is advised again: no observation
// shows whether the hypervisor has accepted it.
const raiseEvery = 10 * time.Second

// Observe records the progress of the migration and returns the advice for now. guestPaused
// says that the domain's CPUs are stopped.
func (m *Monitor) Observe(p domain.Progress, guestPaused bool, now time.Time) Advice {
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

// Refuse records that the hypervisor has refused an action: it is not advised again, the
// next best one is.
func (m *Monitor) Refuse(a MigrationAction) {
	if m.refused == nil {
		m.refused = map[MigrationAction]bool{}
	}
	m.refused[a] = true
	m.raised, m.stall.helped, m.paused = time.Time{}, time.Time{}, false
}

// budget returns how long the migration may take, and how long with disruption of the
// workload; zero is without limit.
func (m *Monitor) budget() (plain, extended time.Duration) {
	plain = m.Settings.Budget(m.Bytes)
	factor := 2.0
	if m.Settings.Stall != nil {
		factor = max(m.Settings.Stall.Completion, 1)
	}
	return plain, times(plain, factor)
}

// times multiplies a duration by a factor; the result is a year at most.
func times(d time.Duration, factor float64) time.Duration {
	return time.Duration(min(float64(d)*factor, MaxMove*float64(time.Second)))
}

// elapsed returns the time since the start by the hypervisor, or since the first observation
// if that is longer.
func (m *Monitor) elapsed(p domain.Progress, now time.Time) time.Duration {
	return max(p.Elapsed, now.Sub(m.first))
}

// decide goes through the reasons to act, in KubeVirt's order.
func (m *Monitor) decide(p domain.Progress, guestPaused bool, now time.Time) Advice {
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
		return Advice{Action: AbortMove, Why: fmt.Sprintf("migration has exceeded its completion timeout of %s", limit)}
	}
	return Advice{}
}

// help returns the advice by which the migration can still succeed; not done if there is
// none at the moment.
func (m *Monitor) help(p domain.Progress, guestPaused bool, now time.Time) (a Advice, done bool) {
	plain, _ := m.budget()
	switch over := plain > 0 && m.elapsed(p, now) > plain; {
	case over && m.Settings.AllowWorkloadDisruption:
		why := fmt.Sprintf("migration has exceeded its completion timeout of %s, and workload disruption is allowed", plain)
		a, done = m.disrupt(why, plain, guestPaused, now)
	case m.Disrupted:
		a, done = m.disrupt("the workload is disrupted to complete the migration", plain, guestPaused, now)
	}
	if done {
		return a, true
	}
	a = m.stalled(p, now)
	return a, a.Action != Carry
}

// disrupt chooses how to disrupt the workload so that the migration completes: the first way
// that is possible. It is not done if there is nothing to do at the moment.
func (m *Monitor) disrupt(why string, budget time.Duration, guestPaused bool, now time.Time) (a Advice, done bool) {
	switch {
	case m.paused || guestPaused && !m.Disrupted:
		return Advice{}, false // a paused domain writes nothing that has to be copied again
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
		return Advice{Action: AbortMove, Why: why + ", but the hypervisor has refused all ways to disrupt it"}, true
	case guestPaused:
		m.paused = true
		return Advice{}, false
	}
	m.Disrupted = true
	return Advice{Action: PauseGuest, Why: why}, true
}

// postCopy reports whether the migration may switch to post-copy. It may not once the
// workload is disrupted in another way.
func (m *Monitor) postCopy() bool {
	return m.Settings.PostCopy && !m.Passthrough && !m.Disrupted && !m.refused[SwitchToPostCopy]
}

// stuck returns why the migration makes no progress; empty if it does. If the workload may be
// disrupted once the budget is exceeded, a migration that sends but does not converge is
// left alone until then.
func (m *Monitor) stuck(budget time.Duration, now time.Time) string {
	limit := m.Settings.ProgressTimeout
	if limit <= 0 || now.Sub(m.pass.leastAt) <= limit {
		return ""
	}
	if m.Settings.AllowWorkloadDisruption && budget > 0 && now.Sub(m.sentAt) <= limit {
		return ""
	}
	return fmt.Sprintf("migration has made no progress for %s: %d bytes remain", limit, m.pass.remaining)
}
