// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"fmt"
	"strconv"

	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/migration"
	"github.com/virtloom/virtloom/migration/policy"
)

// PolicyStanding is the MigrationPolicy in force and why it won.
type PolicyStanding struct {
	// Name is the policy's name; empty when none matches.
	Name string `json:"name,omitempty"`
	// Stored says that it was resolved at handoff. The options in force are then the stored
	// ones, which follow later changes as far as a migration under way can.
	Stored bool `json:"stored"`
	// Why says why it won.
	Why string `json:"why"`
	// Rejected are the other candidates: those that match in order of precedence, then the
	// rest by name.
	Rejected []RejectedPolicy `json:"losers,omitempty"`
}

// RejectedPolicy is a policy that is not in force.
type RejectedPolicy struct {
	// Name is the policy's name; Why says what excluded it or why another won.
	Name string `json:"name"`
	Why  string `json:"why"`
}

// Option is a resolved option that differs from KubeVirt's default.
type Option struct {
	// Name is the name of the field in the migration's configuration.
	Name string `json:"name"`
	// Value is in force, Default is KubeVirt's.
	Value   string `json:"value"`
	Default string `json:"default"`
}

// policy explains policy and options: those stored on the VMI after the handoff, else those
// that a handoff would store now.
func (e *Explanation) policy(s migration.Snapshot) {
	opts := s.Resolution.Options
	standing := &PolicyStanding{Why: "no policy matches the VMI"}
	if w := s.Resolution.Match.Winner; w != nil {
		standing.Name, standing.Why = w.Name, "its selectors match"
		if sel := w.Spec.Selectors; sel != nil {
			standing.Why = fmt.Sprintf("its selectors match, with %d labels of the VMI and %d of the namespace",
				len(sel.VirtualMachineInstanceSelector), len(sel.NamespaceSelector))
		}
	}
	ms := s.State()
	if ms == nil && s.Migration.IsFinal() {
		ms = s.Migration.Status.MigrationState
	}
	switch {
	case ms != nil && ms.VMIMConfigurationOptions != nil:
		opts = ms.VMIMConfigurationOptions
		standing = &PolicyStanding{Stored: true, Why: "it was resolved when the VMI was handed off"}
		if ms.MigrationPolicyName != nil {
			standing.Name = *ms.MigrationPolicyName
		}
	case s.Resolution.Err != nil:
		standing.Why, standing.Rejected = s.Resolution.Err.Error(), rejectedPolicies(s.Resolution.Match)
		e.Policy = standing
		return
	case opts == nil:
		return
	default:
		standing.Rejected = rejectedPolicies(s.Resolution.Match)
	}
	e.Policy, e.Options = standing, differing(opts)
}

// rejectedPolicies returns the candidates that are not in force.
func rejectedPolicies(m policy.Match) []RejectedPolicy {
	var out []RejectedPolicy
	for _, c := range m.Candidates() {
		if !c.Wins {
			out = append(out, RejectedPolicy{Name: c.Name, Why: c.Why()})
		}
	}
	return out
}

// optionFields lists the explained options by the names of their fields.
var optionFields = []struct {
	name  string
	value func(*v1.VMIMConfigurationOptions) string
}{
	{"allowAutoConverge", func(o *v1.VMIMConfigurationOptions) string { return truth(o.AllowAutoConverge) }},
	{"allowPostCopy", func(o *v1.VMIMConfigurationOptions) string { return truth(o.AllowPostCopy) }},
	{"allowWorkloadDisruption", func(o *v1.VMIMConfigurationOptions) string { return truth(o.AllowWorkloadDisruption) }},
	{"bandwidthPerMigration", func(o *v1.VMIMConfigurationOptions) string {
		if o.BandwidthPerMigration == nil {
			return "0"
		}
		return o.BandwidthPerMigration.String()
	}},
	{"completionTimeoutPerGiB", func(o *v1.VMIMConfigurationOptions) string { return number(o.CompletionTimeoutPerGiB) }},
	{"disableTLS", func(o *v1.VMIMConfigurationOptions) string { return truth(o.DisableTLS) }},
	{"matchSELinuxLevelOnMigration", func(o *v1.VMIMConfigurationOptions) string { return truth(o.MatchSELinuxLevelOnMigration) }},
	{"maxDowntimeMs", func(o *v1.VMIMConfigurationOptions) string { return number(o.MaxDowntimeMs) }},
	{"network", func(o *v1.VMIMConfigurationOptions) string { return *policy.Or(o.Network, "") }},
	{"nodeDrainTaintKey", func(o *v1.VMIMConfigurationOptions) string { return *policy.Or(o.NodeDrainTaintKey, "") }},
	{"parallelMigrationsPerCluster", func(o *v1.VMIMConfigurationOptions) string { return number(o.ParallelMigrationsPerCluster) }},
	{"parallelOutboundMigrationsPerNode", func(o *v1.VMIMConfigurationOptions) string { return number(o.ParallelOutboundMigrationsPerNode) }},
	{"progressTimeout", func(o *v1.VMIMConfigurationOptions) string { return number(o.ProgressTimeout) }},
	{"unsafeMigrationOverride", func(o *v1.VMIMConfigurationOptions) string { return truth(o.UnsafeMigrationOverride) }},
	{"utilityVolumesTimeout", func(o *v1.VMIMConfigurationOptions) string { return number(o.UtilityVolumesTimeout) }},
	{"experimental", func(o *v1.VMIMConfigurationOptions) string {
		if o.ExperimentalMigrationOptions == nil {
			return ""
		}
		return "set"
	}},
}

func truth(b *bool) string { return strconv.FormatBool(b != nil && *b) }

func number[T int64 | uint32 | uint64](n *T) string {
	if n == nil {
		return ""
	}
	return fmt.Sprint(*n)
}

// defaultOptions lists KubeVirt's defaults as text, in the order of optionFields.
var defaultOptions = func() []string {
	o := policy.ClusterOptions(nil)
	texts := make([]string, 0, len(optionFields))
	for _, f := range optionFields {
		texts = append(texts, f.value(o))
	}
	return texts
}()

// differing returns the options that differ from KubeVirt's defaults.
func differing(o *v1.VMIMConfigurationOptions) []Option {
	var out []Option
	for i, f := range optionFields {
		if value := f.value(o); value != defaultOptions[i] {
			out = append(out, Option{Name: f.name, Value: value, Default: defaultOptions[i]})
		}
	}
	return out
}
