// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"testing"

	"kubevirt.io/api/migrations/v1alpha1"
)

// hundred are the policies of a large cluster: some for everybody, some for a tier, most
// for a team and one of its applications.
func hundred() (all []v1alpha1.MigrationPolicy) {
	all = append(all, policy("everybody", nil, nil))
	for i := range 9 {
		all = append(all, policy(fmt.Sprintf("tier-%d", i), map[string]string{"tier": fmt.Sprint(i)}, nil))
	}
	for i := range 90 {
		guest := map[string]string{"app": fmt.Sprintf("app-%d", i), "tier": fmt.Sprint(i % 9)}
		all = append(all, policy(fmt.Sprintf("team-%d-app-%d", i%30, i), guest, map[string]string{"team": fmt.Sprint(i % 30)}))
	}
	return all
}

// labelled is a VMI of such a cluster, and its namespace.
func labelled() (guest, namespace map[string]string) {
	guest = map[string]string{"app": "app-41", "tier": "5"}
	for i := range 10 {
		guest[fmt.Sprintf("example.test/label-%d", i)] = "value"
	}
	return guest, map[string]string{"team": "11", "kubernetes.io/metadata.name": "shop", "stage": "production"}
}

func BenchmarkPolicyMatch(b *testing.B) {
	for name, all := range map[string][]v1alpha1.MigrationPolicy{"of100": hundred(), "of100alike": alike()} {
		b.Run(name, func(b *testing.B) {
			policies := NewPolicies(all)
			guest, namespace := labelled()
			b.ReportAllocs()
			for b.Loop() {
				if m := policies.Match(guest, namespace); m.Winner == nil {
					b.Fatal("no policy matches")
				}
			}
		})
	}
}

// alike are the worst for an index: all are found by a label that the VMI has, and each
// demands one more, but for the last.
func alike() (all []v1alpha1.MigrationPolicy) {
	for i := range 99 {
		all = append(all, policy(fmt.Sprintf("p%02d", i), map[string]string{"app": "app-41", "zone": "none"}, nil))
	}
	return append(all, policy("q", map[string]string{"tier": "5"}, nil))
}

func BenchmarkPolicyCandidates(b *testing.B) {
	policies := NewPolicies(hundred())
	m := policies.Match(labelled())
	b.ReportAllocs()
	for b.Loop() {
		if n := len(m.Candidates()); n != 100 {
			b.Fatal(n)
		}
	}
}

func BenchmarkPolicyResolve(b *testing.B) {
	m := NewPolicies(hundred()).Match(labelled())
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Resolve(m, nil); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkNewPolicies(b *testing.B) {
	all := hundred()
	b.ReportAllocs()
	for b.Loop() {
		NewPolicies(all)
	}
}
