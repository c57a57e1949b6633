// SPDX-License-Identifier: Apache-2.0

package migration

import (
	"math"
	"strconv"
	"time"

	v1 "kubevirt.io/api/core/v1"
	"kubevirt.io/api/migrations/v1alpha1"
)

// Resolution is the policy and the options in force for one migration.
type Resolution struct {
	// Match tells which policy won.
	Match Match
	// Options are the resolved options as stored on the guest at hand-off; nil if they
	// could not be resolved.
	Options *v1.VMIMConfigurationOptions
	// Err is why there are no options: the policy that won is one that KubeVirt's
	// admission refuses. A migration then waits until that is mended, for it would run
	// otherwise than its administrator has in mind.
	Err *PolicyError
}

// Resolve merges the winner of the match over the cluster's configuration and
// KubeVirt's defaults. The error is a [*PolicyError], which the resolution keeps.
func Resolve(m Match, cluster *v1.MigrationConfiguration) (Resolution, error) {
	if m.Winner != nil {
		if err := checkPolicy(m.Winner); err != nil {
			return Resolution{Match: m, Err: err}, err
		}
	}
	opts := clusterOptions(cluster)
	if m.Winner != nil {
		overlay(opts, m.Winner.Spec)
	}
	if opts.AllowWorkloadDisruption == nil {
		opts.AllowWorkloadDisruption = ptr(*opts.AllowPostCopy)
	}
	return Resolution{Match: m, Options: opts}, nil
}

// clusterOptions copies the cluster's configuration over the defaults.
func clusterOptions(c *v1.MigrationConfiguration) *v1.VMIMConfigurationOptions {
	if c == nil {
		c = &v1.MigrationConfiguration{}
	}
	c = c.DeepCopy()
	return &v1.VMIMConfigurationOptions{
		NodeDrainTaintKey:                 or(c.NodeDrainTaintKey, "kubevirt.io/drain"),
		ParallelOutboundMigrationsPerNode: or(c.ParallelOutboundMigrationsPerNode, 2),
		ParallelMigrationsPerCluster:      or(c.ParallelMigrationsPerCluster, 5),
		AllowAutoConverge:                 or(c.AllowAutoConverge, false),
		BandwidthPerMigration:             c.BandwidthPerMigration,
		CompletionTimeoutPerGiB:           or(c.CompletionTimeoutPerGiB, 150),
		MaxDowntimeMs:                     or(c.MaxDowntimeMs, 900),
		ProgressTimeout:                   or(c.ProgressTimeout, 150),
		UtilityVolumesTimeout:             or(c.UtilityVolumesTimeout, 150),
		UnsafeMigrationOverride:           or(c.UnsafeMigrationOverride, false),
		AllowPostCopy:                     or(c.AllowPostCopy, false),
		AllowWorkloadDisruption:           c.AllowWorkloadDisruption,
		DisableTLS:                        c.DisableTLS,
		Network:                           c.Network,
		MatchSELinuxLevelOnMigration:      c.MatchSELinuxLevelOnMigration,
	}
}

// overlay puts the policy's fields over the options, experimental ones leaf by
// leaf. A policy that decides on post-copy alone decides on disruption too.
func overlay(o *v1.VMIMConfigurationOptions, spec v1alpha1.MigrationPolicySpec) {
	p := spec.DeepCopy()
	put(&o.AllowAutoConverge, p.AllowAutoConverge)
	put(&o.BandwidthPerMigration, p.BandwidthPerMigration)
	put(&o.CompletionTimeoutPerGiB, p.CompletionTimeoutPerGiB)
	put(&o.MaxDowntimeMs, p.MaxDowntimeMs)
	put(&o.AllowPostCopy, p.AllowPostCopy)
	if p.AllowPostCopy != nil {
		o.AllowWorkloadDisruption = ptr(*p.AllowPostCopy)
	}
	put(&o.AllowWorkloadDisruption, p.AllowWorkloadDisruption)
	if p.ExperimentalMigrationOptions == nil {
		return
	}
	if o.ExperimentalMigrationOptions == nil {
		o.ExperimentalMigrationOptions = &v1.ExperimentalMigrationOptions{}
	}
	experiment(o.ExperimentalMigrationOptions, p.ExperimentalMigrationOptions)
}

func experiment(o, p *v1.ExperimentalMigrationOptions) {
	put(&o.Compression, p.Compression)
	if p.StallDetector == nil {
		return
	}
	if o.StallDetector == nil {
		o.StallDetector = &v1.StallDetectorOptions{}
	}
	to, from := o.StallDetector, p.StallDetector
	put(&to.StallMargin, from.StallMargin)
	put(&to.EwmaAlpha, from.EwmaAlpha)
	put(&to.StallProgressTimeout, from.StallProgressTimeout)
	put(&to.SwitchoverTimeout, from.SwitchoverTimeout)
	put(&to.PrecopyPossibleFactor, from.PrecopyPossibleFactor)
	put(&to.PatienceWindowDecayFactor, from.PatienceWindowDecayFactor)
	put(&to.SearchLocalMinima, from.SearchLocalMinima)
	put(&to.CompletionTimeoutFactor, from.CompletionTimeoutFactor)
}

// Budget bounds phase Running: twice the completion timeout for the guest's
// memory and the claims that are copied with it, as the launcher may double it once
// before it gives up, or as often as a stall detector is told to extend it; then the progress
// timeout and five minutes for the ends. Zero means no bound, which a completion timeout of
// zero asks for.
func (r Resolution) Budget(vmi *v1.VirtualMachineInstance) time.Duration {
	if r.Options == nil || r.Options.CompletionTimeoutPerGiB == nil || *r.Options.CompletionTimeoutPerGiB <= 0 {
		return 0
	}
	// KubeVirt's own budget counts decimal gigabytes, rounded up.
	size := math.Max(1, math.Ceil((float64(memory(vmi))+copied(vmi))/1e9))
	seconds := extension(r.Options) * float64(*r.Options.CompletionTimeoutPerGiB) * size
	if p := r.Options.ProgressTimeout; p != nil {
		seconds += float64(*p)
	}
	const slack = 5 * time.Minute
	if seconds > math.MaxInt64/2/float64(time.Second) {
		return 0
	}
	return time.Duration(seconds*float64(time.Second)) + slack
}

// maxExtension is by how much a node extends the completion timeout at most, whatever it
// is told.
const maxExtension = 100

// extension is by how much the completion timeout may be extended before a node gives up.
func extension(o *v1.VMIMConfigurationOptions) float64 {
	const launchers = 2
	x := o.ExperimentalMigrationOptions
	if x == nil || x.StallDetector == nil || x.StallDetector.CompletionTimeoutFactor == nil {
		return launchers
	}
	n, err := strconv.ParseFloat(*x.StallDetector.CompletionTimeoutFactor, 64)
	if err != nil || !(n > launchers) {
		return launchers
	}
	return min(n, maxExtension)
}

// copied returns the bytes of the guest's claims that travel with it.
func copied(vmi *v1.VirtualMachineInstance) float64 {
	if vmi == nil {
		return 0
	}
	var sum float64
	for _, m := range vmi.Status.MigratedVolumes {
		if m.SourcePVCInfo == nil {
			continue
		}
		size := m.SourcePVCInfo.Capacity.Storage()
		if size.IsZero() {
			size = m.SourcePVCInfo.Requests.Storage()
		}
		sum += float64(size.Value())
	}
	return sum
}

// memory returns the guest's memory in bytes: what it sees, else its request.
func memory(vmi *v1.VirtualMachineInstance) int64 {
	if vmi == nil {
		return 0
	}
	if m := vmi.Spec.Domain.Memory; m != nil && m.Guest != nil {
		return m.Guest.Value()
	}
	return vmi.Spec.Domain.Resources.Requests.Memory().Value()
}

func ptr[T any](v T) *T { return &v }

func or[T any](p *T, value T) *T {
	if p == nil {
		return &value
	}
	return p
}

func put[T any](to **T, from *T) {
	if from != nil {
		*to = from
	}
}
