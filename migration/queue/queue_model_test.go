// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"cmp"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
)

var operations = flag.Int("operations", 150_000, "random operations on the queue, and a third as many on the admission, that are compared with a reference")

// choose makes a choice among n; of bytes or of chance.
type choose func(n int) int

func chance(seed uint64) choose { return rand.New(rand.NewPCG(seed, 11)).IntN }

// fuzzed chooses by bytes until they are used up, which more reports.
func fuzzed(data []byte) (pick choose, more func() bool) {
	return func(n int) int {
			if len(data) == 0 {
				return 0
			}
			b := data[0]
			data = data[1:]
			return int(b) % n
		}, func() bool {
			return len(data) > 0
		}
}

// smallest orders by size.
func smallest(a, b Item) int { return cmp.Compare(a.Size, b.Size) }

func anyOptions(pick choose) Options {
	o := Options{
		AgeAfter: []time.Duration{-1, 5 * time.Second, time.Minute, 0}[pick(4)],
		Weights:  []map[string]float64{nil, {"n0": 2, "n1": 0.5}, {"n0": 3, "n2": 5000, "n3": -1}}[pick(3)],
		Unfair:   pick(6) == 0,
	}
	if pick(4) == 0 {
		o.Order = smallest
	}
	return o
}

func anyItem(pick choose, now time.Time) Item {
	return Item{
		Key:      types.NamespacedName{Namespace: fmt.Sprintf("n%d", pick(4)), Name: fmt.Sprintf("i%d", pick(6))},
		Priority: []int{0, 20, 50, 100, -7, 19, 99, 1000}[pick(8)],
		Since:    now.Add(-time.Duration(pick(3)*pick(10)) * time.Second),
		Lane:     fmt.Sprintf("l%d", pick(3)), Size: int64(pick(3)),
	}
}

// pair is a queue and the reference, driven together.
type pair struct {
	t      *testing.T
	pick   choose
	clock  *clocktesting.FakePassiveClock
	q      *Queue
	ref    *reference
	worked []types.NamespacedName
	again  map[types.NamespacedName]Item
}

func newPair(t *testing.T, pick choose) *pair {
	clock := clocktesting.NewFakePassiveClock(start)
	o := anyOptions(pick)
	o.Clock = clock
	return &pair{t: t, pick: pick, clock: clock, q: NewQueue(o), ref: newReference(o), again: map[types.NamespacedName]Item{}}
}

func (p *pair) step() {
	now := p.clock.Now().Add(time.Duration(p.pick(4)*p.pick(4)) * time.Second)
	p.clock.SetTime(now)
	p.ref.age(now)
	switch op := p.pick(16); op {
	default:
		p.add(anyItem(p.pick, now), now)
	case 6, 7, 8:
		p.get()
	case 9, 10, 11:
		p.done(now)
	case 12:
		p.remove()
	case 13:
		lane := fmt.Sprintf("l%d", p.pick(3))
		if p.ref.blocked[lane] = p.pick(2) == 0; p.ref.blocked[lane] {
			p.q.Block(lane)
		} else {
			p.q.Unblock(lane)
		}
	case 14:
		key := anyItem(p.pick, now).Key
		if got, want := p.q.Position(key), p.ref.position(key); got != want {
			p.t.Fatalf("position of %s is %d, want %d", key, got, want)
		}
	case 15:
		if p.pick(4) == 0 {
			p.snapshot()
		}
	}
	p.check()
}

func (p *pair) add(it Item, now time.Time) {
	p.q.Add(it)
	if !slices.Contains(p.worked, it.Key) {
		p.ref.put(it, now)
		return
	}
	if have, found := p.again[it.Key]; found {
		it.Since = have.Since
	}
	p.again[it.Key] = it
}

func (p *pair) closed(lane string) bool { return p.ref.blocked[lane] }

func (p *pair) get() {
	want, found := p.ref.next(p.closed)
	got, ok, err := p.q.tryGet()
	if ok != found || err != nil || got != want {
		p.t.Fatalf("got %+v, %t, %v; want %+v, %t", got, ok, err, want, found)
	}
	if found {
		p.ref.take(want.Key)
		p.worked = append(p.worked, want.Key)
	}
}

func (p *pair) done(now time.Time) {
	if len(p.worked) == 0 {
		p.q.Done(key("n0", "i0"))
		return
	}
	i := p.pick(len(p.worked))
	k := p.worked[i]
	p.worked = slices.Delete(p.worked, i, i+1)
	p.q.Done(k)
	if it, found := p.again[k]; found {
		p.ref.join(it, now)
		delete(p.again, k)
	}
}

func (p *pair) remove() {
	k := anyItem(p.pick, start).Key
	_, waits := p.ref.items[k]
	_, again := p.again[k]
	if got := p.q.Remove(k); got != (waits || again) {
		p.t.Fatalf("removing %s says %t", k, got)
	}
	if waits {
		p.ref.leave(k)
	}
	delete(p.again, k)
}

func (p *pair) snapshot() {
	got, want := p.q.Snapshot(), p.ref.order()
	if !slices.Equal(got, want) {
		p.t.Fatalf("order is\n%v, want\n%v", names(got), names(want))
	}
	for i, it := range got {
		if pos := p.q.Position(it.Key); pos != i+1 {
			p.t.Fatalf("position of %s is %d, want %d", it.Key, pos, i+1)
		}
	}
}

func (p *pair) check() {
	if got, want := p.q.Len(), len(p.ref.items); got != want {
		p.t.Fatalf("length is %d, want %d", got, want)
	}
	k := anyItem(p.pick, start).Key
	if _, waits := p.ref.items[k]; p.q.Contains(k) != waits {
		p.t.Fatalf("Contains(%s) is wrong, want %t", k, waits)
	}
	p.q.line.age(p.clock.Now())
	want, found := p.ref.next(p.closed)
	if n := p.q.line.next(); (n != nil) != found || found && n.Item != want {
		p.t.Fatalf("next is %+v, want %+v", n, want)
	}
}

// TestQueue_MatchesReference compares the queue with the reference after each of many
// random operations; -operations says how many.
func TestQueue_MatchesReference(t *testing.T) {
	const perQueue = 2000
	for seed := range uint64(max(1, *operations/perQueue)) {
		inform(t, seed, func() {
			p := newPair(t, chance(seed))
			for range perQueue {
				p.step()
			}
		})
	}
}

// inform logs the seed with which the function fails.
func inform(t *testing.T, seed uint64, run func()) {
	t.Helper()
	failed := true
	defer func() {
		if failed {
			t.Logf("with seed %d", seed)
		}
	}()
	run()
	failed = false
}

// plant adds seeds of random choices.
func plant(f *testing.F, seed uint64) {
	pick := chance(seed)
	for range 8 {
		choices := make([]byte, 600)
		for i := range choices {
			choices[i] = byte(pick(256))
		}
		f.Add(choices)
	}
}

func FuzzQueue(f *testing.F) {
	plant(f, 3)
	f.Fuzz(func(t *testing.T, data []byte) {
		pick, more := fuzzed(data)
		for p := newPair(t, pick); more(); {
			p.step()
		}
	})
}
