// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
)

func key(ns, name string) types.NamespacedName {
	return types.NamespacedName{Namespace: ns, Name: name}
}

func names(items []Item) []string {
	var out []string
	for _, it := range items {
		out = append(out, it.Key.String())
	}
	return out
}

var start = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// at is a moment so many seconds after the start.
func at(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }

// newQueue returns a queue of which it is always the start.
func newQueue(o Options) *Queue {
	o.Clock = clocktesting.NewFakePassiveClock(start)
	return NewQueue(o)
}

// take gets the next item without waiting for one.
func take(t *testing.T, q *Queue) Item {
	t.Helper()
	it, found, err := q.tryGet()
	if !found || err != nil {
		t.Fatalf("nothing to get: %v", err)
	}
	return it
}

func mustOrder(t *testing.T, q *Queue, want ...string) {
	t.Helper()
	if d := cmp.Diff(want, names(q.Snapshot())); d != "" {
		t.Errorf("order (-want +got):\n%s", d)
	}
}

func TestQueue_Order(t *testing.T) {
	q := newQueue(Options{})
	for _, it := range []Item{
		{Key: key("a", "unset"), Since: at(0)},
		{Key: key("a", "user-1"), Priority: PriorityUser, Since: at(1)},
		{Key: key("a", "user-2"), Priority: PriorityUser, Since: at(2)},
		{Key: key("a", "user-3"), Priority: PriorityUser, Since: at(3)},
		{Key: key("b", "user-1"), Priority: PriorityUser, Since: at(4)},
		{Key: key("b", "maintenance"), Priority: PriorityMaintenance, Since: at(5)},
		{Key: key("c", "critical"), Priority: PriorityCritical, Since: at(6)},
	} {
		q.Add(it)
	}
	mustOrder(t, q, "c/critical", "a/user-1", "b/user-1", "a/user-2", "a/user-3", "b/maintenance", "a/unset")
	if p := q.Position(key("b", "maintenance")); p != 6 {
		t.Errorf("position is %d, want 6", p)
	}
	if p := q.Position(key("b", "nobody")); p != 0 {
		t.Errorf("position of a stranger is %d, want 0", p)
	}
}

func TestS14Order(t *testing.T) {
	t.Run("S14/65 five of each priority are served by priority", func(t *testing.T) {
		q := newQueue(Options{})
		for i := range 5 {
			for _, p := range []int{PriorityUnset, PriorityMaintenance, PriorityUser, PriorityCritical} {
				q.Add(Item{Key: key("a", fmt.Sprintf("%d-%d", p, i)), Priority: p, Since: at(i)})
			}
		}
		for _, p := range []int{PriorityCritical, PriorityUser, PriorityMaintenance, PriorityUnset} {
			for i := range 5 {
				if it := take(t, q); it.Key != key("a", fmt.Sprintf("%d-%d", p, i)) {
					t.Errorf("got %s, want number %d of priority %d", it.Key, i, p)
				}
			}
		}
	})
}

func TestQueue_Unfair(t *testing.T) {
	q := newQueue(Options{Unfair: true})
	for i, k := range []types.NamespacedName{key("a", "1"), key("a", "2"), key("b", "1")} {
		q.Add(Item{Key: k, Since: at(i)})
	}
	mustOrder(t, q, "a/1", "a/2", "b/1")
}

func TestAgeing_RaisesLevel(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(start)
	q := NewQueue(Options{AgeAfter: time.Minute, Clock: clock})
	q.Add(Item{Key: key("a", "old"), Since: start})
	for minutes, want := range []int{4, 3, 2, 1, 1} {
		now := start.Add(time.Duration(minutes) * time.Minute)
		clock.SetTime(now)
		for name, p := range map[string]int{"critical": PriorityCritical, "user": PriorityUser, "maintenance": PriorityMaintenance} {
			q.Remove(key("a", name))
			// The newcomers are of the same namespace, where only age distinguishes those
			// of one level apart.
			q.Add(Item{Key: key("a", name), Priority: p, Since: now.Add(time.Second)})
		}
		if got := q.Position(key("a", "old")); got != want {
			t.Errorf("after %d minutes: position %d, want %d", minutes, got, want)
		}
	}
}

func TestPriority_ChangesInPlace(t *testing.T) {
	q := newQueue(Options{})
	q.Add(Item{Key: key("a", "1"), Since: at(0)})
	q.Add(Item{Key: key("a", "2"), Since: at(1)})
	q.Add(Item{Key: key("a", "2"), Priority: PriorityCritical, Since: at(3600)})
	mustOrder(t, q, "a/2", "a/1")
	if got := q.Snapshot()[0].Since; !got.Equal(at(1)) {
		t.Errorf("waiting since %s, want the first time kept", got)
	}
	q.Add(Item{Key: key("a", "2")})
	mustOrder(t, q, "a/1", "a/2")
}

func TestNamespaces_ShareByWeight(t *testing.T) {
	weights := map[string]float64{"heavy": 3}
	q := newQueue(Options{Weights: weights})
	weights["light"] = 100 // the map is the caller's
	for i := range 40 {
		for _, ns := range []string{"heavy", "light"} {
			q.Add(Item{Key: key(ns, fmt.Sprintf("m%02d", i)), Since: start})
		}
	}
	taken := map[string]int{}
	for range 40 {
		taken[take(t, q).Key.Namespace]++
	}
	if taken["heavy"] != 30 || taken["light"] != 10 {
		t.Errorf("taken are %v, want 30 and 10", taken)
	}
}

func TestAccounts_AbsenceEarnsNothing(t *testing.T) {
	q := newQueue(Options{})
	for i := range 20 {
		q.Add(Item{Key: key("busy", fmt.Sprintf("m%02d", i)), Since: start})
	}
	for range 10 {
		take(t, q)
	}
	for i := range 10 {
		q.Add(Item{Key: key("late", fmt.Sprintf("m%02d", i)), Since: at(3600)})
	}
	want := []string{"late/m00", "busy/m10", "late/m01", "busy/m11"}
	if d := cmp.Diff(want, names(q.Snapshot())[:4]); d != "" {
		t.Errorf("order (-want +got):\n%s", d)
	}
}

func TestBlockedLanes_EarnOneTurn(t *testing.T) {
	q := newQueue(Options{})
	for i := range 20 {
		q.Add(Item{Key: key("free", fmt.Sprintf("m%02d", i)), Since: at(i), Lane: "n2"})
		q.Add(Item{Key: key("shut", fmt.Sprintf("m%02d", i)), Since: at(100 + i), Lane: "n1"})
	}
	q.Block("n1")
	for range 10 {
		if it := take(t, q); it.Lane != "n2" {
			t.Fatalf("got %+v from a blocked lane", it)
		}
	}
	q.Unblock("n1")
	var got []string
	for range 4 {
		got = append(got, take(t, q).Key.Namespace)
	}
	if d := cmp.Diff([]string{"shut", "free", "shut", "free"}, got); d != "" {
		t.Errorf("turns (-want +got):\n%s", d)
	}
}

func TestOrder_ReplacesAge(t *testing.T) {
	q := newQueue(Options{Order: smallest})
	for i, size := range []int64{30, 10, 20} {
		q.Add(Item{Key: key("a", fmt.Sprint(size)), Since: at(i), Size: size})
	}
	q.Add(Item{Key: key("b", "99"), Since: at(9), Size: 99})
	q.Add(Item{Key: key("a", "1000"), Since: at(10), Size: 1000, Priority: PriorityUser})
	mustOrder(t, q, "a/1000", "a/10", "b/99", "a/20", "a/30")
}

// TestAccounts_AreSwept lets very many namespaces pass by one that waits in a
// blocked lane, so that its level is never empty.
func TestAccounts_AreSwept(t *testing.T) {
	q := newQueue(Options{})
	q.Add(Item{Key: key("stays", "m"), Lane: "shut"})
	q.Block("shut")
	for i := range 20_000 {
		k := key(fmt.Sprintf("n%d", i), "m")
		q.Add(Item{Key: k, Lane: fmt.Sprintf("l%d", i)})
		take(t, q)
		q.Done(k)
	}
	kept := 0
	for i := range q.line.levels {
		kept += len(q.line.levels[i].accounts)
	}
	if most := 2*maxIdleAccounts + 2; kept > most || len(q.line.lanes) > most || len(q.jobs) != 1 {
		t.Errorf("kept are %d accounts, %d lanes, %d jobs", kept, len(q.line.lanes), len(q.jobs))
	}
}

// TestSweep_NewcomersStartNoBetter has so many namespaces had a turn that some are forgotten.
func TestSweep_NewcomersStartNoBetter(t *testing.T) {
	q := newQueue(Options{})
	q.Add(Item{Key: key("stays", "m"), Lane: "shut"})
	q.Block("shut")
	turn := func(ns string) {
		q.Add(Item{Key: key(ns, "m")})
		q.Done(take(t, q).Key)
	}
	turn("remembered")
	for i := range maxIdleAccounts + 100 {
		turn(fmt.Sprintf("n%04d", i))
	}
	accounts := q.line.levels[0].accounts
	if accounts["n0000"] != nil || accounts["remembered"] == nil {
		t.Fatalf("of %d accounts others are kept than the test wants", len(accounts))
	}
	q.Add(Item{Key: key("n0000", "again"), Since: at(2)})
	q.Add(Item{Key: key("remembered", "again"), Since: at(1)})
	if it := take(t, q); it.Key.Namespace != "remembered" {
		t.Errorf("%s goes first, and has had a turn too", it.Key)
	}
}
