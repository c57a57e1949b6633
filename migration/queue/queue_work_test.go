// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"k8s.io/apimachinery/pkg/types"
)

func TestGet_WaitsForOpenLane(t *testing.T) {
	for name, tc := range map[string]struct {
		before, after func(q *Queue)
	}{
		"added":     {func(*Queue) {}, func(q *Queue) { q.Add(Item{Key: key("a", "1"), Lane: "n1"}) }},
		"unblocked": {func(q *Queue) { q.Block("n1"); q.Add(Item{Key: key("a", "1"), Lane: "n1"}) }, func(q *Queue) { q.Unblock("n1") }},
		"moved to an open lane": {
			func(q *Queue) { q.Block("n1"); q.Add(Item{Key: key("a", "1"), Lane: "n1"}) },
			func(q *Queue) { q.Add(Item{Key: key("a", "1"), Lane: "n2"}) },
		},
		"done and again": {
			func(q *Queue) {
				q.Add(Item{Key: key("a", "1")})
				_, _, _ = q.tryGet()
				q.Add(Item{Key: key("a", "1")})
			},
			func(q *Queue) { q.Done(key("a", "1")) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := NewQueue(Options{})
				tc.before(q)
				var got atomic.Pointer[Item]
				go func() {
					if it, err := q.Get(t.Context()); err == nil {
						got.Store(&it)
					}
				}()
				synctest.Wait()
				if got.Load() != nil {
					t.Fatalf("got %+v too early", got.Load())
				}
				tc.after(q)
				synctest.Wait()
				if it := got.Load(); it == nil || it.Key != key("a", "1") {
					t.Fatalf("got %+v", it)
				}
			})
		})
	}
}

// TestUnblock_WakesAllItServes opens a lane of several items once.
func TestUnblock_WakesAllItServes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const workers = 5
		q := NewQueue(Options{})
		q.Block("n1")
		var got atomic.Int32
		for i := range workers {
			q.Add(Item{Key: key("a", fmt.Sprint(i)), Lane: "n1"})
			go func() {
				if _, err := q.Get(t.Context()); err == nil {
					got.Add(1)
				}
			}()
		}
		synctest.Wait()
		q.Unblock("n1")
		synctest.Wait()
		if n := got.Load(); n != workers {
			t.Errorf("%d of %d workers got an item", n, workers)
		}
	})
}

func TestGet_ContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewQueue(Options{})
		ctx, cancel := context.WithCancel(t.Context())
		failed := make(chan error, 1)
		go func() {
			_, err := q.Get(ctx)
			failed <- err
		}()
		synctest.Wait()
		cancel()
		if err := <-failed; !errors.Is(err, context.Canceled) {
			t.Errorf("error is %v", err)
		}
		q.Add(Item{Key: key("a", "1")})
		if _, err := q.Get(ctx); !errors.Is(err, context.Canceled) || q.Len() != 1 {
			t.Errorf("a worker that has to stop got an item: %v", err)
		}
	})
}

// TestGet_LeavingWorkerWakesAnother cancels a worker whose turn it has just become.
func TestGet_LeavingWorkerWakesAnother(t *testing.T) {
	for range 100 { // the worker may be faster than its end
		synctest.Test(t, func(t *testing.T) {
			q := NewQueue(Options{})
			var got atomic.Int32
			work := func(ctx context.Context) {
				if _, err := q.Get(ctx); err == nil {
					got.Add(1)
				}
			}
			ctx, cancel := context.WithCancel(t.Context())
			go work(ctx)
			synctest.Wait() // it waits first, and so is the first that is woken
			go work(t.Context())
			synctest.Wait()
			q.Add(Item{Key: key("a", "1")})
			cancel()
			synctest.Wait()
			if got.Load() != 1 {
				t.Fatal("an item waits, and so does a worker")
			}
		})
	}
}

func TestQueue_OneWorkerPerKey(t *testing.T) {
	q := newQueue(Options{})
	k := key("a", "1")
	q.Add(Item{Key: k})
	take(t, q)
	q.Add(Item{Key: k, Priority: PriorityUser, Since: at(1)})
	q.Add(Item{Key: k, Priority: PriorityCritical, Since: at(2)})
	if _, found, _ := q.tryGet(); found || q.Contains(k) || q.Len() != 0 {
		t.Fatal("the key was handed out twice")
	}
	q.Done(k)
	if it := take(t, q); it.Priority != PriorityCritical || !it.Since.Equal(at(1)) {
		t.Errorf("got %+v, want the last priority and the first time", it)
	}
	q.Add(Item{Key: k})
	if !q.Remove(k) || q.Remove(k) {
		t.Error("what was to be handed out again was not removed once")
	}
	q.Done(k)
	if q.Len() != 0 || len(q.jobs) != 0 {
		t.Errorf("%d wait, %d are known", q.Len(), len(q.jobs))
	}
}

// The following are named after what went wrong in sigs.k8s.io/controller-runtime's
// priorityqueue over time.

func TestControllerRuntimeBugWrongOrderAfterAPriorityChange(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	q := newQueue(Options{AgeAfter: -1, Unfair: true})
	last := map[types.NamespacedName]int{}
	for i := range 2000 {
		it := Item{Key: key("a", fmt.Sprintf("m%03d", rng.IntN(200))), Since: at(i), Priority: levels[rng.IntN(len(levels))]}
		q.Add(it)
		last[it.Key] = it.Priority
	}
	var got []int
	for q.Len() > 0 {
		it := take(t, q)
		if it.Priority != last[it.Key] {
			t.Errorf("%s has priority %d, want the last one it was given, %d", it.Key, it.Priority, last[it.Key])
		}
		got = append(got, it.Priority)
	}
	slices.Reverse(got)
	if !slices.IsSorted(got) || len(got) != len(last) {
		t.Errorf("%d of %d items, by priority, the last one first: %v", len(got), len(last), got)
	}
}

func TestControllerRuntimeBugShutdownHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewQueue(Options{})
		var closed atomic.Int32
		for range 8 {
			go func() {
				if _, err := q.Get(t.Context()); errors.Is(err, ErrClosed) {
					closed.Add(1)
				}
			}()
		}
		synctest.Wait()
		go q.Add(Item{Key: key("a", "1"), Lane: "n1"})
		q.Close()
		q.Close()
		synctest.Wait()
		if n := closed.Load(); n < 7 {
			t.Errorf("%d of 8 workers got ErrClosed; at most one got the item", n)
		}
		q.Add(Item{Key: key("a", "2")})
		q.Done(key("a", "1"))
		if _, err := q.Get(t.Context()); !errors.Is(err, ErrClosed) {
			t.Errorf("error is %v", err)
		}
	})
}

func TestControllerRuntimeBugHighPriorityNotReturnedFirst(t *testing.T) {
	q := newQueue(Options{})
	for i := range 1000 {
		low, high := key("a", fmt.Sprint("low-", i)), key("a", fmt.Sprint("high-", i))
		q.Add(Item{Key: low})
		q.Add(Item{Key: high, Priority: PriorityCritical})
		it, err := q.Get(t.Context())
		if err != nil || it.Key != high {
			t.Fatalf("got %+v, %v; want what was added last, for it is more urgent", it, err)
		}
		q.Done(high)
	}
}

func TestControllerRuntimeBugContendedAddStall(t *testing.T) {
	const adders, each, workers = 8, 500, 4
	q := NewQueue(Options{})
	var adding, working sync.WaitGroup
	var got sync.Map
	for range workers {
		working.Go(func() {
			for {
				it, err := q.Get(t.Context())
				if err != nil {
					return
				}
				if _, twice := got.LoadOrStore(it.Key, true); twice {
					t.Errorf("%s was handed out twice", it.Key)
				}
				q.Done(it.Key)
			}
		})
	}
	for a := range adders {
		adding.Go(func() {
			for i := range each {
				q.Add(Item{Key: key(fmt.Sprint("n", a), fmt.Sprint(i)), Priority: levels[i%len(levels)], Lane: fmt.Sprint(i % 3)})
				if i%50 == 0 {
					q.Block("1")
					q.Snapshot()
					q.Unblock("1")
				}
			}
		})
	}
	adding.Wait()
	for q.Len() > 0 { // Len takes the lock the workers need, so they progress or this hangs
		q.Position(key("n0", "0"))
	}
	q.Close()
	working.Wait()
	n := 0
	got.Range(func(any, any) bool { n++; return true })
	if n != adders*each {
		t.Errorf("%d items were handed out, want %d", n, adders*each)
	}
}
