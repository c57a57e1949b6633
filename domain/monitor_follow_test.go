// SPDX-License-Identifier: Apache-2.0

package domain_test

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/handoff"
)

// TestAMonitorFollows goes through looks at a migration, before and after its settings
// have changed.
func TestAMonitorFollows(t *testing.T) {
	plain := domain.MigrationSettings{ProgressTimeout: domain.DefaultProgressTimeout, CompletionPerGB: domain.DefaultCompletionPerGB, MaxDowntime: domain.DefaultMaxDowntime}
	with := func(edit func(*domain.MigrationSettings)) domain.MigrationSettings {
		s := plain
		edit(&s)
		return s
	}
	disrupt := with(func(s *domain.MigrationSettings) { s.AllowWorkloadDisruption = true })
	postcopy := with(func(s *domain.MigrationSettings) { s.AllowWorkloadDisruption, s.PostCopy = true, true })
	for name, tc := range map[string]struct {
		from, to      domain.MigrationSettings
		before, after []look
	}{
		"more time": {plain, with(func(s *domain.MigrationSettings) { s.CompletionPerGB *= 2 }),
			[]look{{p: of(1, gib)}, {at: 440, p: sending(440, 1, gib-1)}}, []look{{at: 460, p: sending(460, 1, gib-2)}, {at: 901, p: sending(901, 1, mib), want: domain.AbortMove, why: "15m0s"}}},
		"less time": {plain, with(func(s *domain.MigrationSettings) { s.CompletionPerGB /= 10 }),
			[]look{{p: of(1, gib)}, {at: 40, p: of(1, gib-1)}}, []look{{at: 46, p: of(1, gib-2), want: domain.AbortMove, why: "45s"}}},
		"no limit of time": {plain, with(func(s *domain.MigrationSettings) { s.CompletionPerGB = 0 }),
			[]look{{p: of(1, gib)}}, []look{{at: 140, p: of(1, gib-1)}, {at: 280, p: of(1, gib-2)}, {at: 420, p: of(1, gib-3)}, {at: 560, p: of(1, gib-4)}}},
		"less patience": {plain, with(func(s *domain.MigrationSettings) { s.ProgressTimeout = 10 * time.Second }),
			[]look{{p: of(1, gib)}, {at: 20, p: of(1, gib)}}, []look{{at: 21, p: of(1, gib), want: domain.AbortMove, why: "no progress for 10s"}}},
		"more patience": {plain, with(func(s *domain.MigrationSettings) { s.ProgressTimeout = 0 }),
			[]look{{p: of(1, gib)}, {at: 149, p: of(1, gib)}}, []look{{at: 200, p: of(1, gib)}}},
		"the guest may be disturbed": {plain, disrupt,
			[]look{{p: of(1, gib)}, {at: 449, p: sending(449, 5, gib)}}, []look{{at: 451, p: sending(451, 5, gib), want: domain.PauseGuest, mode: v1.MigrationPaused}}},
		"the guest may not be disturbed": {disrupt, plain,
			[]look{{p: of(1, gib)}, {at: 449, p: sending(449, 1, gib-1)}}, []look{{at: 451, p: sending(451, 1, gib-2), want: domain.AbortMove}}},
		"a guest that pays already goes on": {disrupt, plain,
			[]look{{p: of(1, gib)}, {at: 451, p: sending(451, 5, gib), want: domain.PauseGuest, mode: v1.MigrationPaused}},
			[]look{{at: 452, p: sending(452, 5, gib), want: domain.PauseGuest, mode: v1.MigrationPaused}}},
		"post-copy is withdrawn": {postcopy, disrupt,
			[]look{{p: of(1, gib)}}, []look{{at: 451, p: sending(451, 5, gib), want: domain.PauseGuest, mode: v1.MigrationPaused}}},
		"post-copy is not given": {disrupt, postcopy,
			[]look{{p: of(1, gib)}}, []look{{at: 451, p: sending(451, 5, gib), want: domain.PauseGuest, mode: v1.MigrationPaused}}},
	} {
		t.Run(name, func(t *testing.T) {
			m := &domain.Monitor{Settings: tc.from, Bytes: int64(2 * gib)}
			for _, l := range tc.before {
				l.check(t, m)
			}
			m.Follow(tc.to)
			for _, l := range tc.after {
				l.check(t, m)
			}
		})
	}
}

func TestWhatAMonitorLeavesAsItBegan(t *testing.T) {
	began := domain.MigrationSettings{AutoConverge: true, Parallel: 8, Compression: "zstd", Unsafe: true}
	m := &domain.Monitor{Settings: began}
	m.Follow(domain.MigrationSettings{BandwidthMiB: 3, Stall: &domain.StallSettings{Margin: 1}})
	if s := m.Settings; !s.AutoConverge || s.Parallel != 8 || s.Compression != "zstd" || !s.Unsafe || s.BandwidthMiB != 3 || s.Stall == nil {
		t.Errorf("the settings are %+v", s)
	}
}

func TestTuning(t *testing.T) {
	s := domain.MigrationSettings{
		BandwidthMiB: 5, MaxDowntime: time.Second, CompletionPerGB: time.Second, AllowWorkloadDisruption: true,
	}
	m := &domain.Monitor{Settings: s, Bytes: 1, Passthrough: true}
	if got := m.Tuning(); got != (domain.Tuning{BandwidthMiB: 5, MaxDowntime: time.Second}) {
		t.Errorf("tuning is %+v", got)
	}
	look{p: of(1, gib)}.check(t, m)
	look{at: 2, p: sending(2, 1, gib), want: domain.RaiseDowntime, mode: v1.MigrationPaused}.check(t, m)
	if got := m.Tuning(); got != (domain.Tuning{BandwidthMiB: 5}) {
		t.Errorf("with a longer standstill, tuning is %+v", got)
	}
}

// TestTheDeadlineOfAMoveFollows: the lease's goes by the settings that the move began with.
func TestTheDeadlineOfAMoveFollows(t *testing.T) {
	// A guest of 1 GiB has 150 s for each of 2 GB, twice, and 150 s and five minutes more: 1050 s.
	for name, tc := range map[string]struct {
		ago   time.Duration
		perGB int64
		abort bool
	}{
		"as it began":         {1050 * time.Second, 150, true},
		"more time":           {1050 * time.Second, 151, false},
		"that is used up too": {1054 * time.Second, 151, true},
		"less time":           {1050 * time.Second, 1, true},
		"no limit":            {time.Hour, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			vmi := placed(v1.Running, late(moved(here, there, handoff.Begin)), func(vmi *v1.VirtualMachineInstance) {
				memory := resource.MustParse("1Gi")
				vmi.Spec.Domain.Memory = &v1.Memory{Guest: &memory}
				began := metav1.NewTime(decideNow.Add(-tc.ago))
				vmi.Status.MigrationState.StartTimestamp = &began
				vmi.Status.MigrationState.VMIMConfigurationOptions = &v1.VMIMConfigurationOptions{CompletionTimeoutPerGiB: &tc.perGB}
			})
			plan, _ := decide(t, domain.Sight{VMI: vmi, State: runs(domain.StatusRunning, ""), Moving: true})
			if got := verbs(plan) == "AbortMigration"; got != tc.abort {
				t.Errorf("tasks %q, abort %t is wanted", verbs(plan), tc.abort)
			}
		})
	}
}
