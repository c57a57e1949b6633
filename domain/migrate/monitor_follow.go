// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"time"
)

// Tuning are the parameters of a running migration, for a [domain.MigrationTuner].
type Tuning struct {
	// BandwidthMiB limits the rate in MiB/s; zero is without limit.
	BandwidthMiB uint64
	// MaxDowntime is the longest standstill at the switch; zero leaves it unchanged.
	MaxDowntime time.Duration
}

// Follow applies changed settings as far as a running migration can follow them: timeouts,
// workload disruption and the stall detector are the monitor's own; bandwidth and downtime are
// for the hypervisor (see [Monitor.Tuning]). Post-copy can be withdrawn but not granted, since
// the hypervisor prepares for it at the start. All other settings, and a disruption that has
// happened, stay as they are.
func (m *Monitor) Follow(s MigrationSettings) {
	now := &m.Settings
	now.BandwidthMiB, now.MaxDowntime = s.BandwidthMiB, s.MaxDowntime
	now.CompletionPerGB, now.ProgressTimeout = s.CompletionPerGB, s.ProgressTimeout
	now.AllowWorkloadDisruption = s.AllowWorkloadDisruption
	now.PostCopy = now.PostCopy && s.PostCopy
	if now.Stall == nil || s.Stall == nil {
		m.stall = stall{} // without observations
	}
	now.Stall = s.Stall
}

// Tuning returns the parameters to set at the hypervisor. MaxDowntime is unchanged if the
// monitor has raised it, or has disrupted the workload.
func (m *Monitor) Tuning() Tuning {
	t := Tuning{BandwidthMiB: m.Settings.BandwidthMiB, MaxDowntime: m.Settings.MaxDowntime}
	if m.Disrupted || !m.raised.IsZero() || !m.stall.helped.IsZero() {
		t.MaxDowntime = 0
	}
	return t
}
