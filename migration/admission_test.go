// SPDX-License-Identifier: Apache-2.0

package migration

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
)

func claim(name, node string) Claim {
	return Claim{Key: key("a", name), Since: start, SourceNode: node}
}

func TestAdmissionExplainsWhatBlocks(t *testing.T) {
	a := NewAdmission(Limits{Cluster: 2, Outbound: 1, Inbound: 1}, nil)
	if v, _ := a.Ask(claim("1", "n1"), start); !v.Held {
		t.Fatalf("the first is not admitted: %+v", v)
	}
	v, _ := a.Ask(claim("2", "n1"), start)
	want := []Blocker{{Limit: LimitOutbound, Node: "n1", Used: 1, Max: 1, Holders: []types.NamespacedName{key("a", "1")}}}
	if d := cmp.Diff(want, v.Blockers); d != "" || v.Position != 1 || v.Waiting != 1 {
		t.Errorf("verdict %+v; blockers (-want +got):\n%s", v, d)
	}
	// The one behind is not held back by the node of the one before it.
	if v, _ := a.Ask(claim("3", "n2"), start); !v.Held {
		t.Errorf("a free slot was kept from who may use it: %+v", v)
	}
	v, _ = a.Ask(claim("4", "n3"), start)
	if len(v.Blockers) != 1 || v.Blockers[0].Limit != LimitCluster || v.Position != 2 {
		t.Errorf("verdict is %+v", v)
	}
	if text := v.Text(); !strings.Contains(text, "all 2 slots of the cluster") || !strings.Contains(text, "place 2") {
		t.Errorf("text is %q", text)
	}
	if d := cmp.Diff(v, a.Explain(key("a", "4"), start)); d != "" {
		t.Errorf("Explain differs from Ask (-ask +explain):\n%s", d)
	}
}

func TestReleaseWakesWhoMayProceedAtOnce(t *testing.T) {
	a := NewAdmission(Limits{Cluster: 1, Outbound: 9, Inbound: 9}, nil)
	a.Ask(claim("1", "n1"), start)
	a.Ask(claim("2", "n1"), start)
	a.Ask(Claim{Key: key("a", "3"), Since: start, SourceNode: "n1", Priority: PriorityCritical}, start)
	woken := a.Release(key("a", "1"), start)
	if len(woken) == 0 || woken[0] != key("a", "3") {
		t.Fatalf("woken are %v, want the critical one first", woken)
	}
	if v, _ := a.Ask(Claim{Key: key("a", "3"), Since: start, SourceNode: "n1", Priority: PriorityCritical}, start); !v.Held {
		t.Error("the slot was not reserved for the one woken")
	}
	if v := a.Explain(key("a", "2"), start); v.Held {
		t.Error("two hold the only slot")
	}
	if woken := a.Release(key("a", "nobody"), start); len(woken) != 0 {
		t.Errorf("releasing nothing woke %v", woken)
	}
}

func TestRaisedLimitsWakeAtOnceLoweredTakeNothingAway(t *testing.T) {
	a := NewAdmission(Limits{Cluster: 1, Outbound: 9, Inbound: 9}, nil)
	for i := range 4 {
		a.Ask(claim(fmt.Sprint(i), "n1"), start)
	}
	woken := a.SetLimits(Limits{Cluster: 3, Outbound: 9, Inbound: 9}, start)
	if u := a.Usage(); u.Cluster != 3 || len(woken) < 2 {
		t.Errorf("usage %+v, woken %v; want three slots in use and two woken", u, woken)
	}
	a.SetLimits(Limits{}, start)
	if u := a.Usage(); u.Cluster != 3 {
		t.Errorf("usage is %+v after lowering the limits, want 3", u)
	}
}

func TestInboundSlots(t *testing.T) {
	a := NewAdmission(Limits{Cluster: 9, Outbound: 9, Inbound: 1}, nil)
	c1, c2 := claim("1", "n1"), claim("2", "n1")
	c1.Acting, c1.TargetNode = true, "t"
	c2.Acting, c2.TargetNode = true, "t"
	if v, _ := a.Ask(c1, start); !v.Inbound {
		t.Fatalf("verdict is %+v", v)
	}
	v, _ := a.Ask(c2, start)
	if v.Inbound || !v.Held || len(v.Blockers) != 1 || v.Blockers[0].Limit != LimitInbound {
		t.Fatalf("verdict is %+v", v)
	}
	if woken := a.Release(c1.Key, start); len(woken) != 1 || woken[0] != c2.Key {
		t.Errorf("woken are %v, want the one that waits to enter", woken)
	}
	if v := a.Explain(c2.Key, start); !v.Inbound {
		t.Errorf("verdict is %+v", v)
	}
}

func TestRestoreKeepsSlotsInUseAndTheOrder(t *testing.T) {
	a := NewAdmission(Limits{Cluster: 2, Outbound: 9, Inbound: 9}, nil)
	var claims []Claim
	for i := range 3 {
		c := claim(fmt.Sprintf("acting-%d", i), "n1")
		c.Acting = true
		claims = append(claims, c)
	}
	low, high := claim("low", "n2"), claim("high", "n2")
	high.Priority = PriorityUser
	woken := a.Restore(append([]Claim{low, high}, claims...), start)
	if u := a.Usage(); u.Cluster != 3 || len(woken) != 0 {
		t.Fatalf("usage %+v, woken %v: nobody may be admitted beyond the limit", u, woken)
	}
	a.Release(claims[0].Key, start)
	if woken := a.Release(claims[1].Key, start); len(woken) == 0 || woken[0] != high.Key {
		t.Errorf("woken are %v, want the one of higher priority", woken)
	}
}

// TestLimitsHoldUnderAnySequence drives Admission at random and checks after each
// step what must always be true.
func TestLimitsHoldUnderAnySequence(t *testing.T) {
	for seed := range uint64(15) {
		rng := rand.New(rand.NewPCG(seed, 7))
		l := Limits{Cluster: 1 + rng.IntN(5), Outbound: 1 + rng.IntN(3), Inbound: 1 + rng.IntN(2)}
		a := NewAdmission(l, nil)
		claims := map[types.NamespacedName]Claim{}
		now := start
		for range 200 {
			now = now.Add(time.Second)
			k := key(fmt.Sprintf("ns%d", rng.IntN(3)), fmt.Sprintf("m%d", rng.IntN(12)))
			if c, known := claims[k]; known && rng.IntN(3) == 0 {
				a.Release(k, now)
				delete(claims, k)
				_ = c
				check(t, a, l, claims, now)
				continue
			}
			c, known := claims[k]
			if !known {
				c = Claim{Key: k, Since: now, SourceNode: fmt.Sprintf("s%d", rng.IntN(4)), Priority: levels[rng.IntN(len(levels))]}
			}
			if a.Explain(k, now).Held && c.TargetNode == "" && rng.IntN(2) == 0 {
				c.Acting, c.TargetNode = true, fmt.Sprintf("t%d", rng.IntN(3))
			}
			claims[k] = c
			a.Ask(c, now)
			check(t, a, l, claims, now)
		}
	}
}

func check(t *testing.T, a *Admission, l Limits, claims map[types.NamespacedName]Claim, now time.Time) {
	t.Helper()
	u := a.Usage()
	if u.Cluster > l.Cluster {
		t.Fatalf("%d slots of %d are in use", u.Cluster, l.Cluster)
	}
	for node, n := range u.Outbound {
		if n > l.Outbound {
			t.Fatalf("%d slots of %d for leaving %s are in use", n, l.Outbound, node)
		}
	}
	for node, n := range u.Inbound {
		if n > l.Inbound {
			t.Fatalf("%d slots of %d for entering %s are in use", n, l.Inbound, node)
		}
	}
	held := 0
	for k := range claims {
		v := a.Explain(k, now)
		switch {
		case !v.Asked:
			t.Fatalf("the claim of %s is lost", k)
		case v.Held:
			held++
		case len(v.Blockers) == 0:
			t.Fatalf("%s waits although nothing blocks it", k)
		}
	}
	if held != u.Cluster {
		t.Fatalf("%d hold slots, %d slots are counted", held, u.Cluster)
	}
}

// TestEveryNamespaceProgresses lets one namespace flood the queue.
func TestEveryNamespaceProgresses(t *testing.T) {
	a := NewAdmission(Limits{Cluster: 1, Outbound: 1000, Inbound: 1000}, nil)
	claims := map[types.NamespacedName]Claim{}
	add := func(ns string, i int) {
		c := Claim{Key: key(ns, fmt.Sprintf("m%03d", i)), Since: start.Add(time.Duration(i) * time.Second), SourceNode: "n"}
		claims[c.Key] = c
		a.Ask(c, start)
	}
	for i := range 100 {
		add("flood", i)
	}
	add("small", 200)
	for finished := 1; ; finished++ {
		for k := range claims {
			if a.Explain(k, start).Held {
				if k.Namespace == "small" {
					return
				}
				a.Release(k, start)
				delete(claims, k)
				break
			}
		}
		if finished > 3 {
			t.Fatal("a namespace with one migration waits behind a flood of another")
		}
	}
}

func TestWaitersAreWokenOnlyWhenTheirAnswerChanges(t *testing.T) {
	a := NewAdmission(Limits{Cluster: 1, Outbound: 1000, Inbound: 1000}, nil)
	for i := range 500 {
		c := claim(fmt.Sprintf("m%03d", i), "n1")
		c.Since = start.Add(time.Duration(i) * time.Second)
		a.Ask(c, start)
	}
	// One is admitted, and the first few move up; all others were told that
	// they stand further back, which stays true.
	if woken := a.Release(key("a", "m000"), start); len(woken) > 1+front {
		t.Errorf("one freed slot woke %d migrations", len(woken))
	}
}

func TestAdmissionIsSafeForConcurrentUse(t *testing.T) {
	a := NewAdmission(Limits{Cluster: 3, Outbound: 2, Inbound: 1}, nil)
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 50 {
				c := Claim{Key: key(fmt.Sprintf("ns%d", g), fmt.Sprint(i)), Since: start, SourceNode: fmt.Sprint(i % 5)}
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
	if u := a.Usage(); u.Cluster != 0 || len(a.Queued(start)) != 0 {
		t.Errorf("left over: %+v, %d waiting", u, len(a.Queued(start)))
	}
}
