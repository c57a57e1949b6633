// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
)

func TestQueue_OptionsChangeInUse(t *testing.T) {
	of := func(namespace, name string, age time.Duration, priority int) Claim {
		return Claim{Key: key(namespace, name), Since: start.Add(-age), Priority: priority, SourceNode: "n-" + name}
	}
	claims := []Claim{
		of("a", "1", 9*time.Minute, 0), of("a", "2", 8*time.Minute, 0), of("a", "3", 7*time.Minute, 0),
		of("b", "4", 6*time.Minute, 0), of("b", "5", 5*time.Minute, PriorityUser), of("c", "6", time.Minute, PriorityMaintenance),
	}
	for name, tt := range map[string]struct {
		from, to Options
	}{
		"ageing sooner":     {to: Options{AgeAfter: 3 * time.Minute}},
		"ageing never":      {from: Options{AgeAfter: time.Minute}, to: Options{AgeAfter: -1}},
		"without turns":     {to: Options{Unfair: true}},
		"with turns":        {from: Options{Unfair: true}, to: Options{}},
		"other weights":     {to: Options{Weights: map[string]float64{"b": 4}}},
		"without weights":   {from: Options{Weights: map[string]float64{"a": 9}}, to: Options{}},
		"an order":          {to: Options{Order: func(x, y Item) int { return strings.Compare(y.Key.Name, x.Key.Name) }}},
		"as it was":         {from: Options{AgeAfter: 10 * time.Minute}, to: Options{}},
		"another direction": {from: Options{Unfair: true, AgeAfter: -1}, to: Options{AgeAfter: time.Minute, Weights: map[string]float64{"c": 2}}},
	} {
		t.Run(name, func(t *testing.T) {
			tuned := NewAdmission(Limits{}, tt.from)
			tuned.Restore(claims, start)
			if woken := tuned.SetQueueOptions(tt.to, start); len(woken) > 0 {
				t.Errorf("woken are %v", woken)
			}
			fresh := NewAdmission(Limits{}, tt.to)
			fresh.Restore(claims, start)
			for _, at := range []time.Time{start, start.Add(5 * time.Minute), start.Add(time.Hour)} {
				if d := cmp.Diff(names(fresh.queued(at)), names(tuned.queued(at))); d != "" {
					t.Errorf("-as from the beginning +tuned\n%s", d)
				}
			}
			for i := range claims {
				if got, want := tuned.Explain(claims[i].Key, start).Position, fresh.Explain(claims[i].Key, start).Position; got != want {
					t.Errorf("%s has place %d, want %d", claims[i].Key, got, want)
				}
			}
		})
	}
}

// TestSetQueueOptions_KeepsClaims tunes at random moments: waiting claims wait on, holders
// keep their slots, closed lanes stay closed, and all are served in the end.
func TestSetQueueOptions_KeepsClaims(t *testing.T) {
	options := []Options{{}, {Unfair: true}, {AgeAfter: -1}, {AgeAfter: time.Second, Weights: map[string]float64{"a": 5, "b": 0.1}}}
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 1))
		limits := Limits{Cluster: 1 + r.IntN(3), Outbound: 1 + r.IntN(2), Inbound: 2, Bandwidth: int64(r.IntN(2)) * 100}
		a, now := NewAdmission(limits, Options{}), start
		open := map[types.NamespacedName]bool{}
		for i := range 40 {
			c := Claim{
				Key: key(string(rune('a'+r.IntN(3))), fmt.Sprint(i)), Since: now, SourceNode: fmt.Sprint("n", r.IntN(3)),
				Priority: []int{0, PriorityUser, PriorityCritical}[r.IntN(3)], Bandwidth: int64(30 + r.IntN(100)), Acting: i < 3,
			}
			open[c.Key] = true
			a.Ask(c, now)
			now = now.Add(time.Second)
		}
		for len(open) > 0 {
			before, waiting := a.Usage(), len(a.queued(now))
			woken := a.SetQueueOptions(options[r.IntN(len(options))], now)
			if after := a.Usage(); after.Cluster != before.Cluster+len(woken) || len(a.queued(now)) != waiting-len(woken) {
				t.Fatalf("seed %d: usage was %+v, is %+v; %d waited, %d do; woken %v", seed, before, after, waiting, len(a.queued(now)), woken)
			}
			// With a budget, another may be first at a node, and fit where the first did not.
			if len(woken) > 0 && limits.Bandwidth == 0 {
				t.Fatalf("seed %d: slots were free that nobody had got: %v", seed, woken)
			}
			for k := range open {
				if a.Explain(k, now).Held {
					a.Release(k, now)
					delete(open, k)
					break
				}
			}
			if before.Cluster == 0 {
				t.Fatalf("seed %d: %d wait for nothing", seed, len(open))
			}
			now = now.Add(time.Second)
		}
	}
}
