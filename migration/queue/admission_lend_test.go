// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
)

func mustStand(t *testing.T, a *Admission, name string, want Verdict) {
	t.Helper()
	got := a.Explain(key("a", name), start)
	got = Verdict{Held: got.Held, Inbound: got.Inbound, Lent: got.Lent}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("%s (-want +got):\n%s", name, d)
	}
}

func TestStuckTarget_LendsSlots(t *testing.T) {
	a := NewAdmission(Limits{Cluster: 1, Outbound: 1, Inbound: 1, Lent: 1}, Options{})
	stuck := acting("stuck", "n1", "")
	a.Ask(stuck, start)
	a.Ask(claim("next", "n1"), start)
	mustStand(t, a, "next", Verdict{})
	stuck.Stuck = true
	if _, woken := a.Ask(stuck, start); !slices.Equal(woken, []types.NamespacedName{key("a", "next")}) {
		t.Fatalf("woken are %v, want the next in the queue", woken)
	}
	mustStand(t, a, "stuck", Verdict{Lent: true})
	mustStand(t, a, "next", Verdict{Held: true})

	// Another one is stuck too, but no more may lend.
	other := acting("other", "n2", "")
	other.Stuck = true
	a.Ask(other, start)
	mustStand(t, a, "other", Verdict{Held: true})

	// A node takes the Pod. Its slots are another's, and before the queue gets
	// any it has them back.
	a.Ask(claim("last", "n3"), start)
	stuck.Stuck, stuck.TargetNode = false, "t"
	v, _ := a.Ask(stuck, start)
	if v.Inbound || !v.Lent {
		t.Fatalf("verdict is %+v", v)
	}
	if b := a.Explain(stuck.Key, start).Blockers; len(b) != 2 || b[0].Limit != LimitOutbound || b[1].Limit != LimitCluster {
		t.Errorf("blockers are %+v", b)
	}
	if woken := a.Release(key("a", "other"), start); len(woken) != 0 {
		t.Errorf("woken are %v while the node's slot is taken", woken)
	}
	if woken := a.Release(key("a", "next"), start); !slices.Equal(woken, []types.NamespacedName{stuck.Key}) {
		t.Errorf("woken are %v, want the lender", woken)
	}
	mustStand(t, a, "stuck", Verdict{Held: true, Inbound: true})
	mustStand(t, a, "last", Verdict{})
}

func TestLender_ReentryIsBounded(t *testing.T) {
	a := NewAdmission(Limits{Cluster: 2, Outbound: 2, Inbound: 1, Lent: 1}, Options{})
	a.Ask(acting("inside", "n1", "t"), start)
	first := acting("first", "n1", "t")
	a.Ask(first, start)
	a.Ask(claim("second", "n2"), start)
	mustStand(t, a, "first", Verdict{Lent: true})
	mustStand(t, a, "second", Verdict{Held: true})

	// The second is bound for the same node. It has slots when that is free, and the
	// first has none, so it passes.
	a.Ask(acting("second", "n2", "t"), start)
	a.Ask(claim("queued", "n4"), start)
	a.Ask(acting("busy", "n3", ""), start)
	a.Release(key("a", "inside"), start)
	mustStand(t, a, "second", Verdict{Held: true, Inbound: true})
	mustStand(t, a, "first", Verdict{Lent: true})

	// From then on it takes what comes free, and lends no more.
	a.Release(key("a", "busy"), start)
	mustStand(t, a, "first", Verdict{Held: true})
	if woken := a.Release(key("a", "second"), start); !slices.Contains(woken, first.Key) {
		t.Errorf("woken are %v, want the first among them", woken)
	}
	mustStand(t, a, "first", Verdict{Held: true, Inbound: true})
	mustStand(t, a, "queued", Verdict{Held: true})
}

func TestLender_NotOvertakenForBandwidth(t *testing.T) {
	a := NewAdmission(Limits{Cluster: 9, Outbound: 9, Inbound: 9, Lent: 9, Bandwidth: 100}, Options{})
	first, second, third := acting("first", "n1", ""), acting("second", "n1", ""), claim("third", "n1")
	first.Bandwidth, second.Bandwidth, third.Bandwidth = 70, 40, 50
	for _, c := range []*Claim{&first, &second} {
		c.Stuck = true
		a.Ask(*c, start)
		c.Stuck = false
	}
	a.Ask(third, start)
	mustStand(t, a, "third", Verdict{Held: true})
	a.Ask(first, start)
	a.Ask(second, start) // it would fit, and so would the first not for longer
	mustStand(t, a, "first", Verdict{Lent: true})
	mustStand(t, a, "second", Verdict{Lent: true})
	a.Release(third.Key, start)
	mustStand(t, a, "first", Verdict{Held: true})
	mustStand(t, a, "second", Verdict{Lent: true})
}

func TestBandwidthBudget(t *testing.T) {
	a := NewAdmission(Limits{Cluster: 9, Outbound: 9, Inbound: 9, Bandwidth: 100}, Options{})
	ask := func(name string, bandwidth int64) Claim {
		c := claim(name, "n1")
		c.Bandwidth = bandwidth
		a.Ask(c, start)
		return c
	}
	ask("1-small", 60)
	ask("2-unlimited", 0)
	ask("3-small", 40)
	mustStand(t, a, "1-small", Verdict{Held: true})
	mustStand(t, a, "2-unlimited", Verdict{})
	// It would fit, and may not pass.
	mustStand(t, a, "3-small", Verdict{})
	for _, name := range []string{"2-unlimited", "3-small"} {
		want := []Blocker{{Limit: LimitBandwidth, Node: "n1", Used: 60, Max: 100, Holders: []types.NamespacedName{key("a", "1-small")}}}
		if d := cmp.Diff(want, a.Explain(key("a", name), start).Blockers); d != "" {
			t.Errorf("blockers of %s (-want +got):\n%s", name, d)
		}
	}
	// VMIs of other nodes do.
	other := claim("4-other", "n2")
	if v, _ := a.Ask(other, start); !v.Held {
		t.Errorf("verdict is %+v", v)
	}
	a.Release(key("a", "1-small"), start)
	mustStand(t, a, "2-unlimited", Verdict{Held: true})
	mustStand(t, a, "3-small", Verdict{})
	// Without a budget no migration has to wait for it.
	if woken := a.SetLimits(Limits{Cluster: 9, Outbound: 9, Inbound: 9}, start); !slices.Equal(woken, []types.NamespacedName{key("a", "3-small")}) {
		t.Errorf("woken are %v", woken)
	}
}

func TestBudget_SmallerClaimIsAdmitted(t *testing.T) {
	a := NewAdmission(Limits{Cluster: 9, Outbound: 9, Inbound: 9, Bandwidth: 100}, Options{})
	large, small := claim("1", "n1"), claim("2", "n1")
	large.Bandwidth, small.Bandwidth = 60, 60
	a.Ask(large, start)
	a.Ask(small, start)
	mustStand(t, a, "2", Verdict{})
	small.Bandwidth = 40 // by another policy
	if v, _ := a.Ask(small, start); !v.Held {
		t.Errorf("verdict is %+v", v)
	}
}

// TestTurn_PassesToNextOfNode has two namespaces wait for what is left of a node's
// budget, and the one whose turn it is have its turn at another node.
func TestTurn_PassesToNextOfNode(t *testing.T) {
	a := NewAdmission(Limits{Cluster: 9, Outbound: 9, Inbound: 9, Bandwidth: 100}, Options{})
	of := func(ns, node string, seconds int, bandwidth int64) Claim {
		return Claim{Key: key(ns, node), Since: at(seconds), SourceNode: node, Bandwidth: bandwidth}
	}
	half, full := acting("half", "n1", ""), acting("full", "n2", "")
	half.Bandwidth = 50
	for _, c := range []Claim{half, full, of("a", "n1", 1, 80), of("a", "n2", 0, 80), of("b", "n1", 2, 40)} {
		a.Ask(c, at(3))
	}
	if queued := names(a.queued(at(3))); !slices.Equal(queued, []string{"a/n2", "b/n1", "a/n1"}) {
		t.Fatalf("queued are %v", queued)
	}
	if woken := a.Release(full.Key, at(3)); !slices.Equal(woken, []types.NamespacedName{key("a", "n2"), key("b", "n1")}) {
		t.Errorf("woken are %v, want a's, and b's, which is next of its node and fits", woken)
	}
}

func TestBudget_BeyondMaximum(t *testing.T) {
	a := NewAdmission(Limits{Cluster: 9, Outbound: 9, Inbound: 9, Bandwidth: math.MaxInt64}, Options{})
	a.Restore([]Claim{acting("1", "n1", ""), acting("2", "n1", ""), claim("3", "n1"), claim("4", "n2")}, start)
	mustStand(t, a, "3", Verdict{}) // those two take twice the budget
	mustStand(t, a, "4", Verdict{Held: true})
	a.Release(key("a", "1"), start)
	mustStand(t, a, "3", Verdict{})
	a.Release(key("a", "2"), start)
	mustStand(t, a, "3", Verdict{Held: true})
}

func TestRestore_ContinuesTurns(t *testing.T) {
	a := newAdmission(2, 9, 9)
	flood, small := acting("1", "n", ""), Claim{Key: key("b", "1"), Since: at(99), SourceNode: "n"}
	claims := []Claim{flood, acting("2", "n", ""), small}
	for i := range 5 {
		claims = append(claims, claim(fmt.Sprint("waits-", i), "n"))
	}
	a.Restore(claims, at(100))
	if woken := a.Release(flood.Key, at(100)); !slices.Equal(woken, []types.NamespacedName{small.Key}) {
		t.Errorf("woken are %v, want the namespace that has had no turn", woken)
	}
}

// TestQueue_NoStarvation lets one migration wait behind a flood that does not end.
func TestQueue_NoStarvation(t *testing.T) {
	for name, tc := range map[string]struct {
		limits Limits
		victim Claim
		flood  func(i int) Claim
	}{
		"of critical migrations": {
			Limits{Cluster: 3, Outbound: 9, Inbound: 9}, Claim{Key: key("small", "m"), SourceNode: "n"},
			func(i int) Claim {
				return Claim{Key: key("flood", fmt.Sprint(i)), Priority: PriorityCritical, SourceNode: fmt.Sprint(i % 4)}
			},
		},
		"of the same node": {
			Limits{Cluster: 9, Outbound: 1, Inbound: 9}, Claim{Key: key("small", "m"), SourceNode: "n"},
			func(i int) Claim {
				return Claim{Key: key(fmt.Sprint("flood", i%5), fmt.Sprint(i)), Priority: PriorityUser, SourceNode: "n"}
			},
		},
		"of small ones, with a budget": {
			Limits{Cluster: 9, Outbound: 9, Inbound: 9, Bandwidth: 100}, Claim{Key: key("large", "m"), SourceNode: "n"},
			func(i int) Claim {
				return Claim{Key: key("flood", fmt.Sprint(i)), Priority: PriorityUser, SourceNode: "n", Bandwidth: 10}
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			a := NewAdmission(tc.limits, Options{AgeAfter: time.Minute})
			tc.victim.Since = start
			a.Restore([]Claim{tc.flood(0), tc.flood(1), tc.flood(2), tc.flood(3), tc.flood(4), tc.flood(5), tc.flood(6), tc.flood(7), tc.flood(8), tc.flood(9), tc.victim}, start)
			held := slices.Clone(keys(a.holders))
			for i := 10; i < 1000; i++ {
				now := at(i)
				c := tc.flood(i)
				c.Since = now
				if v, _ := a.Ask(c, now); v.Held {
					held = append(held, c.Key)
				}
				if a.Explain(tc.victim.Key, now).Held {
					return
				}
				if len(held) > 0 {
					woken := a.Release(held[0], now)
					held = append(held[1:], woken...)
				}
			}
			t.Errorf("it waits: %+v", a.Explain(tc.victim.Key, at(1000)))
		})
	}
}
