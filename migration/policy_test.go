// SPDX-License-Identifier: Apache-2.0

package migration

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"
	"kubevirt.io/api/migrations/v1alpha1"
)

func policy(name string, guest, namespace map[string]string) v1alpha1.MigrationPolicy {
	return v1alpha1.MigrationPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       v1alpha1.MigrationPolicySpec{Selectors: &v1alpha1.Selectors{VirtualMachineInstanceSelector: guest, NamespaceSelector: namespace}},
	}
}

// labels returns the labels k0..kn-1, each with value v.
func labels(n int) map[string]string {
	m := map[string]string{}
	for i := range n {
		m[fmt.Sprintf("k%d", i)] = "v"
	}
	return m
}

func TestPolicyPrecedence(t *testing.T) {
	nilSelectors := v1alpha1.MigrationPolicy{ObjectMeta: metav1.ObjectMeta{Name: "nil"}}
	for name, tc := range map[string]struct {
		policies         []v1alpha1.MigrationPolicy
		guest, namespace map[string]string
		want             string
		losers           map[string]string
	}{
		"one matches":                {policies: []v1alpha1.MigrationPolicy{policy("p", labels(1), labels(4))}, guest: labels(4), namespace: labels(4), want: "p"},
		"more labels win":            {policies: []v1alpha1.MigrationPolicy{policy("a", labels(1), nil), policy("b", labels(2), labels(1))}, guest: labels(4), namespace: labels(4), want: "b", losers: map[string]string{"a": "more labels (3 instead of 1)"}},
		"guest before namespace":     {policies: []v1alpha1.MigrationPolicy{policy("a", nil, labels(2)), policy("b", labels(2), nil)}, guest: labels(4), namespace: labels(4), want: "b", losers: map[string]string{"a": "more labels of the guest"}},
		"name decides":               {policies: []v1alpha1.MigrationPolicy{policy("zz", labels(2), labels(2)), policy("aa", labels(2), labels(2))}, guest: labels(4), namespace: labels(4), want: "aa", losers: map[string]string{"zz": "first by name"}},
		"no selectors match nothing": {policies: []v1alpha1.MigrationPolicy{nilSelectors}, guest: labels(4), want: "", losers: map[string]string{"nil": "no selectors"}},
		"empty selectors match all":  {policies: []v1alpha1.MigrationPolicy{policy("p", nil, nil)}, want: "p"},
		"unlabelled guest":           {policies: []v1alpha1.MigrationPolicy{policy("p", labels(1), nil)}, namespace: labels(4), want: "", losers: map[string]string{"p": "guest has no label k0=v"}},
		"unlabelled namespace":       {policies: []v1alpha1.MigrationPolicy{policy("p", nil, labels(1))}, guest: labels(4), want: "", losers: map[string]string{"p": "namespace has no label k0=v"}},
		"other value":                {policies: []v1alpha1.MigrationPolicy{policy("p", map[string]string{"k0": "w"}, nil)}, guest: labels(1), want: ""},
	} {
		t.Run(name, func(t *testing.T) {
			m := NewPolicies(tc.policies).Match(tc.guest, tc.namespace)
			got := ""
			if m.Name() != nil {
				got = *m.Name()
			}
			if got != tc.want {
				t.Errorf("winner is %q, want %q", got, tc.want)
			}
			for _, l := range m.Losers {
				if why, told := tc.losers[l.Name]; told && !strings.Contains(l.Why, why) {
					t.Errorf("%s lost because %q, want %q", l.Name, l.Why, why)
				}
			}
			if want := len(tc.policies); got != "" && len(m.Losers) != want-1 || got == "" && len(m.Losers) != want {
				t.Errorf("%d losers of %d candidates", len(m.Losers), want)
			}
		})
	}
}

// TestMatchAgreesWithTheRules compares with a naive reading of the rules and
// with any other order of the policies.
func TestMatchAgreesWithTheRules(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	some := func() map[string]string {
		m := map[string]string{}
		for i := range 3 {
			if rng.IntN(2) == 0 {
				m[fmt.Sprintf("k%d", i)] = fmt.Sprintf("v%d", rng.IntN(2))
			}
		}
		if len(m) == 0 && rng.IntN(2) == 0 {
			return nil
		}
		return m
	}
	subset := func(sub, all map[string]string) bool {
		for k, v := range sub {
			if all[k] != v {
				return false
			}
		}
		return true
	}
	for range 5000 {
		var all []v1alpha1.MigrationPolicy
		for i := range rng.IntN(5) {
			all = append(all, policy(fmt.Sprintf("p%d", i), some(), some()))
		}
		guest, ns := some(), some()
		want, bestTotal, bestGuest := "", -1, -1
		for _, p := range all {
			g, n := p.Spec.Selectors.VirtualMachineInstanceSelector, p.Spec.Selectors.NamespaceSelector
			if !subset(g, guest) || !subset(n, ns) {
				continue
			}
			if total := len(g) + len(n); total > bestTotal || total == bestTotal && len(g) > bestGuest {
				want, bestTotal, bestGuest = p.Name, total, len(g)
			}
		}
		slices.Reverse(all)
		got := ""
		if m := NewPolicies(all).Match(guest, ns); m.Winner != nil {
			got = m.Winner.Name
		}
		if got != want {
			t.Fatalf("winner is %q, want %q; guest %v, namespace %v, policies %+v", got, want, guest, ns, all)
		}
	}
}

func TestResolve(t *testing.T) {
	yes, no := true, false
	bandwidth := resource.MustParse("64Mi")
	stall := func(margin int64) *v1.ExperimentalMigrationOptions {
		return &v1.ExperimentalMigrationOptions{StallDetector: &v1.StallDetectorOptions{StallMargin: &margin}}
	}
	for name, tc := range map[string]struct {
		cluster *v1.MigrationConfiguration
		spec    *v1alpha1.MigrationPolicySpec
		check   func(*v1.VMIMConfigurationOptions) bool
	}{
		"defaults": {check: func(o *v1.VMIMConfigurationOptions) bool {
			return *o.ParallelMigrationsPerCluster == 5 && *o.ParallelOutboundMigrationsPerNode == 2 && *o.CompletionTimeoutPerGiB == 150 &&
				*o.ProgressTimeout == 150 && *o.MaxDowntimeMs == 900 && !*o.AllowPostCopy && !*o.AllowWorkloadDisruption && o.BandwidthPerMigration == nil
		}},
		"cluster's post-copy allows disruption": {
			cluster: &v1.MigrationConfiguration{AllowPostCopy: &yes},
			check:   func(o *v1.VMIMConfigurationOptions) bool { return *o.AllowWorkloadDisruption },
		},
		"policy over cluster": {
			cluster: &v1.MigrationConfiguration{AllowAutoConverge: &no, BandwidthPerMigration: &bandwidth},
			spec:    &v1alpha1.MigrationPolicySpec{AllowAutoConverge: &yes},
			check: func(o *v1.VMIMConfigurationOptions) bool {
				return *o.AllowAutoConverge && o.BandwidthPerMigration.Equal(bandwidth)
			},
		},
		"policy's post-copy alone": {
			cluster: &v1.MigrationConfiguration{AllowWorkloadDisruption: &no},
			spec:    &v1alpha1.MigrationPolicySpec{AllowPostCopy: &yes},
			check:   func(o *v1.VMIMConfigurationOptions) bool { return *o.AllowPostCopy && *o.AllowWorkloadDisruption },
		},
		"policy denies post-copy alone": {
			cluster: &v1.MigrationConfiguration{AllowPostCopy: &yes},
			spec:    &v1alpha1.MigrationPolicySpec{AllowPostCopy: &no},
			check:   func(o *v1.VMIMConfigurationOptions) bool { return !*o.AllowPostCopy && !*o.AllowWorkloadDisruption },
		},
		"explicit disruption wins": {
			spec:  &v1alpha1.MigrationPolicySpec{AllowPostCopy: &yes, AllowWorkloadDisruption: &no},
			check: func(o *v1.VMIMConfigurationOptions) bool { return *o.AllowPostCopy && !*o.AllowWorkloadDisruption },
		},
		"experimental options": {
			spec: &v1alpha1.MigrationPolicySpec{ExperimentalMigrationOptions: stall(7)},
			check: func(o *v1.VMIMConfigurationOptions) bool {
				return *o.ExperimentalMigrationOptions.StallDetector.StallMargin == 7
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var m Match
			if tc.spec != nil {
				m.Winner = &v1alpha1.MigrationPolicy{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: *tc.spec}
			}
			before := tc.cluster.DeepCopy()
			r, err := Resolve(m, tc.cluster)
			if err != nil {
				t.Fatal(err)
			}
			if !tc.check(r.Options) {
				t.Errorf("options are %+v", r.Options)
			}
			if d := cmp.Diff(before, tc.cluster); d != "" {
				t.Errorf("the cluster's configuration was changed:\n%s", d)
			}
		})
	}
}

func TestBudgetGrowsWithTheGuest(t *testing.T) {
	r, err := Resolve(Match{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	size := func(s string) *v1.VirtualMachineInstance {
		q := resource.MustParse(s)
		vmi := &v1.VirtualMachineInstance{}
		vmi.Spec.Domain.Memory = &v1.Memory{Guest: &q}
		return vmi
	}
	for memory, want := range map[string]time.Duration{
		"256Mi": 300*time.Second + 150*time.Second + 5*time.Minute,
		"4Gi":   5*300*time.Second + 150*time.Second + 5*time.Minute, // 4.29 GB, rounded up
	} {
		if got := r.Budget(size(memory)); got != want {
			t.Errorf("%s: budget %s, want %s", memory, got, want)
		}
	}
	*r.Options.CompletionTimeoutPerGiB = 0
	if got := r.Budget(size("1Gi")); got != 0 {
		t.Errorf("budget is %s without a completion timeout, want none", got)
	}
}
