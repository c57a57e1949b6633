// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"time"

	"k8s.io/utils/ptr"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain/internal/xmlspec"
)

// KubeVirt's defaults for the limits of a migration (spec.configuration.migrations of the
// KubeVirt object).
const (
	// DefaultProgressTimeout is how long a migration may make no progress.
	DefaultProgressTimeout = 150 * time.Second
	// DefaultCompletionPerGB is how long it may take for each gigabyte that is copied.
	DefaultCompletionPerGB = 150 * time.Second
	// DefaultMaxDowntime is the longest standstill at the switch.
	DefaultMaxDowntime = 900 * time.Millisecond
	// MaxDowntimeCeiling is the longest standstill that a hypervisor accepts.
	MaxDowntimeCeiling = 2000 * time.Second
)

// MigrationSettings are the resolved options of one live migration; see
// [MigrationSettingsOf].
type MigrationSettings struct {
	// ProgressTimeout is how long the migration may make no progress before it is
	// aborted; zero is without limit.
	ProgressTimeout time.Duration
	// CompletionPerGB is how long it may take for each gigabyte (10^9 bytes, rounded
	// up) that is copied; zero is without limit. See [MigrationSettings.Budget].
	CompletionPerGB time.Duration
	// MaxDowntime is the longest standstill at the switch.
	MaxDowntime time.Duration
	// BandwidthMiB limits the rate in MiB/s; zero is without limit.
	BandwidthMiB uint64
	// AutoConverge lets the hypervisor throttle a guest that writes memory faster than it
	// is copied.
	AutoConverge bool
	// PostCopy allows a switch to post-copy once the budget is exceeded.
	PostCopy bool
	// AllowWorkloadDisruption lets a migration that has exceeded its budget complete by
	// post-copy if that is allowed, else by pausing the domain, instead of being aborted.
	AllowWorkloadDisruption bool
	// Unsafe makes the hypervisor skip its own check of the disks.
	Unsafe bool
	// Parallel is the number of connections; zero is one.
	Parallel int
	// Compression is the method by which memory is compressed on parallel connections:
	// empty for none, or zstd.
	Compression string
	// Stall configures the early detection of a migration that does not converge; nil
	// disables it (KubeVirt: migration policies' experimental.stallDetector).
	Stall *StallSettings
}

// StallSettings are the options of KubeVirt's stall detector.
type StallSettings struct {
	// Margin is the share by which the remaining bytes have to fall below the least before
	// the window to count as progress. KubeVirt: stallMargin, a percentage; default 0.04.
	Margin float64
	// Window is the period that is searched for progress (stallProgressTimeout); default
	// 40 s.
	Window time.Duration
	// Switchover is how long the last part may take (switchoverTimeout); default 60 s.
	Switchover time.Duration
	// Alpha smooths the observed bandwidth (ewmaAlpha); default 0.4.
	Alpha float64
	// Possible is the factor by which the expected standstill may exceed MaxDowntime and
	// still be accepted (precopyPossibleFactor); default 1.5.
	Possible float64
	// Decay shortens the window after each stall that was waited out
	// (patienceWindowDecayFactor); default 0.5.
	Decay float64
	// LocalMinima delays the switch to the pass with the least remaining bytes
	// (searchLocalMinima); default true.
	LocalMinima bool
	// Completion is the factor by which a migration may exceed the budget if it completes
	// by then (completionTimeoutFactor); default 2.
	Completion float64
}

// parallelConnections is KubeVirt's number for a VMI without a CPU limit.
const parallelConnections = 8

// MigrationSettingsOf returns the options in force for the VMI's migration: those that the
// controller has resolved and stored with it (status.migrationState.migrationConfiguration),
// or without any those of the cluster, which may be nil, over KubeVirt's defaults.
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
		s.BandwidthMiB = xmlspec.Mebibytes(*o.BandwidthPerMigration)
	}
	s.AutoConverge, s.PostCopy, s.Unsafe = ptr.Deref(o.AllowAutoConverge, false), ptr.Deref(o.AllowPostCopy, false), ptr.Deref(o.UnsafeMigrationOverride, false)
	s.AllowWorkloadDisruption = s.PostCopy
	if o.AllowWorkloadDisruption != nil {
		s.AllowWorkloadDisruption = *o.AllowWorkloadDisruption
	}
	return s.experiment(o.ExperimentalMigrationOptions)
}

// clusterMigration converts the configuration of the cluster to the form that a controller
// stores.
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

// seconds converts a number of seconds: zero if it is negative, a year at most.
func seconds(n int64) time.Duration {
	return time.Duration(min(max(n, 0), MaxMove)) * time.Second
}

// parallelOf returns the number of connections of the VMI's migration, as in KubeVirt: one
// (zero) with dedicated CPUs, or with a CPU limit, which the migration threads count towards.
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

// gigabyte is KubeVirt's unit for the size of a migration.
const gigabyte = 1_000_000_000

// Budget returns how long a migration of that many bytes may take; zero is without limit.
func (s MigrationSettings) Budget(bytes int64) time.Duration {
	gb := (max(bytes, 1)-1)/gigabyte + 1
	perGB := int64(s.CompletionPerGB / time.Second)
	if perGB <= 0 {
		return 0
	}
	return time.Duration(min(perGB, max(MaxMove/gb, 1))*gb) * time.Second
}

// MaxMove bounds the duration of a migration in seconds: a year, in effect no limit.
const MaxMove = 365 * 24 * 60 * 60
