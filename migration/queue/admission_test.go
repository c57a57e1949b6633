// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"fmt"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
)

func claim(name, node string) Claim {
	return Claim{Key: key("a", name), Since: start, SourceNode: node}
}

// acting is a claim with a target Pod, on the target node if that is known.
func acting(name, from, to string) Claim {
	c := claim(name, from)
	c.Acting, c.TargetNode = true, to
	return c
}

func newAdmission(cluster, outbound, inbound int) *Admission {
	return NewAdmission(Limits{Cluster: cluster, Outbound: outbound, Inbound: inbound}, Options{})
}

func TestAdmission_ExplainsBlockers(t *testing.T) {
	a := newAdmission(2, 1, 1)
	if v, _ := a.Ask(claim("1", "n1"), start); !v.Held {
		t.Fatalf("the first is not admitted: %+v", v)
	}
	a.Ask(claim("2", "n1"), start)
	v := a.Explain(key("a", "2"), start)
	want := []Blocker{{Limit: LimitOutbound, Node: "n1", Used: 1, Max: 1, Holders: []types.NamespacedName{key("a", "1")}}}
	if d := cmp.Diff(want, v.Blockers); d != "" || v.Position != 1 || v.Waiting != 1 {
		t.Errorf("verdict %+v; blockers (-want +got):\n%s", v, d)
	}
	// The one behind is not held back by the node of the one before it.
	if v, _ := a.Ask(claim("3", "n2"), start); !v.Held {
		t.Errorf("a free slot was withheld: %+v", v)
	}
	answer, _ := a.Ask(claim("4", "n3"), start)
	v = a.Explain(key("a", "4"), start)
	if len(v.Blockers) != 1 || v.Blockers[0].Limit != LimitCluster || v.Position != 2 || len(v.Blockers[0].Holders) != 2 {
		t.Errorf("verdict is %+v", v)
	}
	if answer.Text() != v.Text() {
		t.Errorf("Ask returns %q, Explain %q", answer.Text(), v.Text())
	}
	if v := a.Explain(key("a", "nobody"), start); v.Asked {
		t.Errorf("verdict on a stranger is %+v", v)
	}
}

func TestVerdict_StableText(t *testing.T) {
	some := Limits{Cluster: 5, Outbound: 2, Inbound: 3, Bandwidth: 64 << 20}
	for name, tc := range map[string]struct {
		v    Verdict
		want string
	}{
		"queue": {
			Verdict{Asked: true, SourceNode: "n1", Limits: Limits{Cluster: 5, Outbound: 2}},
			"waiting for a slot: at most 5 migrations in the cluster (parallelMigrationsPerCluster), 2 leaving node n1 (parallelOutboundMigrationsPerNode)",
		},
		"queue with a budget": {
			Verdict{Asked: true, SourceNode: "n1", Limits: some},
			"waiting for a slot: at most 5 migrations in the cluster (parallelMigrationsPerCluster), 2 leaving node n1 (parallelOutboundMigrationsPerNode), " +
				"64Mi/s leaving node n1 (migrationBandwidthPerNode)",
		},
		"target": {
			Verdict{Asked: true, Held: true, TargetNode: "n2", Limits: some},
			"waiting for a slot: at most 3 migrations entering node n2 (parallelInboundMigrationsPerNode), 64Mi/s entering node n2 (migrationBandwidthPerNode)",
		},
		"cluster limit of 0":  {Verdict{Asked: true, Limits: Limits{Outbound: 2}}, "no migration may start: parallelMigrationsPerCluster is 0"},
		"outbound limit of 0": {Verdict{Asked: true, Limits: Limits{Cluster: 2}}, "no migration may leave a node: parallelOutboundMigrationsPerNode is 0"},
		"inbound limit of 0": {
			Verdict{Asked: true, Lent: true, TargetNode: "n2", Limits: Limits{Cluster: 2, Outbound: 2}},
			"no migration may enter a node: parallelInboundMigrationsPerNode is 0",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := tc.v.Text(); got != tc.want {
				t.Errorf("text is\n%s, want\n%s", got, tc.want)
			}
		})
	}
}

func TestRelease_WakesAtOnce(t *testing.T) {
	a := newAdmission(1, 9, 9)
	a.Ask(claim("1", "n1"), start)
	a.Ask(claim("2", "n1"), start)
	high := claim("3", "n1")
	high.Priority = PriorityCritical
	a.Ask(high, start)
	if woken := a.Release(key("a", "1"), start); !cmp.Equal(woken, []types.NamespacedName{high.Key}) {
		t.Fatalf("woken are %v, want the critical one alone", woken)
	}
	if v, _ := a.Ask(high, start); !v.Held {
		t.Error("the slot was not reserved for the one woken")
	}
	if v := a.Explain(key("a", "2"), start); v.Held {
		t.Error("two hold the only slot")
	}
	if woken := a.Release(key("a", "nobody"), start); len(woken) != 0 {
		t.Errorf("releasing nothing woke %v", woken)
	}
}

func TestInboundSlots(t *testing.T) {
	a := newAdmission(9, 9, 1)
	if v, _ := a.Ask(acting("1", "n1", "t"), start); !v.Inbound {
		t.Fatalf("verdict is %+v", v)
	}
	second := acting("2", "n1", "t")
	if v, _ := a.Ask(second, start); v.Inbound || !v.Held {
		t.Fatalf("verdict is %+v", v)
	}
	if v := a.Explain(second.Key, start); len(v.Blockers) != 1 || v.Blockers[0].Limit != LimitInbound || v.Blockers[0].Node != "t" {
		t.Fatalf("verdict is %+v", v)
	}
	if woken := a.Release(key("a", "1"), start); !cmp.Equal(woken, []types.NamespacedName{second.Key}) {
		t.Errorf("woken are %v, want the one that waits to enter", woken)
	}
	if v := a.Explain(second.Key, start); !v.Inbound {
		t.Errorf("verdict is %+v", v)
	}
}

func TestRestore_KeepsSlotsAndOrder(t *testing.T) {
	a := newAdmission(2, 9, 9)
	low, high := claim("low", "n2"), claim("high", "n2")
	high.Priority = PriorityUser
	claims := []Claim{low, high}
	for i := range 3 {
		claims = append(claims, acting(fmt.Sprintf("acting-%d", i), "n1", ""))
	}
	woken := a.Restore(claims, start)
	if u := a.Usage(); u.Cluster != 3 || len(woken) != 0 {
		t.Fatalf("usage %+v, woken %v: no claim may be admitted beyond the limit", u, woken)
	}
	a.Release(key("a", "acting-0"), start)
	if woken := a.Release(key("a", "acting-1"), start); !cmp.Equal(woken, []types.NamespacedName{high.Key}) {
		t.Errorf("woken are %v, want the one of higher priority", woken)
	}
}

func TestAdmission_WakesOnlyProceeding(t *testing.T) {
	a := newAdmission(1, 1000, 1000)
	for i := range 500 {
		a.Ask(claim(fmt.Sprintf("m%03d", i), "n1"), start)
	}
	if woken := a.Release(key("a", "m000"), start); !cmp.Equal(woken, []types.NamespacedName{key("a", "m001")}) {
		t.Errorf("one freed slot woke %v", woken)
	}
}

func TestAdmission_ConcurrentUse(t *testing.T) {
	a := NewAdmission(Limits{Cluster: 3, Outbound: 2, Inbound: 1, Lent: 2, Bandwidth: 100}, Options{})
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 50 {
				c := Claim{Key: key(fmt.Sprintf("ns%d", g), fmt.Sprint(i)), Since: start, SourceNode: fmt.Sprint(i % 5), Bandwidth: int64(i)}
				a.Ask(c, start)
				a.Explain(c.Key, start)
				if u := a.Usage(); u.Cluster > 3 {
					t.Errorf("%d slots in use", u.Cluster)
				}
				a.Release(c.Key, start)
			}
		})
	}
	wg.Wait()
	if u := a.Usage(); u.Cluster != 0 || len(a.queued(start)) != 0 || len(a.nodes) != 0 {
		t.Errorf("left over: %+v, %d waiting, nodes %v", u, len(a.queued(start)), a.nodes)
	}
}
