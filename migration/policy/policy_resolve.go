// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"math"
	"strconv"
	"time"

	v1 "kubevirt.io/api/core/v1"
	"kubevirt.io/api/migrations/v1alpha1"
)

// Resolution is the policy and the options in force for one migration.
type Resolution struct {
	// Match is the policy in force, with the other candidates.
	Match Match
	// Options are the resolved options as stored on the VMI at handoff; nil if they
	// could not be resolved.
	Options *v1.VMIMConfigurationOptions
	// Err is why there are no options: the winning policy has a value that KubeVirt's
	// admission rejects. A migration then waits until it is fixed, as it would otherwise
	// not run as its administrator intended.
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
	opts := ClusterOptions(cluster)
	if m.Winner != nil {
		overlay(opts, m.Winner.Spec)
	}
	if opts.AllowWorkloadDisruption == nil {
		opts.AllowWorkloadDisruption = new(*opts.AllowPostCopy)
	}
	return Resolution{Match: m, Options: opts}, nil
}

// ClusterOptions returns the cluster's configuration, merged over the defaults.
func ClusterOptions(c *v1.MigrationConfiguration) *v1.VMIMConfigurationOptions {
	if c == nil {
		c = &v1.MigrationConfiguration{}
	}
	c = c.DeepCopy()
	return &v1.VMIMConfigurationOptions{
		NodeDrainTaintKey:                 Or(c.NodeDrainTaintKey, "kubevirt.io/drain"),
		ParallelOutboundMigrationsPerNode: Or(c.ParallelOutboundMigrationsPerNode, 2),
		ParallelMigrationsPerCluster:      Or(c.ParallelMigrationsPerCluster, 5),
		AllowAutoConverge:                 Or(c.AllowAutoConverge, false),
		BandwidthPerMigration:             c.BandwidthPerMigration,
		CompletionTimeoutPerGiB:           Or(c.CompletionTimeoutPerGiB, 150),
		MaxDowntimeMs:                     Or(c.MaxDowntimeMs, 900),
		ProgressTimeout:                   Or(c.ProgressTimeout, 150),
		UtilityVolumesTimeout:             Or(c.UtilityVolumesTimeout, 150),
		UnsafeMigrationOverride:           Or(c.UnsafeMigrationOverride, false),
		AllowPostCopy:                     Or(c.AllowPostCopy, false),
		AllowWorkloadDisruption:           c.AllowWorkloadDisruption,
		DisableTLS:                        c.DisableTLS,
		Network:                           c.Network,
		MatchSELinuxLevelOnMigration:      c.MatchSELinuxLevelOnMigration,
	}
}

// overlay merges the policy's fields over the options, experimental ones leaf by
// leaf. A policy that sets post-copy alone sets disruption too.
func overlay(o *v1.VMIMConfigurationOptions, spec v1alpha1.MigrationPolicySpec) {
	p := spec.DeepCopy()
	put(&o.AllowAutoConverge, p.AllowAutoConverge)
	put(&o.BandwidthPerMigration, p.BandwidthPerMigration)
	put(&o.CompletionTimeoutPerGiB, p.CompletionTimeoutPerGiB)
	put(&o.MaxDowntimeMs, p.MaxDowntimeMs)
	put(&o.AllowPostCopy, p.AllowPostCopy)
	if p.AllowPostCopy != nil {
		o.AllowWorkloadDisruption = new(*p.AllowPostCopy)
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

// Budget bounds phase Running: twice the completion timeout for the guest memory and the
// claims that are copied with it, as the launcher may double it once before it gives up, or
// as often as a stall detector may extend it; plus the progress timeout and five minutes for
// begin and end. Zero means no bound, as with a completion timeout of zero.
func (r Resolution) Budget(vmi *v1.VirtualMachineInstance) time.Duration {
	if r.Options == nil || r.Options.CompletionTimeoutPerGiB == nil || *r.Options.CompletionTimeoutPerGiB <= 0 {
		return 0
	}
	// KubeVirt's own budget counts decimal gigabytes, rounded up.
	size := math.Max(1, math.Ceil((float64(GuestMemory(vmi))+copied(vmi))/1e9))
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

// maxExtension bounds how often a node extends the completion timeout, whatever is
// configured.
const maxExtension = 100

// extension returns the factor by which the completion timeout may be extended.
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

// copied returns the bytes of the VMI's claims that are migrated with it.
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

// GuestMemory returns the guest memory in bytes: as visible to the guest, else its request.
func GuestMemory(vmi *v1.VirtualMachineInstance) int64 {
	if vmi == nil {
		return 0
	}
	if m := vmi.Spec.Domain.Memory; m != nil && m.Guest != nil {
		return m.Guest.Value()
	}
	return vmi.Spec.Domain.Resources.Requests.Memory().Value()
}

// Or returns p, or a pointer to value if p is nil.
func Or[T any](p *T, value T) *T {
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
