// SPDX-License-Identifier: Apache-2.0

package domain

import "time"

// Tuning is what a [MigrationTuner] is to be told of a migration that is under way.
type Tuning struct {
	// BandwidthMiB limits the rate in MiB/s; zero is without limit.
	BandwidthMiB uint64
	// MaxDowntime is how long the guest may stand still at the switch; zero leaves it as
	// it is.
	MaxDowntime time.Duration
}

// Follow puts settings that have changed into force, as far as a migration under way can
// follow them: timeouts, whether the guest may be disturbed and the stall detector are
// the monitor's own, rate and standstill the hypervisor is to be told (see
// [Monitor.Tuning]). Post-copy can be withdrawn, not given: the hypervisor has prepared
// for it at the beginning, or cannot. All else is as the migration began with. What was
// done to the guest stays done.
func (m *Monitor) Follow(s MigrationSettings) {
	now := &m.Settings
	now.BandwidthMiB, now.MaxDowntime = s.BandwidthMiB, s.MaxDowntime
	now.CompletionPerGB, now.ProgressTimeout = s.CompletionPerGB, s.ProgressTimeout
	now.AllowWorkloadDisruption = s.AllowWorkloadDisruption
	now.PostCopy = now.PostCopy && s.PostCopy
	if now.Stall == nil || s.Stall == nil {
		m.stall = stall{} // which has seen nothing, or is to forget
	}
	now.Stall = s.Stall
}

// Tuning is what the hypervisor is to be told. A standstill that the monitor has raised is
// left alone, and so is that of a guest which pays for the end of its migration already.
func (m *Monitor) Tuning() Tuning {
	t := Tuning{BandwidthMiB: m.Settings.BandwidthMiB, MaxDowntime: m.Settings.MaxDowntime}
	if m.Disrupted || !m.raised.IsZero() || !m.stall.helped.IsZero() {
		t.MaxDowntime = 0
	}
	return t
}
