// SPDX-License-Identifier: Apache-2.0

package migration

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
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

func TestQueueOrdersByPriorityThenFairnessThenAge(t *testing.T) {
	q := NewQueue(QueueOptions{})
	at := func(s int) time.Time { return start.Add(time.Duration(s) * time.Second) }
	for _, it := range []Item{
		{Key: key("a", "unset"), Since: at(0)},
		{Key: key("a", "user-1"), Priority: PriorityUser, Since: at(1)},
		{Key: key("a", "user-2"), Priority: PriorityUser, Since: at(2)},
		{Key: key("a", "user-3"), Priority: PriorityUser, Since: at(3)},
		{Key: key("b", "user-1"), Priority: PriorityUser, Since: at(4)},
		{Key: key("b", "maintenance"), Priority: PriorityMaintenance, Since: at(5)},
		{Key: key("c", "critical"), Priority: PriorityCritical, Since: at(6)},
	} {
		q.Put(it)
	}
	want := []string{"c/critical", "a/user-1", "b/user-1", "a/user-2", "a/user-3", "b/maintenance", "a/unset"}
	if d := cmp.Diff(want, names(q.Order(at(10)))); d != "" {
		t.Errorf("order (-want +got):\n%s", d)
	}
	if p := q.Position(key("b", "maintenance"), at(10)); p != 6 {
		t.Errorf("position is %d, want 6", p)
	}
	if p := q.Position(key("b", "nobody"), at(10)); p != 0 {
		t.Errorf("position of a stranger is %d, want 0", p)
	}
}

func TestQueueWithoutFairnessIsByAge(t *testing.T) {
	q := NewQueue(QueueOptions{Unfair: true})
	for i, k := range []types.NamespacedName{key("a", "1"), key("a", "2"), key("b", "1")} {
		q.Put(Item{Key: k, Since: start.Add(time.Duration(i) * time.Second)})
	}
	if d := cmp.Diff([]string{"a/1", "a/2", "b/1"}, names(q.Order(start))); d != "" {
		t.Errorf("order (-want +got):\n%s", d)
	}
}

func TestAgeingBoundsWaiting(t *testing.T) {
	q := NewQueue(QueueOptions{AgeAfter: time.Minute})
	q.Put(Item{Key: key("a", "old"), Since: start})
	for age, want := range map[time.Duration]int{0: 4, time.Minute: 3, 2 * time.Minute: 2, 3 * time.Minute: 1, time.Hour: 1} {
		now := start.Add(age)
		for name, p := range map[string]int{"critical": PriorityCritical, "user": PriorityUser, "maintenance": PriorityMaintenance} {
			q.Remove(key("a", name))
			// The newcomers are of the same namespace, where only age tells
			// migrations of one level apart.
			q.Put(Item{Key: key("a", name), Priority: p, Since: now.Add(time.Second)})
		}
		if got := q.Position(key("a", "old"), now); got != want {
			t.Errorf("after %s: position %d, want %d", age, got, want)
		}
	}
}

func TestPriorityChangesInPlace(t *testing.T) {
	q := NewQueue(QueueOptions{})
	q.Put(Item{Key: key("a", "1"), Since: start})
	q.Put(Item{Key: key("a", "2"), Since: start.Add(time.Second)})
	q.Put(Item{Key: key("a", "2"), Priority: PriorityCritical, Since: start.Add(time.Hour)})
	if d := cmp.Diff([]string{"a/2", "a/1"}, names(q.Order(start))); d != "" {
		t.Errorf("order (-want +got):\n%s", d)
	}
	if got := q.Order(start)[0].Since; !got.Equal(start.Add(time.Second)) {
		t.Errorf("waiting since %s, want the first time kept", got)
	}
	q.Put(Item{Key: key("a", "2")})
	if d := cmp.Diff([]string{"a/1", "a/2"}, names(q.Order(start))); d != "" {
		t.Errorf("order after lowering (-want +got):\n%s", d)
	}
}

func TestNamespacesShareByWeight(t *testing.T) {
	q := NewQueue(QueueOptions{Weights: map[string]float64{"heavy": 3}})
	for i := range 40 {
		for _, ns := range []string{"heavy", "light"} {
			q.Put(Item{Key: key(ns, fmt.Sprintf("m%02d", i)), Since: start})
		}
	}
	taken := map[string]int{}
	for range 40 {
		next := q.Order(start)[0].Key
		taken[next.Namespace]++
		q.Take(next)
	}
	if taken["heavy"] != 30 || taken["light"] != 10 {
		t.Errorf("taken are %v, want 30 and 10", taken)
	}
}

func TestAbsenceEarnsNothing(t *testing.T) {
	q := NewQueue(QueueOptions{})
	for i := range 20 {
		q.Put(Item{Key: key("busy", fmt.Sprintf("m%02d", i)), Since: start})
	}
	for range 10 {
		q.Take(q.Order(start)[0].Key)
	}
	for i := range 10 {
		q.Put(Item{Key: key("late", fmt.Sprintf("m%02d", i)), Since: start.Add(time.Hour)})
	}
	first := names(q.Order(start))[:4]
	if d := cmp.Diff([]string{"busy/m10", "late/m00", "busy/m11", "late/m01"}, first); d != "" {
		t.Errorf("order (-want +got):\n%s", d)
	}
}

// TestOrderIsTheOrderOfTaking compares the predicted order with taking one by
// one, which is what a place in the queue promises.
func TestOrderIsTheOrderOfTaking(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		q := NewQueue(QueueOptions{Weights: map[string]float64{"n0": 2}})
		for i := range 1 + rng.IntN(30) {
			q.Put(Item{
				Key:      key(fmt.Sprintf("n%d", rng.IntN(4)), fmt.Sprintf("m%d", i)),
				Priority: levels[rng.IntN(len(levels))], Since: start.Add(time.Duration(rng.IntN(3000)) * time.Second),
			})
		}
		now := start.Add(time.Hour)
		predicted := names(q.Order(now))
		var taken []string
		for q.Len() > 0 {
			next := q.Order(now)[0]
			taken = append(taken, next.Key.String())
			q.Take(next.Key)
		}
		if d := cmp.Diff(predicted, taken); d != "" {
			t.Fatalf("taken in another order than predicted (-predicted +taken):\n%s", d)
		}
		slices.Sort(taken)
		if len(slices.Compact(taken)) != len(predicted) {
			t.Fatal("an item was taken twice")
		}
	}
}
