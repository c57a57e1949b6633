// SPDX-License-Identifier: Apache-2.0

package migrate_test

import (
	"testing"
	"time"

	"k8s.io/utils/ptr"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/migrate"
)

// stallDefaults are the settings of a migration whose stall detector is on and otherwise
// as KubeVirt has it: 4 %, 40 s, 60 s.
func stallDefaults() migrate.MigrationSettings {
	return migrate.MigrationSettingsOf(&v1.VirtualMachineInstance{Status: v1.VirtualMachineInstanceStatus{
		MigrationState: &v1.VirtualMachineInstanceMigrationState{VMIMConfigurationOptions: &v1.VMIMConfigurationOptions{
			ExperimentalMigrationOptions: &v1.ExperimentalMigrationOptions{StallDetector: &v1.StallDetectorOptions{}},
		}},
	}}, nil)
}

// rated returns a sample of a copy with 100 MiB/s.
func rated(iteration, remaining uint64) domain.Progress {
	p := of(iteration, remaining)
	p.BytesPerSecond = 100 * mib
	return p
}

// slower copies with a tenth of the rate.
func slower(looks []look) []look {
	for i := range looks {
		looks[i].p.BytesPerSecond = 10 * mib
	}
	return looks
}

func TestStallDetector(t *testing.T) {
	// Each pass begins with about as much as the ones before: 1024 MiB take 10.24 s.
	stalls := func(more ...look) []look {
		return append([]look{
			{p: rated(1, 2*gib)}, {at: 20, p: rated(2, 1000*mib)}, {at: 31, p: rated(3, 990*mib)}, {at: 42, p: rated(4, 1010*mib)}, {at: 53, p: rated(5, 1005*mib)},
		}, more...)
	}
	for name, tc := range map[string]struct {
		change      func(*migrate.MigrationSettings)
		passthrough bool
		looks       []look
		downtime    time.Duration // of the last advice
	}{
		"it is off": {change: func(s *migrate.MigrationSettings) { s.Stall = nil }, looks: stalls(look{at: 64, p: rated(6, 990*mib)})},
		"it converges": {looks: []look{
			{p: rated(1, 2*gib)}, {at: 20, p: rated(2, 1000*mib)}, {at: 40, p: rated(3, 900*mib)}, {at: 60, p: rated(4, 800*mib)}, {at: 80, p: rated(5, 700*mib)},
		}},
		"one window has to pass": {looks: stalls()},
		"its end takes too long for the guest": {looks: stalls(
			look{at: 64, p: rated(6, 990*mib), want: migrate.AbortMove, why: "copying the rest takes 9.9s, the maximum downtime is 900ms"},
		)},
		"its end takes as long as the guest may stand still": {
			change: func(s *migrate.MigrationSettings) { s.MaxDowntime = 10 * time.Second }, downtime: 10 * time.Second,
			looks: stalls(look{at: 64, p: rated(6, 990*mib), want: migrate.RaiseDowntime}),
		},
		"its end takes a little longer": {
			change: func(s *migrate.MigrationSettings) { s.MaxDowntime = 7 * time.Second }, downtime: 7 * time.Second,
			looks: stalls(look{at: 64, p: rated(6, 990*mib), want: migrate.RaiseDowntime}),
		},
		"its end takes too much longer": {
			change: func(s *migrate.MigrationSettings) { s.MaxDowntime = 6 * time.Second },
			looks:  stalls(look{at: 64, p: rated(6, 990*mib), want: migrate.AbortMove}),
		},
		"the guest may be disturbed": {
			change: func(s *migrate.MigrationSettings) { s.AllowWorkloadDisruption = true }, downtime: migrate.MaxDowntimeCeiling,
			looks: stalls(look{at: 64, p: rated(6, 990*mib), want: migrate.RaiseDowntime, mode: v1.MigrationPaused}),
		},
		"post-copy is allowed": {
			change: func(s *migrate.MigrationSettings) { s.AllowWorkloadDisruption, s.PostCopy = true, true },
			looks:  stalls(look{at: 64, p: rated(6, 990*mib), want: migrate.SwitchToPostCopy}),
		},
		"post-copy is allowed, but there is a host device": {
			change: func(s *migrate.MigrationSettings) { s.AllowWorkloadDisruption, s.PostCopy = true, true }, passthrough: true, downtime: migrate.MaxDowntimeCeiling,
			looks: stalls(look{at: 64, p: rated(6, 990*mib), want: migrate.RaiseDowntime, mode: v1.MigrationPaused}),
		},
		"a longer standstill is refused: it is paused": {
			change: func(s *migrate.MigrationSettings) { s.AllowWorkloadDisruption = true },
			looks: stalls(
				look{at: 64, p: rated(6, 990*mib), want: migrate.RaiseDowntime, mode: v1.MigrationPaused, refuse: migrate.RaiseDowntime},
				look{at: 65, p: rated(6, 900*mib), want: migrate.PauseGuest, mode: v1.MigrationPaused},
			),
		},
		"a longer standstill is refused, and it may not be disturbed": {
			change: func(s *migrate.MigrationSettings) { s.MaxDowntime = 10 * time.Second },
			looks: stalls(
				look{at: 64, p: rated(6, 990*mib), want: migrate.RaiseDowntime, refuse: migrate.RaiseDowntime},
				look{at: 75, p: rated(7, 990*mib), want: migrate.AbortMove},
			),
		},
		"more than the least remains: a minimum is waited for": {looks: stalls(
			look{at: 64, p: rated(6, 1040*mib)}, look{at: 75, p: rated(7, 1020*mib), want: migrate.AbortMove},
		)},
		"minima are not waited for": {
			change: func(s *migrate.MigrationSettings) { s.Stall.LocalMinima = false },
			looks:  stalls(look{at: 64, p: rated(6, 1200*mib), want: migrate.AbortMove}),
		},
		"a minimum that does not come again is forgotten": {looks: []look{
			{p: rated(1, 2*gib)}, {at: 20, p: rated(2, 500*mib)}, {at: 45, p: rated(3, 1000*mib)}, {at: 61, p: rated(4, 1000*mib)}, {at: 75, p: rated(5, 1010*mib)},
			{at: 90, p: rated(6, 1000*mib)}, {at: 100, p: rated(7, 1000*mib)}, {at: 102, p: rated(8, 1000*mib), want: migrate.AbortMove},
		}},
		"its end is not over in time": {
			change: func(s *migrate.MigrationSettings) { s.MaxDowntime = 10 * time.Second },
			looks: stalls(
				look{at: 64, p: rated(6, 990*mib), want: migrate.RaiseDowntime}, look{at: 124, p: rated(8, 990*mib)},
				look{at: 125, p: rated(8, 990*mib), want: migrate.AbortMove, why: "did not complete within 1m0s"},
			),
		},
		"it could not be done in twice the budget": {
			change: func(s *migrate.MigrationSettings) { s.CompletionPerGB, s.MaxDowntime = 22*time.Second, 10*time.Minute },
			looks:  slower(stalls(look{at: 64, p: rated(6, 990*mib)})), // 99 s remain of 2 * 66 s
		},
		"it could just be done in twice the budget": {
			change: func(s *migrate.MigrationSettings) { s.CompletionPerGB, s.MaxDowntime = 28*time.Second, 10*time.Minute }, downtime: 10 * time.Minute,
			looks: slower(stalls(look{at: 64, p: rated(6, 990*mib), want: migrate.RaiseDowntime})),
		},
		"the rate is not known": {looks: []look{
			{p: of(1, 2*gib)}, {at: 20, p: of(2, gib)}, {at: 31, p: of(3, gib)}, {at: 42, p: of(4, gib)}, {at: 53, p: of(5, gib)}, {at: 64, p: of(6, gib)},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			s := stallDefaults()
			if tc.change != nil {
				tc.change(&s)
			}
			m := &migrate.Monitor{Settings: s, Bytes: int64(2 * gib), Passthrough: tc.passthrough}
			for _, l := range tc.looks[:len(tc.looks)-1] {
				l.check(t, m)
			}
			last := tc.looks[len(tc.looks)-1]
			again := *m // Observe changes the monitor; what it says is the same for its copy
			if tc.downtime != 0 {
				a := again.Observe(at(last.p, int(last.at)), last.paused, monitorEpoch.Add(time.Duration(last.at)*time.Second))
				if a.MaxDowntime != tc.downtime {
					t.Errorf("a standstill of %s, want %s", a.MaxDowntime, tc.downtime)
				}
			}
			last.check(t, m)
		})
	}
}

func TestStallSettings_Invalid(t *testing.T) {
	defaults := *stallDefaults().Stall
	for name, tc := range map[string]struct {
		set  v1.StallDetectorOptions
		want func(*migrate.StallSettings)
	}{
		"nothing is set": {want: func(*migrate.StallSettings) {}},
		"all is set": {
			set: v1.StallDetectorOptions{
				StallMargin: ptr.To[int64](10), EwmaAlpha: ptr.To("1"), StallProgressTimeout: ptr.To[uint64](20), SwitchoverTimeout: ptr.To[uint64](30),
				PrecopyPossibleFactor: ptr.To("2.5"), PatienceWindowDecayFactor: ptr.To("0.25"), SearchLocalMinima: ptr.To(false), CompletionTimeoutFactor: ptr.To("3"),
			},
			want: func(s *migrate.StallSettings) {
				*s = migrate.StallSettings{Margin: 0.1, Window: 20 * time.Second, Switchover: 30 * time.Second, Alpha: 1, Possible: 2.5, Decay: 0.25, Completion: 3}
			},
		},
		"a margin of more than all": {set: v1.StallDetectorOptions{StallMargin: ptr.To[int64](101)}, want: func(*migrate.StallSettings) {}},
		"a negative margin":         {set: v1.StallDetectorOptions{StallMargin: ptr.To[int64](-1)}, want: func(*migrate.StallSettings) {}},
		"no margin":                 {set: v1.StallDetectorOptions{StallMargin: ptr.To[int64](0)}, want: func(s *migrate.StallSettings) { s.Margin = 0 }},
		"an alpha of zero":          {set: v1.StallDetectorOptions{EwmaAlpha: ptr.To("0")}, want: func(*migrate.StallSettings) {}},
		"an alpha of more than one": {set: v1.StallDetectorOptions{EwmaAlpha: ptr.To("1.5")}, want: func(*migrate.StallSettings) {}},
		"no numbers": {
			set:  v1.StallDetectorOptions{EwmaAlpha: ptr.To("NaN"), PrecopyPossibleFactor: ptr.To("Inf"), PatienceWindowDecayFactor: ptr.To("half"), CompletionTimeoutFactor: ptr.To("-2")},
			want: func(*migrate.StallSettings) {},
		},
		"for ever": {
			set: v1.StallDetectorOptions{StallProgressTimeout: ptr.To[uint64](1 << 63), SwitchoverTimeout: ptr.To[uint64](1<<64 - 1)},
			want: func(s *migrate.StallSettings) {
				s.Window, s.Switchover = 365*24*time.Hour, 365*24*time.Hour
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			want := defaults
			tc.want(&want)
			vmi := &v1.VirtualMachineInstance{Status: v1.VirtualMachineInstanceStatus{MigrationState: &v1.VirtualMachineInstanceMigrationState{
				VMIMConfigurationOptions: &v1.VMIMConfigurationOptions{ExperimentalMigrationOptions: &v1.ExperimentalMigrationOptions{StallDetector: &tc.set}},
			}}}
			if got := *migrate.MigrationSettingsOf(vmi, nil).Stall; got != want {
				t.Errorf("%+v, want %+v", got, want)
			}
		})
	}
}
