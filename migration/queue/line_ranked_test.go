// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"fmt"
	"slices"
	"testing"
)

func byAge(a, b *node) bool { return older(&a.Item, &b.Item) < 0 }

// TestRanked_Sorted compares a list that grows to many chunks, and shrinks to nothing,
// with a slice after each of many random steps.
func TestRanked_Sorted(t *testing.T) {
	const nodes, steps = 20 * chunkSize, 60_000
	inform(t, 5, func() {
		pick := chance(5)
		var l ranked
		var want []*node
		most := 0
		for step := range steps {
			n := &node{Item: Item{Key: key("a", fmt.Sprint(step)), Since: at(pick(nodes))}}
			place, _ := slices.BinarySearchFunc(want, n, func(x, y *node) int { return older(&x.Item, &y.Item) })
			// It grows in the first half, and then shrinks from its front more than anywhere.
			grow := pick(10) < 7
			if step > steps/2 {
				grow = !grow
			}
			switch {
			case grow:
				l.insert(n, byAge)
				want = slices.Insert(want, place, n)
			case len(want) > 0:
				place = pick(len(want)) * pick(2)
				l.remove(want[place], byAge)
				want = slices.Delete(want, place, place+1)
			}
			most = max(most, len(l.chunks))
			mustRank(t, &l, want, pick)
		}
		if most < 20 {
			t.Errorf("there were %d chunks at most, too few to test anything", most)
		}
	})
}

func mustRank(t *testing.T, l *ranked, want []*node, pick choose) {
	t.Helper()
	if len(want) == 0 {
		if l.n != 0 || l.first() != nil || l.at(0) != nil {
			t.Fatalf("%d are left, the first is %v", l.n, l.first())
		}
		return
	}
	i := pick(len(want))
	if l.n != len(want) || l.first() != want[0] || l.at(i) != want[i] || l.rank(want[i], byAge) != i || l.at(len(want)) != nil {
		t.Fatalf("of %d, which should be %d, number %d has rank %d", l.n, len(want), i, l.rank(want[i], byAge))
	}
	if pick(500) > 0 {
		return
	}
	if all := slices.Concat(l.chunks...); !slices.Equal(all, want) {
		t.Fatalf("the list is not the sorted one; %d and %d nodes", len(all), len(want))
	}
	for _, c := range l.chunks {
		if len(c) == 0 || len(c) >= chunkSize {
			t.Fatalf("a chunk has %d nodes", len(c))
		}
	}
}

// TestQueue_LongOrder has so many items of few namespaces wait that their lists are in many
// chunks.
func TestQueue_LongOrder(t *testing.T) {
	const items = 8 * chunkSize
	q, pick := newQueue(Options{}), chance(6)
	for i := range items {
		q.Add(Item{Key: key(fmt.Sprint("n", i%2), fmt.Sprint(i)), Since: at(pick(items))})
	}
	for i := range items { // change half of them, and take a quarter out
		k := key(fmt.Sprint("n", i%2), fmt.Sprint(i))
		if pick(4) == 0 {
			q.Remove(k)
		} else if pick(2) == 0 {
			q.Add(Item{Key: k, Lane: "other"})
		}
	}
	order := q.Snapshot()
	for i, it := range order {
		if i%97 == 0 && q.Position(it.Key) != i+1 {
			t.Fatalf("position of %s is %d, want %d", it.Key, q.Position(it.Key), i+1)
		}
	}
	for i, want := range order {
		if it := take(t, q); it != want {
			t.Fatalf("number %d is %+v, want %+v", i, it, want)
		}
	}
	if q.Len() != 0 || len(order) < items/2 {
		t.Errorf("%d of %d wait on", q.Len(), len(order))
	}
}
