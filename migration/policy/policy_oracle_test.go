// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"kubevirt.io/api/migrations/v1alpha1"
)

var policyCases = flag.Int("policy-cases", 100_000, "how many random cases the policies are compared with their oracle in")

// score is what the specification counts of a policy that matches.
type score struct {
	name             string
	guest, namespace int
}

// oracle reads the specification, section 6, sentence by sentence, and says which
// policies match.
func oracle(all []v1alpha1.MigrationPolicy, guest, namespace map[string]string) (matching []score) {
	for _, p := range all {
		// "spec.selectors nil → no match."
		if p.Spec.Selectors == nil {
			continue
		}
		// "Every key=value of virtualMachineInstanceSelector must be present in VMI labels, every one of
		// namespaceSelector in namespace labels. An empty non-nil Selectors matches everything with score (0,0)."
		s := score{name: p.Name, guest: present(p.Spec.Selectors.VirtualMachineInstanceSelector, guest), namespace: present(p.Spec.Selectors.NamespaceSelector, namespace)}
		if s.guest < len(p.Spec.Selectors.VirtualMachineInstanceSelector) || s.namespace < len(p.Spec.Selectors.NamespaceSelector) {
			continue
		}
		matching = append(matching, s)
	}
	return matching
}

// present counts the labels of the selector that are there.
func present(selector, labels map[string]string) (n int) {
	for wantKey, wantValue := range selector {
		for key, value := range labels {
			if key == wantKey && value == wantValue {
				n++
			}
		}
	}
	return n
}

// beats: "Compare total first; on equal total the one with more VMI labels wins; on full
// tie lexicographically smallest name wins."
func (s score) beats(o score) bool {
	if s.guest+s.namespace != o.guest+o.namespace {
		return s.guest+s.namespace > o.guest+o.namespace
	}
	if s.guest != o.guest {
		return s.guest > o.guest
	}
	return s.name < o.name
}

// best is the one that no other beats.
func best(matching []score) string {
	for _, s := range matching {
		if !slices.ContainsFunc(matching, func(o score) bool { return o.beats(s) }) {
			return s.name
		}
	}
	return ""
}

// somePolicies makes label sets, few enough to meet often, and policies of them.
func somePolicies(rng *rand.Rand) (all []v1alpha1.MigrationPolicy, sets []map[string]string) {
	values := []string{"", "x", "y"}
	sets = []map[string]string{nil, {}}
	for range 14 {
		m := map[string]string{}
		for range rng.IntN(5) {
			m[string(rune('a'+rng.IntN(5)))] = values[rng.IntN(len(values))]
		}
		sets = append(sets, m)
	}
	n := rng.IntN(6)
	if rng.IntN(10) == 0 {
		n = rng.IntN(40)
	}
	for i := range n {
		p := v1alpha1.MigrationPolicy{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("p%d", i)}}
		if rng.IntN(12) > 0 {
			p.Spec.Selectors = &v1alpha1.Selectors{
				VirtualMachineInstanceSelector: partOf(rng, sets), NamespaceSelector: partOf(rng, sets),
			}
		}
		all = append(all, p)
	}
	rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all, sets
}

// partOf is some of one of the sets.
func partOf(rng *rand.Rand, sets []map[string]string) map[string]string {
	m := maps.Clone(sets[rng.IntN(len(sets))])
	maps.DeleteFunc(m, func(string, string) bool { return rng.IntN(3) == 0 })
	return m
}

func TestMatch_AgreesWithOracle(t *testing.T) {
	rng := rand.New(rand.NewPCG(8, 8))
	for done := 0; done < *policyCases; {
		all, sets := somePolicies(rng)
		policies := NewPolicies(all)
		for range 50 {
			guest, namespace := sets[rng.IntN(len(sets))], sets[rng.IntN(len(sets))]
			agree(t, policies.Match(guest, namespace), all, done%17 == 0)
			done++
		}
	}
}

// agree compares a match, and if explained its candidates too, with the oracle.
func agree(t *testing.T, m Match, all []v1alpha1.MigrationPolicy, explained bool) {
	t.Helper()
	matching := oracle(all, m.vmi, m.namespace)
	if got, want := winner(m), best(matching); got != want {
		t.Fatalf("winner is %q, want %q; VMI %v, namespace %v, policies %+v", got, want, m.vmi, m.namespace, all)
	}
	if !explained {
		return
	}
	slices.SortFunc(matching, func(a, b score) int {
		if a.beats(b) {
			return -1
		}
		return 1
	})
	var want, excluded []string
	for _, s := range matching {
		want = append(want, fmt.Sprintf("%s %d %d", s.name, s.guest, s.namespace))
	}
	for _, p := range all {
		if !slices.ContainsFunc(matching, func(s score) bool { return s.name == p.Name }) {
			excluded = append(excluded, p.Name)
		}
	}
	slices.Sort(excluded)
	var got, out []string
	for i, c := range m.Candidates() {
		if c.Wins != (i == 0 && len(matching) > 0) || c.Why() == "" {
			t.Fatalf("candidate %d is %+v of %d that match", i, c, len(matching))
		}
		if c.Matches {
			got = append(got, fmt.Sprintf("%s %d %d", c.Name, c.VMILabels, c.NamespaceLabels))
			continue
		}
		out = append(out, c.Name)
	}
	if !slices.Equal(got, want) || !slices.Equal(out, excluded) {
		t.Fatalf("candidates are %v, then %v; want %v, then %v; VMI %v, namespace %v, policies %+v", got, out, want, excluded, m.vmi, m.namespace, all)
	}
}

func FuzzPolicyMatch(f *testing.F) {
	for seed := range uint64(8) {
		f.Add(seed, uint8(seed), uint8(3*seed))
	}
	f.Fuzz(func(t *testing.T, seed uint64, guest, namespace uint8) {
		all, sets := somePolicies(rand.New(rand.NewPCG(seed, 1)))
		m := NewPolicies(all).Match(sets[int(guest)%len(sets)], sets[int(namespace)%len(sets)])
		agree(t, m, all, true)
	})
}
