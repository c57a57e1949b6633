// SPDX-License-Identifier: Apache-2.0

package backlog_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/virtloom/virtloom/internal/backlog"
)

// long is a queue with a fixed length.
type long struct {
	workqueue.TypedRateLimitingInterface[reconcile.Request]
	waiting int
}

func (l *long) Len() int { return l.waiting }

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func key(name string) types.NamespacedName { return types.NamespacedName{Name: name} }

func TestSaturated(t *testing.T) {
	const workers = 4
	for name, test := range map[string]struct {
		waiting int
		put     map[string]time.Duration // before now
		since   time.Duration
		yes     bool
	}{
		"nobody waits":                        {0, nil, 0, false},
		"as many wait as there are workers":   {4, nil, 0, false},
		"more wait":                           {5, nil, 0, true},
		"those that wait are postponed":       {5, map[string]time.Duration{"a": 0}, 0, false},
		"it is postponed itself":              {5, map[string]time.Duration{"own": time.Second}, time.Second, true},
		"beside those that are more wait":     {7, map[string]time.Duration{"a": 0, "b": 0, "own": time.Second}, time.Second, true},
		"it has been patient for long enough": {5, map[string]time.Duration{"own": backlog.Patience}, backlog.Patience, false},
		"it will have been":                   {5, map[string]time.Duration{"own": backlog.Patience - 1}, backlog.Patience - 1, true},
	} {
		t.Run(name, func(t *testing.T) {
			var b backlog.Backlog
			if _, yes := b.Saturated(key("own"), workers, epoch); yes {
				t.Error("a controller that has not started is saturated")
			}
			b.Use(&long{waiting: test.waiting})
			for k, before := range test.put {
				b.Put(key(k), epoch.Add(-before))
			}
			since, yes := b.Saturated(key("own"), workers, epoch)
			if yes != test.yes || !since.Equal(epoch.Add(-test.since)) {
				t.Errorf("saturated %v since %s, want %v since %s before", yes, since, test.yes, test.since)
			}
		})
	}
}

// Two controllers of a process wait for each other's objects, and ask each other at the same time.
func TestBacklog_Beside(t *testing.T) {
	const workers = 4
	var machines, guests backlog.Backlog
	guests.Beside(func() bool { return machines.Busy(workers) })
	machines.Beside(func() bool { return guests.Busy(workers) })
	if machines.Busy(workers) {
		t.Error("a controller that has not started is busy")
	}
	machines.Use(&long{waiting: 5})
	guests.Use(&long{waiting: 0})
	if _, yes := guests.Saturated(key("own"), workers, epoch); !yes {
		t.Error("others wait beside, and nothing is deferred")
	}
	machines.Put(key("a"), epoch)
	if _, yes := guests.Saturated(key("own"), workers, epoch); yes {
		t.Error("those beside are deferred themselves, and are waited for")
	}
	machines.Done(key("a"))
	guests.Put(key("own"), epoch.Add(-backlog.Patience))
	if _, yes := guests.Saturated(key("own"), workers, epoch); yes {
		t.Error("those beside delay a write for ever")
	}
	var both sync.WaitGroup
	for _, b := range []*backlog.Backlog{&machines, &guests} {
		both.Go(func() {
			for range 1000 {
				b.Saturated(key("own"), workers, epoch)
			}
		})
	}
	both.Wait()
}

func TestBacklog_Done(t *testing.T) {
	var b backlog.Backlog
	b.Use(&long{waiting: 5})
	b.Put(key("a"), epoch)
	b.Put(key("own"), epoch.Add(-backlog.Patience))
	b.Done(key("a"))
	b.Done(key("own"))
	if since, yes := b.Saturated(key("own"), 4, epoch); !yes || !since.Equal(epoch) {
		t.Errorf("saturated %v since %s, want it to be from now on", yes, since)
	}
}

// A deferred object is enqueued after Patience.
func TestBacklog_EnqueuesAfterPatience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b backlog.Backlog
		b.Put(key("patient"), time.Now().Add(backlog.Again))
		b.Put(key("impatient"), time.Now().Add(-backlog.Again))
		q := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
		ctx, stop := context.WithCancel(t.Context())
		defer q.ShutDown()
		defer stop()
		if err := b.Source(clock.RealClock{}).Start(ctx, q); err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		first, _ := q.Get()
		if took := time.Since(begun); first.Name != "impatient" || took >= backlog.Patience || took < backlog.Patience-backlog.Again {
			t.Errorf("%s was enqueued after %s", first.Name, took)
		}
		b.Done(key("impatient"))
		q.Done(first)
		if second, _ := q.Get(); second.Name != "patient" {
			t.Errorf("then %s was enqueued", second.Name)
		}
	})
}

func TestPriorities(t *testing.T) {
	ms := time.Millisecond
	for name, test := range map[string]struct {
		have, later, usual time.Duration
		low, zero          bool
	}{
		"nothing is due":        {have: 0, later: 5 * ms, low: true},
		"it is repeated":        {have: ms, later: ms, usual: ms},
		"something is due soon": {have: backlog.Again, later: 5 * ms, usual: backlog.Again, low: true},
		"something is due late": {have: time.Hour, later: 5 * ms, usual: time.Hour, low: true, zero: true},
	} {
		t.Run(name, func(t *testing.T) {
			result := reconcile.Result{RequeueAfter: test.have}
			later := backlog.Later(result, 5*ms)
			low := later.Priority != nil && *later.Priority == handler.LowPriority
			if later.RequeueAfter != test.later || low != test.low {
				t.Errorf("later after %s, low %v; want %s, %v", later.RequeueAfter, low, test.later, test.low)
			}
			backlog.Usual(&later)
			if low && *later.Priority != handler.LowPriority {
				t.Errorf("a priority was replaced by %d", *later.Priority)
			}
			backlog.Usual(&result)
			if result.RequeueAfter != test.usual || (result.Priority != nil) != test.zero {
				t.Errorf("usual: %+v", result)
			}
		})
	}
}
