// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"time"

	v1 "kubevirt.io/api/core/v1"
)

// KubeVirt's defaults for what a migration may take (spec.configuration.migrations of
// the KubeVirt object).
const (
	// DefaultProgressTimeout is how long a migration may make no progress.
	DefaultProgressTimeout = 150 * time.Second
	// DefaultCompletionPerGB is how long it may take for each gigabyte that travels.
	DefaultCompletionPerGB = 150 * time.Second
	// DefaultMaxDowntime is how long the guest may stand still at the switch.
	DefaultMaxDowntime = 900 * time.Millisecond
	// MaxDowntimeCeiling is the longest standstill that a hypervisor takes.
	MaxDowntimeCeiling = 2000 * time.Second
)

// MigrationSettings are the resolved options of one live migration; see
// [MigrationSettingsOf].
type MigrationSettings struct {
	// ProgressTimeout is how long the migration may make no progress before it is
	// aborted; zero is without limit.
	ProgressTimeout time.Duration
	// CompletionPerGB is how long it may take for each gigabyte (10^9 bytes, rounded
	// up) that travels; zero is without limit. See [MigrationSettings.Budget].
	CompletionPerGB time.Duration
	// MaxDowntime is how long the guest may stand still at the switch.
	MaxDowntime time.Duration
	// BandwidthMiB limits the rate in MiB/s; zero is without limit.
	BandwidthMiB uint64
	// AutoConverge lets the hypervisor slow down a guest that writes faster than is
	// copied.
	AutoConverge bool
	// PostCopy lets the guest run at the target before all of its memory is there,
	// once the budget is used up.
	PostCopy bool
	// AllowWorkloadDisruption lets a migration whose budget is used up go on at the
	// guest's cost, by post-copy if that is allowed, else by pausing it, instead of
	// being aborted.
	AllowWorkloadDisruption bool
	// Unsafe makes the hypervisor skip its own check of the disks.
	Unsafe bool
	// Parallel is the number of connections; zero is one.
	Parallel int
	// Compression is how memory is compressed on parallel connections: empty for not,
	// or zstd.
	Compression string
	// Stall is how a migration that does not converge is found early; nil is not at
	// all (KubeVirt: migration policies' experimental.stallDetector).
	Stall *StallSettings
}

// StallSettings are those of KubeVirt's stall detector.
type StallSettings struct {
	// Margin is by which share remaining bytes have to fall below the least of the
	// window before for it to count as progress. KubeVirt: stallMargin, a percentage;
	// default 0.04.
	Margin float64
	// Window is how far back that is looked for (stallProgressTimeout); default 40 s.
	Window time.Duration
	// Switchover is how long the last part may take (switchoverTimeout); default 60 s.
	Switchover time.Duration
	// Alpha smooths the observed bandwidth (ewmaAlpha); default 0.4.
	Alpha float64
	// Possible is by how much the expected standstill may exceed MaxDowntime and still
	// be taken (precopyPossibleFactor); default 1.5.
	Possible float64
	// Decay shortens the window each time a stall was waited out
	// (patienceWindowDecayFactor); default 0.5.
	Decay float64
	// LocalMinima lets the switch happen where the least remains
	// (searchLocalMinima); default true.
	LocalMinima bool
	// Completion is by how much the budget may be exceeded for a migration that will
	// be done by then (completionTimeoutFactor); default 2.
	Completion float64
}

// parallelConnections is how many KubeVirt uses for a guest whose CPU use is not
// limited.
const parallelConnections = 8

// MigrationSettingsOf reads the options in force for the guest's migration: those the
// controller has resolved and stored with it (status.migrationState.migrationConfiguration),
// or, where a controller stored none, those of the cluster, which may be nil, over
// KubeVirt's defaults.
func MigrationSettingsOf(vmi *v1.VirtualMachineInstance, cluster *v1.MigrationConfiguration) MigrationSettings {
	s := MigrationSettings{
		ProgressTimeout: DefaultProgressTimeout, CompletionPerGB: DefaultCompletionPerGB, MaxDowntime: DefaultMaxDowntime,
		Parallel: parallelOf(vmi),
	}
	o := clusterMigration(cluster)
	if m := vmi.Status.MigrationState; m != nil && m.VMIMConfigurationOptions != nil {
		o = m.VMIMConfigurationOptions
	}
	if o.ProgressTimeout != nil {
		s.ProgressTimeout = seconds(*o.ProgressTimeout)
	}
	if o.CompletionTimeoutPerGiB != nil {
		s.CompletionPerGB = seconds(*o.CompletionTimeoutPerGiB)
	}
	if o.MaxDowntimeMs != nil {
		s.MaxDowntime = time.Duration(min(*o.MaxDowntimeMs, uint64(MaxDowntimeCeiling/time.Millisecond))) * time.Millisecond
	}
	if o.BandwidthPerMigration != nil {
		s.BandwidthMiB = mebibytes(*o.BandwidthPerMigration)
	}
	s.AutoConverge, s.PostCopy, s.Unsafe = isTrue(o.AllowAutoConverge), isTrue(o.AllowPostCopy), isTrue(o.UnsafeMigrationOverride)
	s.AllowWorkloadDisruption = s.PostCopy
	if o.AllowWorkloadDisruption != nil {
		s.AllowWorkloadDisruption = *o.AllowWorkloadDisruption
	}
	return s.experiment(o.ExperimentalMigrationOptions)
}

// clusterMigration takes what the cluster says for what a controller would have
// stored.
func clusterMigration(c *v1.MigrationConfiguration) *v1.VMIMConfigurationOptions {
	if c == nil {
		return &v1.VMIMConfigurationOptions{}
	}
	return &v1.VMIMConfigurationOptions{
		ProgressTimeout: c.ProgressTimeout, CompletionTimeoutPerGiB: c.CompletionTimeoutPerGiB, MaxDowntimeMs: c.MaxDowntimeMs,
		BandwidthPerMigration: c.BandwidthPerMigration, AllowAutoConverge: c.AllowAutoConverge, AllowPostCopy: c.AllowPostCopy,
		UnsafeMigrationOverride: c.UnsafeMigrationOverride, AllowWorkloadDisruption: c.AllowWorkloadDisruption,
	}
}

// seconds is a whole number of seconds, none if it is negative, at most a year.
func seconds(n int64) time.Duration {
	return time.Duration(min(max(n, 0), maxMove)) * time.Second
}

// parallelOf is how many connections a migration of the guest has, as in KubeVirt: one
// where the guest's CPU use is limited, for what moves it is counted with it, and where
// its CPUs are its own.
func parallelOf(vmi *v1.VirtualMachineInstance) int {
	if c := vmi.Spec.Domain.CPU; c != nil && c.DedicatedCPUPlacement {
		return 0
	}
	limit, limited := vmi.Spec.Domain.Resources.Limits["cpu"]
	if limited && !limit.IsZero() {
		return 0
	}
	return parallelConnections
}

// experiment adds KubeVirt's experimental options.
func (s MigrationSettings) experiment(o *v1.ExperimentalMigrationOptions) MigrationSettings {
	if o == nil {
		return s
	}
	if o.Compression != nil && *o.Compression == v1.MigrationCompressionZstd {
		s.Compression = string(*o.Compression)
	}
	if o.StallDetector != nil {
		s.Stall = stallSettings(o.StallDetector)
	}
	return s
}

// gigabyte is what KubeVirt counts the size of a migration in.
const gigabyte = 1_000_000_000

// Budget is how long a migration of that many bytes may take; zero is without limit.
func (s MigrationSettings) Budget(bytes int64) time.Duration {
	gb := (max(bytes, 1)-1)/gigabyte + 1
	perGB := int64(s.CompletionPerGB / time.Second)
	if perGB <= 0 {
		return 0
	}
	return time.Duration(min(perGB, max(maxMove/gb, 1))*gb) * time.Second
}
