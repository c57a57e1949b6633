// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// waitingAdmission has 10,000 migrations of 100 namespaces and 100 nodes waiting
// for five slots, which are taken.
func waitingAdmission() (*Admission, []Claim) {
	a := NewAdmission(Limits{Cluster: 5, Outbound: 2, Inbound: 2, Lent: 5}, Options{})
	claims := make([]Claim, 10_000)
	for i := range claims {
		claims[i] = Claim{
			Key: types.NamespacedName{Namespace: fmt.Sprint("namespace-", i%100), Name: fmt.Sprint("migration-", i)}, Since: at(i),
			Priority: levels[i%len(levels)], SourceNode: fmt.Sprint("node-", i/100),
		}
	}
	a.Restore(claims, at(10_000))
	return a, claims
}

// BenchmarkAsk renews a claim that waits, as each pass of the controller does.
func BenchmarkAsk(b *testing.B) {
	a, claims := waitingAdmission()
	now, i := at(20_000), 0
	b.ReportAllocs()
	for b.Loop() {
		a.Ask(claims[i%len(claims)], now)
		i += 7
	}
}

// BenchmarkAdmit ends a migration and claims for another: one slot is handed on.
func BenchmarkAdmit(b *testing.B) {
	a, _ := waitingAdmission()
	now, i := at(20_000), 0
	holders := keys(a.holders)
	b.ReportAllocs()
	for b.Loop() {
		k := holders[i%len(holders)]
		claim := a.claims[k].claim
		woken := a.Release(k, now)
		now = now.Add(time.Millisecond)
		claim.Since = now
		a.Ask(claim, now)
		holders[i%len(holders)] = woken[0]
		i++
	}
}

// BenchmarkExplainPlace explains place and blockers of a waiting claim.
func BenchmarkExplainPlace(b *testing.B) {
	a, claims := waitingAdmission()
	now, i := at(20_000), 0
	b.ReportAllocs()
	for b.Loop() {
		a.Explain(claims[i%len(claims)].Key, now)
		i += 7
	}
}
