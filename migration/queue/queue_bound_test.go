// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
)

var boundWeights = map[string]float64{"n0": 1, "n1": 2, "n2": 0.5, "n3": 3}

// watched counts what is taken before an item from the time on at which it is of
// the highest level.
type watched struct {
	top   time.Time
	own   int
	taken map[string]int
}

// TestQueue_WaitIsBounded checks the bound that [Queue] documents, for every item of
// random runs in which others keep coming with higher priorities.
func TestQueue_WaitIsBounded(t *testing.T) {
	checked := 0
	for seed := range uint64(30) {
		pick := chance(seed)
		clock := clocktesting.NewFakePassiveClock(start)
		q := NewQueue(Options{AgeAfter: 10 * time.Second, Weights: boundWeights, Clock: clock})
		waiting := map[types.NamespacedName]*watched{}
		q.Block("shut")
		for i := range 1000 {
			clock.SetTime(clock.Now().Add(time.Duration(pick(2)) * time.Second))
			for range pick(3) {
				it := Item{Key: key(fmt.Sprintf("n%d", pick(4)), fmt.Sprint(i, pick(9))), Priority: levels[pick(len(levels))], Since: clock.Now()}
				if waiting[it.Key] == nil {
					q.Add(it)
					rest := time.Duration(topLevel-baseLevel(it.Priority)) * 10 * time.Second
					waiting[it.Key] = &watched{top: it.Since.Add(rest), taken: map[string]int{}}
				}
			}
			shut(q, pick, i)
			if it, found, _ := q.tryGet(); found {
				q.Done(it.Key)
				checked += took(t, waiting, it, clock.Now())
			}
		}
	}
	if checked < 5_000 {
		t.Errorf("only %d items were checked", checked)
	}
}

// shut adds items to lanes that are opened now and then, so that accounts fall
// behind.
func shut(q *Queue, pick choose, i int) {
	if pick(4) == 0 {
		q.Add(Item{Key: key(fmt.Sprintf("n%d", pick(4)), fmt.Sprint("shut", i)), Priority: levels[pick(len(levels))], Lane: "shut"})
	}
	switch pick(30) {
	case 0:
		q.Unblock("shut")
	case 1:
		q.Block("shut")
	}
}

// took counts the item against those that wait, and checks it if it was one of
// those; it returns how many were checked.
func took(t *testing.T, waiting map[types.NamespacedName]*watched, it Item, now time.Time) int {
	t.Helper()
	for k, w := range waiting {
		switch {
		case k == it.Key || now.Before(w.top):
		case k.Namespace == it.Key.Namespace:
			w.own++
		default:
			w.taken[it.Key.Namespace]++
		}
	}
	w := waiting[it.Key]
	if w == nil {
		return 0
	}
	delete(waiting, it.Key)
	for ns, n := range w.taken {
		most := 1 + int(float64(w.own+1)*boundWeights[ns]/boundWeights[it.Key.Namespace])
		if n > most {
			t.Fatalf("%d items of %s were taken before %s, behind %d of its own namespace; the bound is %d", n, ns, it.Key, w.own, most)
		}
	}
	return 1
}
