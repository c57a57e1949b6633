// SPDX-License-Identifier: Apache-2.0

package migrate_test

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/migrate"
)

const mib, gib = uint64(1) << 20, uint64(1) << 30

// look is one observation of a migration, that many seconds after its start.
type look struct {
	at     float64
	p      domain.Progress
	paused bool
	refuse migrate.MigrationAction // after the look
	want   migrate.MigrationAction
	mode   v1.MigrationMode // pre-copy if it is empty
	why    string
}

var monitorEpoch = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// of returns a sample of a migration of 2 GiB.
func of(iteration, remaining uint64) domain.Progress {
	return domain.Progress{Active: true, Total: 2 * gib, Remaining: remaining, Iteration: iteration}
}

// sending returns a sample whose processed bytes grow.
func sending(at float64, iteration, remaining uint64) domain.Progress {
	p := of(iteration, remaining)
	p.Processed, p.BytesPerSecond = uint64(at*float64(mib)), 100*mib
	return p
}

func (l look) check(t *testing.T, m *migrate.Monitor) {
	t.Helper()
	l.p.Elapsed = max(l.p.Elapsed, time.Duration(l.at*float64(time.Second)))
	a := m.Observe(l.p, l.paused, monitorEpoch.Add(time.Duration(l.at*float64(time.Second))))
	mode := l.mode
	if mode == "" {
		mode = v1.MigrationPreCopy
	}
	if a.Action != l.want || a.Mode != mode || !strings.Contains(a.Why, l.why) {
		t.Errorf("after %g s: %+v, want action %q, mode %s, why %q", l.at, a, l.want, mode, l.why)
	}
	if (a.Why == "") != (a.Action == migrate.Carry) {
		t.Errorf("after %g s: action %q because of %q", l.at, a.Action, a.Why)
	}
	if l.refuse != "" {
		m.Refuse(l.refuse)
	}
}

func TestMonitor(t *testing.T) {
	// A VMI with 2 GiB has a budget of 450 s: three times 150 s, for 2.1 GB count as three.
	plain := migrate.MigrationSettings{ProgressTimeout: migrate.DefaultProgressTimeout, CompletionPerGB: migrate.DefaultCompletionPerGB, MaxDowntime: migrate.DefaultMaxDowntime}
	disrupt, postcopy, unlimited := plain, plain, plain
	disrupt.AllowWorkloadDisruption = true
	postcopy.AllowWorkloadDisruption, postcopy.PostCopy = true, true
	unlimited.ProgressTimeout, unlimited.CompletionPerGB = 0, 0
	for name, tc := range map[string]struct {
		settings             migrate.MigrationSettings
		passthrough, restart bool
		looks                []look
	}{
		"M7: no decrease for longer than the progress timeout is the end": {settings: plain, looks: []look{
			{p: of(1, gib)}, {at: 100, p: of(1, gib)}, {at: 150, p: of(1, gib)},
			{at: 151, p: of(1, gib), want: migrate.AbortMove, why: "no progress for 2m30s: 1073741824 bytes remain"},
		}},
		"M7: a decrease gives it the progress timeout again": {settings: plain, looks: []look{
			{p: of(1, gib)}, {at: 150, p: of(1, gib-1)}, {at: 300, p: of(1, gib-1)}, {at: 301, p: of(1, gib-1), want: migrate.AbortMove},
		}},
		"M8: after post-copy there is no way back": {settings: postcopy, looks: []look{
			{p: of(1, gib)}, {at: 451, p: sending(451, 3, gib), want: migrate.SwitchToPostCopy, why: "completion timeout of 7m30s"},
			{at: 5000, p: domain.Progress{Active: true, Total: 2 * gib, Remaining: gib, PostCopy: true}, mode: v1.MigrationPostCopy},
			{at: 9000, p: domain.Progress{Active: true, Total: 2 * gib, Remaining: gib, PostCopy: true}, mode: v1.MigrationPostCopy},
		}},
		"M10: 2 GiB may take 450 s": {settings: plain, looks: []look{
			{p: of(1, gib)}, {at: 140, p: of(1, gib-1)}, {at: 280, p: of(1, gib-2)}, {at: 420, p: of(1, gib-3)}, {at: 450, p: of(1, gib-4)},
			{at: 450.4, p: of(1, gib-5), want: migrate.AbortMove, why: "completion timeout of 7m30s"},
		}},
		"neither has a limit: it goes on": {settings: unlimited, looks: []look{{p: of(1, gib)}, {at: 1e7, p: of(9, gib)}}},
		"no progress is reported before an exceeded budget": {settings: plain, looks: []look{
			{p: of(1, gib)}, {at: 500, p: of(1, gib), want: migrate.AbortMove, why: "no progress"},
		}},
		"what remains oscillates: no progress": {settings: plain, looks: []look{
			{p: of(1, 2*gib)}, {at: 50, p: of(2, gib)}, {at: 80, p: of(2, mib)}, {at: 90, p: of(3, gib)}, {at: 150, p: of(3, 2*mib)},
			{at: 160, p: of(4, gib+mib)}, {at: 229, p: of(4, mib/2)}, {at: 231, p: of(4, mib/4), want: migrate.AbortMove, why: "no progress"},
		}},
		"each pass begins with less: progress": {settings: plain, looks: []look{
			{p: of(1, 2*gib)}, {at: 100, p: of(1, mib)}, {at: 110, p: of(2, gib)}, {at: 240, p: of(2, 2*mib)}, {at: 250, p: of(3, gib/2)},
			{at: 380, p: of(3, gib/4)}, {at: 420, p: of(4, gib/5)},
		}},
		"a guest that is slowed down further: progress": {settings: plain, looks: []look{
			{p: of(1, gib)}, {at: 140, p: throttled(of(2, gib), 20)}, {at: 280, p: throttled(of(3, gib), 40)}, {at: 420, p: throttled(of(4, gib), 60)},
		}},
		"the disks are done and memory comes": {settings: plain, looks: []look{
			{p: of(0, gib)}, {at: 140, p: of(0, 0)}, {at: 280, p: of(1, 2*gib)}, {at: 420, p: of(1, gib)},
		}},
		"nothing is counted yet": {settings: plain, looks: []look{
			{p: domain.Progress{Active: true}}, {at: 100, p: of(1, 2*gib)}, {at: 240, p: of(1, gib)}, {at: 380, p: of(1, mib)},
		}},
		"nothing is ever counted": {settings: plain, looks: []look{
			{p: domain.Progress{Active: true}}, {at: 151, p: domain.Progress{Active: true}, want: migrate.AbortMove},
		}},
		"the hypervisor reports no times": {settings: unlimitedProgress(plain), looks: []look{
			{p: of(1, gib)}, {at: 451, p: of(1, gib), want: migrate.AbortMove},
		}},
		"a guest that may be disturbed is paused, and gets twice the budget": {settings: disrupt, looks: []look{
			{p: of(1, gib)}, {at: 449, p: sending(449, 5, gib)},
			{at: 451, p: sending(451, 5, gib), want: migrate.PauseGuest, mode: v1.MigrationPaused, why: "completion timeout of 7m30s"},
			{at: 452, p: sending(452, 5, gib), want: migrate.PauseGuest, mode: v1.MigrationPaused},
			{at: 453, p: sending(453, 5, gib), paused: true, mode: v1.MigrationPaused},
			{at: 899, p: sending(899, 5, mib), paused: true, mode: v1.MigrationPaused},
			{at: 901, p: sending(901, 5, mib/2), paused: true, want: migrate.AbortMove, mode: v1.MigrationPaused, why: "completion timeout of 15m0s"},
		}},
		"a guest that was paused and resumed by its user is left alone": {settings: disrupt, looks: []look{
			{p: of(1, gib)}, {at: 451, p: sending(451, 5, gib), want: migrate.PauseGuest, mode: v1.MigrationPaused},
			{at: 452, p: sending(452, 5, gib), paused: true, mode: v1.MigrationPaused}, {at: 453, p: sending(453, 5, gib), mode: v1.MigrationPaused},
		}},
		"a guest that its user has paused has nothing to be disturbed in": {settings: postcopy, looks: []look{
			{p: of(1, gib), paused: true}, {at: 451, p: sending(451, 1, mib), paused: true},
			{at: 460, p: sending(460, 1, mib), want: migrate.SwitchToPostCopy},
		}},
		"the last pass of a paused guest is progress": {settings: disrupt, looks: []look{
			{p: of(1, mib)}, {at: 451, p: sending(451, 5, gib), want: migrate.PauseGuest, mode: v1.MigrationPaused},
			{at: 452, p: of(6, 2*gib), paused: true, mode: v1.MigrationPaused}, {at: 600, p: of(6, gib), paused: true, mode: v1.MigrationPaused},
			{at: 740, p: of(6, mib), paused: true, mode: v1.MigrationPaused},
			{at: 891, p: of(6, mib), paused: true, want: migrate.AbortMove, mode: v1.MigrationPaused, why: "no progress"},
		}},
		"post-copy that is refused: it is paused": {settings: postcopy, looks: []look{
			{p: of(1, gib)}, {at: 451, p: sending(451, 5, gib), want: migrate.SwitchToPostCopy, refuse: migrate.SwitchToPostCopy},
			{at: 452, p: sending(452, 5, gib), want: migrate.PauseGuest, mode: v1.MigrationPaused, refuse: migrate.PauseGuest},
			{at: 453, p: sending(453, 5, gib), want: migrate.AbortMove, mode: v1.MigrationPaused, why: "refused all ways"},
		}},
		"post-copy that never comes: the end": {settings: postcopy, looks: []look{
			{p: of(1, gib)}, {at: 451, p: sending(451, 5, gib), want: migrate.SwitchToPostCopy},
			{at: 900, p: sending(900, 5, gib), want: migrate.SwitchToPostCopy}, {at: 901, p: sending(901, 5, gib), want: migrate.AbortMove},
		}},
		"with a host device it may stand still for longer": {settings: postcopy, passthrough: true, looks: []look{
			{p: of(1, gib)}, {at: 451, p: sending(451, 5, gib), want: migrate.RaiseDowntime, mode: v1.MigrationPaused},
			{at: 452, p: sending(452, 5, gib), mode: v1.MigrationPaused},
			{at: 462, p: sending(462, 5, gib), want: migrate.RaiseDowntime, mode: v1.MigrationPaused, refuse: migrate.RaiseDowntime},
			{at: 463, p: sending(463, 5, gib), want: migrate.PauseGuest, mode: v1.MigrationPaused},
		}},
		"what sends and may be disturbed later is left until then": {settings: disrupt, looks: []look{
			{p: sending(0, 1, gib)}, {at: 100, p: sending(100, 2, gib)}, {at: 200, p: sending(200, 3, gib)}, {at: 300, p: sending(300, 4, gib)},
			{at: 449, p: sending(300, 4, gib)}, {at: 450, p: sending(300, 4, gib)},
			{at: 451, p: sending(300, 4, gib), want: migrate.PauseGuest, mode: v1.MigrationPaused},
		}},
		"what sends nothing is not": {settings: disrupt, looks: []look{
			{p: of(1, gib)}, {at: 151, p: of(1, gib), want: migrate.AbortMove, why: "no progress"},
		}},
		"a restart keeps to the budget, and gives the progress timeout again": {settings: plain, looks: []look{
			{p: at(of(7, mib), 440)}, {at: 5, p: at(of(8, gib), 445)}, {at: 11, p: at(of(9, gib/2), 451), want: migrate.AbortMove, why: "completion timeout"},
		}},
		"a restart in the midst of a pass does not mistake it for the least": {settings: plain, looks: []look{
			{p: of(7, mib)}, {at: 140, p: of(8, gib)}, {at: 280, p: of(9, gib/2)},
		}},
		"a restart after the guest was paused": {settings: disrupt, restart: true, looks: []look{
			{p: at(of(7, mib), 500), paused: true, mode: v1.MigrationPaused}, {at: 1, p: at(of(7, mib), 901), paused: true, want: migrate.AbortMove, mode: v1.MigrationPaused},
		}},
		"a restart before the guest was paused": {settings: disrupt, restart: true, looks: []look{
			{p: at(of(7, mib), 500), want: migrate.PauseGuest, mode: v1.MigrationPaused}, {at: 1, p: at(of(7, mib), 501), paused: true, mode: v1.MigrationPaused},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			m := &migrate.Monitor{Settings: tc.settings, Bytes: int64(2 * gib), Passthrough: tc.passthrough, Disrupted: tc.restart}
			for _, l := range tc.looks {
				l.check(t, m)
			}
		})
	}
}

func at(p domain.Progress, seconds int) domain.Progress {
	p.Elapsed = time.Duration(seconds) * time.Second
	return p
}

func throttled(p domain.Progress, percent int) domain.Progress {
	p.Throttle = percent
	return p
}

func unlimitedProgress(s migrate.MigrationSettings) migrate.MigrationSettings {
	s.ProgressTimeout = 0
	return s
}

func TestMonitor_PassthroughDowntime(t *testing.T) {
	for name, tc := range map[string]struct {
		perGB, want time.Duration
	}{
		"twice the budget":             {perGB: time.Minute, want: 6 * time.Minute},
		"no more than QEMU allows":     {perGB: time.Hour, want: migrate.MaxDowntimeCeiling},
		"no less than is allowed then": {perGB: time.Second, want: 10 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			m := migrate.Monitor{Bytes: int64(2 * gib), Passthrough: true, Settings: migrate.MigrationSettings{
				CompletionPerGB: tc.perGB, AllowWorkloadDisruption: true, MaxDowntime: 10 * time.Second,
			}}
			a := m.Observe(at(of(1, gib), int(3*tc.perGB/time.Second)+1), false, monitorEpoch)
			if a.Action != migrate.RaiseDowntime || a.MaxDowntime != tc.want {
				t.Errorf("%+v, want a standstill of %s", a, tc.want)
			}
		})
	}
}

// TestMonitor_BudgetEndsMigration feeds the monitor random samples. Whatever they are, it has
// to advise an abort by twice the budget.
func TestMonitor_BudgetEndsMigration(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	flip := func() bool { return r.IntN(2) == 0 }
	for range 2000 {
		s := migrate.MigrationSettings{
			CompletionPerGB: time.Duration(1+r.IntN(5)) * time.Second, ProgressTimeout: time.Duration(r.IntN(20)) * time.Second,
			MaxDowntime: time.Second, AllowWorkloadDisruption: flip(), PostCopy: flip(),
		}
		if flip() {
			s.Stall = &migrate.StallSettings{
				Margin: r.Float64(), Window: time.Duration(r.IntN(5)) * time.Second, Switchover: time.Duration(r.IntN(5)) * time.Second,
				Alpha: r.Float64(), Possible: 1.5, Decay: r.Float64(), LocalMinima: flip(), Completion: 2,
			}
		}
		m := migrate.Monitor{Settings: s, Bytes: int64(gib), Passthrough: flip(), Disrupted: flip()}
		now, last := monitorEpoch, migrate.Advice{}
		for range 2*int(s.Budget(m.Bytes)/migrate.MonitorEvery) + 2 {
			p := domain.Progress{Active: true, Total: r.Uint64N(3) * gib, Remaining: r.Uint64N(gib), Iteration: r.Uint64N(4), Processed: r.Uint64(), BytesPerSecond: r.Uint64N(gib)}
			last = m.Observe(p, flip(), now)
			if r.IntN(4) == 0 {
				m.Refuse(last.Action)
			}
			if last.Action == migrate.RaiseDowntime && (last.MaxDowntime <= 0 || last.MaxDowntime > migrate.MaxDowntimeCeiling) {
				t.Fatalf("a standstill of %s", last.MaxDowntime)
			}
			now = now.Add(migrate.MonitorEvery)
		}
		if last.Action != migrate.AbortMove {
			t.Fatalf("%+v goes on after twice its budget: %+v", m.Settings, last)
		}
	}
}
