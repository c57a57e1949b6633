// SPDX-License-Identifier: Apache-2.0

package migrate_test

import (
	"testing"
	"time"

	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain/migrate"
)

// TestMonitorFollow_ChangedSettings observes a migration before and after a change of its
// settings.
func TestMonitorFollow_ChangedSettings(t *testing.T) {
	plain := migrate.MigrationSettings{ProgressTimeout: migrate.DefaultProgressTimeout, CompletionPerGB: migrate.DefaultCompletionPerGB, MaxDowntime: migrate.DefaultMaxDowntime}
	with := func(edit func(*migrate.MigrationSettings)) migrate.MigrationSettings {
		s := plain
		edit(&s)
		return s
	}
	disrupt := with(func(s *migrate.MigrationSettings) { s.AllowWorkloadDisruption = true })
	postcopy := with(func(s *migrate.MigrationSettings) { s.AllowWorkloadDisruption, s.PostCopy = true, true })
	for name, tc := range map[string]struct {
		from, to      migrate.MigrationSettings
		before, after []look
	}{
		"more time": {plain, with(func(s *migrate.MigrationSettings) { s.CompletionPerGB *= 2 }),
			[]look{{p: of(1, gib)}, {at: 440, p: sending(440, 1, gib-1)}}, []look{{at: 460, p: sending(460, 1, gib-2)}, {at: 901, p: sending(901, 1, mib), want: migrate.AbortMove, why: "15m0s"}}},
		"less time": {plain, with(func(s *migrate.MigrationSettings) { s.CompletionPerGB /= 10 }),
			[]look{{p: of(1, gib)}, {at: 40, p: of(1, gib-1)}}, []look{{at: 46, p: of(1, gib-2), want: migrate.AbortMove, why: "45s"}}},
		"no limit of time": {plain, with(func(s *migrate.MigrationSettings) { s.CompletionPerGB = 0 }),
			[]look{{p: of(1, gib)}}, []look{{at: 140, p: of(1, gib-1)}, {at: 280, p: of(1, gib-2)}, {at: 420, p: of(1, gib-3)}, {at: 560, p: of(1, gib-4)}}},
		"less patience": {plain, with(func(s *migrate.MigrationSettings) { s.ProgressTimeout = 10 * time.Second }),
			[]look{{p: of(1, gib)}, {at: 20, p: of(1, gib)}}, []look{{at: 21, p: of(1, gib), want: migrate.AbortMove, why: "no progress for 10s"}}},
		"more patience": {plain, with(func(s *migrate.MigrationSettings) { s.ProgressTimeout = 0 }),
			[]look{{p: of(1, gib)}, {at: 149, p: of(1, gib)}}, []look{{at: 200, p: of(1, gib)}}},
		"the guest may be disturbed": {plain, disrupt,
			[]look{{p: of(1, gib)}, {at: 449, p: sending(449, 5, gib)}}, []look{{at: 451, p: sending(451, 5, gib), want: migrate.PauseGuest, mode: v1.MigrationPaused}}},
		"the guest may not be disturbed": {disrupt, plain,
			[]look{{p: of(1, gib)}, {at: 449, p: sending(449, 1, gib-1)}}, []look{{at: 451, p: sending(451, 1, gib-2), want: migrate.AbortMove}}},
		"a guest that pays already goes on": {disrupt, plain,
			[]look{{p: of(1, gib)}, {at: 451, p: sending(451, 5, gib), want: migrate.PauseGuest, mode: v1.MigrationPaused}},
			[]look{{at: 452, p: sending(452, 5, gib), want: migrate.PauseGuest, mode: v1.MigrationPaused}}},
		"post-copy is withdrawn": {postcopy, disrupt,
			[]look{{p: of(1, gib)}}, []look{{at: 451, p: sending(451, 5, gib), want: migrate.PauseGuest, mode: v1.MigrationPaused}}},
		"post-copy is not given": {disrupt, postcopy,
			[]look{{p: of(1, gib)}}, []look{{at: 451, p: sending(451, 5, gib), want: migrate.PauseGuest, mode: v1.MigrationPaused}}},
	} {
		t.Run(name, func(t *testing.T) {
			m := &migrate.Monitor{Settings: tc.from, Bytes: int64(2 * gib)}
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

func TestMonitorFollow_KeepsOtherSettings(t *testing.T) {
	began := migrate.MigrationSettings{AutoConverge: true, Parallel: 8, Compression: "zstd", Unsafe: true}
	m := &migrate.Monitor{Settings: began}
	m.Follow(migrate.MigrationSettings{BandwidthMiB: 3, Stall: &migrate.StallSettings{Margin: 1}})
	if s := m.Settings; !s.AutoConverge || s.Parallel != 8 || s.Compression != "zstd" || !s.Unsafe || s.BandwidthMiB != 3 || s.Stall == nil {
		t.Errorf("the settings are %+v", s)
	}
}

func TestTuning(t *testing.T) {
	s := migrate.MigrationSettings{
		BandwidthMiB: 5, MaxDowntime: time.Second, CompletionPerGB: time.Second, AllowWorkloadDisruption: true,
	}
	m := &migrate.Monitor{Settings: s, Bytes: 1, Passthrough: true}
	if got := m.Tuning(); got != (migrate.Tuning{BandwidthMiB: 5, MaxDowntime: time.Second}) {
		t.Errorf("tuning is %+v", got)
	}
	look{p: of(1, gib)}.check(t, m)
	look{at: 2, p: sending(2, 1, gib), want: migrate.RaiseDowntime, mode: v1.MigrationPaused}.check(t, m)
	if got := m.Tuning(); got != (migrate.Tuning{BandwidthMiB: 5}) {
		t.Errorf("with a longer standstill, tuning is %+v", got)
	}
}
