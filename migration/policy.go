// SPDX-License-Identifier: Apache-2.0

package migration

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	v1 "kubevirt.io/api/core/v1"
	"kubevirt.io/api/migrations/v1alpha1"
)

// Policies finds the MigrationPolicy for a guest. Build it with [NewPolicies];
// the zero value knows no policy. It is immutable and safe for concurrent use.
type Policies struct {
	ordered []v1alpha1.MigrationPolicy
}

// NewPolicies prepares the policies for matching. It keeps references to the
// objects, which must not change afterwards.
func NewPolicies(all []v1alpha1.MigrationPolicy) Policies {
	ordered := slices.Clone(all)
	slices.SortFunc(ordered, func(a, b v1alpha1.MigrationPolicy) int { return strings.Compare(a.Name, b.Name) })
	return Policies{ordered: ordered}
}

// Candidate is one policy that was looked at.
type Candidate struct {
	// Name is the policy's name.
	Name string
	// Matches says whether all selectors of the policy hold for the guest.
	Matches bool
	// VMILabels and NamespaceLabels count the labels demanded by the policy
	// that the guest and its namespace carry; they rank matching policies.
	VMILabels, NamespaceLabels int
	// Why tells what excluded the policy, or why another one won.
	Why string
}

// Match is the outcome of matching a guest against all policies.
type Match struct {
	// Winner is nil when no policy matches.
	Winner *v1alpha1.MigrationPolicy
	// Losers are the other candidates, by name.
	Losers []Candidate
}

// Name returns the winner's name, or nil.
func (m Match) Name() *string {
	if m.Winner == nil {
		return nil
	}
	name := m.Winner.Name
	return &name
}

// Match finds the policy for a guest with these labels in a namespace with
// those. The policy whose selectors name the most labels wins; between equals
// the one that names more labels of the guest, then the smaller name. A policy
// without selectors matches nothing, one with empty selectors everything. Absent
// labels are treated as an empty set of labels.
func (p Policies) Match(guest, namespace map[string]string) Match {
	var m Match
	var best Candidate
	winner := -1
	losers := make([]Candidate, 0, len(p.ordered))
	for i := range p.ordered {
		c := consider(&p.ordered[i], guest, namespace)
		switch {
		case !c.Matches:
			losers = append(losers, c)
		case winner < 0 || c.beats(best):
			if winner >= 0 {
				losers = append(losers, lost(best, c))
			}
			best, winner = c, i
		default:
			losers = append(losers, lost(c, best))
		}
	}
	if winner >= 0 {
		m.Winner = &p.ordered[winner]
	}
	slices.SortFunc(losers, func(a, b Candidate) int { return strings.Compare(a.Name, b.Name) })
	m.Losers = losers
	return m
}

func consider(p *v1alpha1.MigrationPolicy, guest, namespace map[string]string) Candidate {
	c := Candidate{Name: p.Name}
	sel := p.Spec.Selectors
	if sel == nil {
		c.Why = "it has no selectors"
		return c
	}
	if missing := firstMissing(sel.VirtualMachineInstanceSelector, guest); missing != "" {
		c.Why = fmt.Sprintf("the guest has no label %s", missing)
		return c
	}
	if missing := firstMissing(sel.NamespaceSelector, namespace); missing != "" {
		c.Why = fmt.Sprintf("the namespace has no label %s", missing)
		return c
	}
	c.Matches = true
	c.VMILabels, c.NamespaceLabels = len(sel.VirtualMachineInstanceSelector), len(sel.NamespaceSelector)
	return c
}

// firstMissing returns the first demanded label, by key, that is not there.
func firstMissing(demanded, have map[string]string) string {
	missing := ""
	for k, v := range demanded {
		if got, found := have[k]; found && got == v {
			continue
		}
		if text := k + "=" + v; missing == "" || text < missing {
			missing = text
		}
	}
	return missing
}

func (c Candidate) total() int { return c.VMILabels + c.NamespaceLabels }

// beats assumes that candidates are compared in the order of their names.
func (c Candidate) beats(o Candidate) bool {
	if c.total() != o.total() {
		return c.total() > o.total()
	}
	return c.VMILabels > o.VMILabels
}

func lost(c, to Candidate) Candidate {
	switch {
	case c.total() != to.total():
		c.Why = fmt.Sprintf("%q names more labels (%d instead of %d)", to.Name, to.total(), c.total())
	case c.VMILabels != to.VMILabels:
		c.Why = fmt.Sprintf("%q names more labels of the guest (%d instead of %d)", to.Name, to.VMILabels, c.VMILabels)
	default:
		c.Why = fmt.Sprintf("%q is as specific and comes first by name", to.Name)
	}
	return c
}

// Resolution is the policy and the options in force for one migration.
type Resolution struct {
	// Match tells which policy won.
	Match Match
	// Options are the resolved options as stored on the guest at hand-off.
	Options *v1.VMIMConfigurationOptions
}

// Resolve merges the winner of the match over the cluster's configuration and
// KubeVirt's defaults. The error is of a policy whose experimental options
// cannot be merged.
func Resolve(m Match, cluster *v1.MigrationConfiguration) (Resolution, error) {
	opts := clusterOptions(cluster)
	if m.Winner != nil {
		if err := overlay(opts, m.Winner.Spec); err != nil {
			return Resolution{}, fmt.Errorf("migration: resolve MigrationPolicy %q: %w", m.Winner.Name, err)
		}
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
func overlay(o *v1.VMIMConfigurationOptions, spec v1alpha1.MigrationPolicySpec) error {
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
		return nil
	}
	raw, err := json.Marshal(p.ExperimentalMigrationOptions)
	if err != nil {
		return fmt.Errorf("encode spec.experimental: %w", err)
	}
	if o.ExperimentalMigrationOptions == nil {
		o.ExperimentalMigrationOptions = &v1.ExperimentalMigrationOptions{}
	}
	if err := json.Unmarshal(raw, o.ExperimentalMigrationOptions); err != nil {
		return fmt.Errorf("merge spec.experimental: %w", err)
	}
	return nil
}

// Budget bounds phase Running: twice the completion timeout for the guest's
// memory, as the launcher may double it once before it gives up, then the
// progress timeout and five minutes for the ends. Zero means no bound, which a
// completion timeout of zero asks for.
func (r Resolution) Budget(vmi *v1.VirtualMachineInstance) time.Duration {
	if r.Options == nil || r.Options.CompletionTimeoutPerGiB == nil || *r.Options.CompletionTimeoutPerGiB <= 0 {
		return 0
	}
	// KubeVirt's own budget counts decimal gigabytes, rounded up.
	size := math.Max(1, math.Ceil(float64(memory(vmi))/1e9))
	seconds := 2 * float64(*r.Options.CompletionTimeoutPerGiB) * size
	if p := r.Options.ProgressTimeout; p != nil {
		seconds += float64(*p)
	}
	const slack = 5 * time.Minute
	if seconds > math.MaxInt64/2/float64(time.Second) {
		return 0
	}
	return time.Duration(seconds*float64(time.Second)) + slack
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
