// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"fmt"
	"math"
	"strconv"
	"time"

	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
)

// stallSettings sets KubeVirt's defaults; an invalid number counts as unset.
func stallSettings(o *v1.StallDetectorOptions) *StallSettings {
	s := &StallSettings{
		Margin: 0.04, Window: 40 * time.Second, Switchover: 60 * time.Second, Alpha: 0.4,
		Possible: 1.5, Decay: 0.5, LocalMinima: true, Completion: 2,
	}
	if n := o.StallMargin; n != nil && *n >= 0 && *n <= 100 {
		s.Margin = float64(*n) / 100
	}
	if o.StallProgressTimeout != nil {
		s.Window = seconds(int64(min(*o.StallProgressTimeout, MaxMove)))
	}
	if o.SwitchoverTimeout != nil {
		s.Switchover = seconds(int64(min(*o.SwitchoverTimeout, MaxMove)))
	}
	if o.SearchLocalMinima != nil {
		s.LocalMinima = *o.SearchLocalMinima
	}
	for _, f := range []struct {
		from *string
		to   *float64
		most float64
	}{
		{o.EwmaAlpha, &s.Alpha, 1}, {o.PrecopyPossibleFactor, &s.Possible, math.MaxFloat64},
		{o.PatienceWindowDecayFactor, &s.Decay, math.MaxFloat64}, {o.CompletionTimeoutFactor, &s.Completion, math.MaxFloat64},
	} {
		if f.from == nil {
			continue
		}
		if n, err := strconv.ParseFloat(*f.from, 64); err == nil && n > 0 && n <= f.most {
			*f.to = min(n, maxFactor)
		}
	}
	return s
}

// maxFactor bounds all factors.
const maxFactor = 100

// stall detects a migration that does not converge, by KubeVirt's rules: from the bytes with
// which passes over the memory start, and the rate of the copy.
type stall struct {
	began    []begun       // within the window, oldest first
	outside  uint64        // the least with which a pass started before the window; zero without one
	best     uint64        // the least with which a pass started, relaxed when it is not reached again
	rate     float64       // smoothed, in bytes per second; zero if unknown
	since    time.Time     // when the migration was found to be stalled; zero if it is not
	patience time.Duration // until best is relaxed
	now      bool          // a pass starts now
	helped   time.Time     // when its end was requested; zero if it was not
}

// begun has the remaining bytes at the start of a pass.
type begun struct {
	remaining uint64
	at        time.Time
}

// maxBegun bounds the number of passes in the window; the oldest are dropped.
const maxBegun = 1024

func (s *stall) note(p domain.Progress, o StallSettings, began bool, now time.Time) {
	if p.BytesPerSecond > 0 {
		if s.rate == 0 {
			s.rate = float64(p.BytesPerSecond)
		}
		s.rate = o.Alpha*float64(p.BytesPerSecond) + (1-o.Alpha)*s.rate
	}
	s.now = began && p.Iteration > 0
	if s.now {
		s.began = append(s.began, begun{remaining: p.Remaining, at: now})
		if s.best == 0 || p.Remaining < s.best {
			s.best = p.Remaining
		}
	}
	for len(s.began) > 0 && (now.Sub(s.began[0].at) > o.Window || len(s.began) > maxBegun) {
		if s.outside == 0 || s.began[0].remaining < s.outside {
			s.outside = s.began[0].remaining
		}
		s.began = s.began[1:]
	}
}

// stalled reports whether no pass of the window started with clearly less than those before
// the window.
func (s *stall) stalled(o StallSettings) bool {
	if s.outside == 0 || len(s.began) == 0 {
		return false
	}
	for _, b := range s.began {
		if float64(b.remaining) < float64(s.outside)*(1-o.Margin) {
			return false
		}
	}
	return true
}

// due reports whether a stalled migration should be ended now: a pass starts with about as
// little as the best one. If there is no such pass for a while, the best is relaxed.
func (s *stall) due(p domain.Progress, o StallSettings, now time.Time) bool {
	if s.since.IsZero() {
		s.since, s.patience = now, o.Window
	}
	if !o.LocalMinima {
		return true
	}
	if now.Sub(s.since) > s.patience {
		s.since, s.patience = now, times(s.patience, min(o.Decay, 1))
		for i, b := range s.began {
			if i == 0 || b.remaining < s.best {
				s.best = b.remaining
			}
		}
	}
	return s.now && float64(p.Remaining) <= float64(s.best)*(1+o.Margin)
}

// stalled returns the advice of the stall detector.
func (m *Monitor) stalled(p domain.Progress, now time.Time) Advice {
	o, s := m.Settings.Stall, &m.stall
	if o == nil {
		return Advice{}
	}
	if !s.helped.IsZero() {
		if o.Switchover > 0 && now.Sub(s.helped) > o.Switchover {
			return Advice{Action: AbortMove, Why: fmt.Sprintf("migration does not converge, and its switchover did not complete within %s", o.Switchover)}
		}
		return Advice{}
	}
	if !s.stalled(*o) {
		s.since = time.Time{}
		return Advice{}
	}
	if !s.due(p, *o, now) || s.rate == 0 {
		return Advice{}
	}
	left := time.Duration(min(float64(p.Remaining)/s.rate, MaxMove) * float64(time.Second))
	if plain, extended := m.budget(); plain > 0 && m.elapsed(p, now)+left > extended {
		return Advice{} // it would exceed the extended budget
	}
	return m.end(left, now)
}

// end chooses how to end a stalled migration with that much time left.
func (m *Monitor) end(left time.Duration, now time.Time) Advice {
	o := m.Settings.Stall
	why := fmt.Sprintf("migration does not converge: copying the rest takes %s", left.Round(time.Millisecond))
	switch {
	case m.Settings.AllowWorkloadDisruption && m.postCopy():
		return Advice{Action: SwitchToPostCopy, Why: why}
	case m.refused[RaiseDowntime] && m.Settings.AllowWorkloadDisruption && !m.refused[PauseGuest]:
		m.Disrupted, m.stall.helped = true, now
		return Advice{Action: PauseGuest, Why: why}
	case m.refused[RaiseDowntime]:
	case m.Settings.AllowWorkloadDisruption:
		m.Disrupted, m.stall.helped, m.raised, m.paused = true, now, now, true
		return Advice{Action: RaiseDowntime, Why: why, MaxDowntime: MaxDowntimeCeiling}
	case left <= times(m.Settings.MaxDowntime, max(o.Possible, 1)):
		m.stall.helped = now
		return Advice{Action: RaiseDowntime, Why: why, MaxDowntime: m.Settings.MaxDowntime}
	}
	return Advice{Action: AbortMove, Why: why + fmt.Sprintf(", the maximum downtime is %s", m.Settings.MaxDowntime)}
}
