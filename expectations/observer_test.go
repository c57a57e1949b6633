// SPDX-License-Identifier: Apache-2.0

package expectations_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/virtloom/virtloom/expectations"
)

// recorder records the calls to an Observer.
type recorder struct{ lines []string }

func (r *recorder) add(format string, args ...any) {
	r.lines = append(r.lines, fmt.Sprintf(format, args...))
}

func (r *recorder) Noted(w expectations.Write) { r.add("noted %s of %s", w.Verb, w.Ref) }

func (r *recorder) Settled(w expectations.Write, by expectations.Evidence, age time.Duration) {
	r.add("settled %s of %s by %s after %s", w.Verb, w.Ref, by, age)
}

func (r *recorder) Dropped(w expectations.Write, why expectations.DropReason) {
	r.add("dropped %s of %s: %s", w.Verb, w.Ref, why)
}

func (r *recorder) Troubled(w expectations.Write, p expectations.Problem) {
	r.add("troubled %s of %s: %s", w.Verb, w.Ref, p)
}

func TestObserver(t *testing.T) {
	successor := expectations.Owner{Key: owner.Key, UID: "owner-2"}
	for name, tc := range map[string]struct {
		do   func(*bench)
		want []string
	}{
		"event": {func(b *bench) {
			b.ExpectCreate(owner, ref)
			b.now = b.now.Add(3 * time.Second)
			b.Observe(pods, object("u1", "5"), expectations.Added)
		}, []string{"noted create of Pod ns/a", "settled create of Pod ns/a by event after 3s"}},
		"reply": {func(b *bench) { b.Confirm(b.ExpectUpdate(owner, ref, "5", ""), object("u1", "5")) },
			[]string{"noted update of Pod ns/a", "settled update of Pod ns/a by reply after 0s"}},
		"bookmark": {func(b *bench) {
			b.ExpectUpdate(owner, ref, "", "5")
			b.ObserveBookmark(pods, "ns", "5")
		}, []string{"noted update of Pod ns/a", "settled update of Pod ns/a by bookmark after 0s"}},
		"cache": {func(b *bench) { b.Seen(b.ExpectDelete(owner, ref, "u1", ""), terminating("u1", "5")) },
			[]string{"noted delete of Pod ns/a", "settled delete of Pod ns/a by cache after 0s"}},
		"overdue is reported once, then a live read": {func(b *bench) {
			b.ExpectDelete(owner, ref, "u1", "")
			b.now = b.now.Add(time.Minute)
			b.Check(owner)
			b.Answer(b.Check(owner).Pending[0], nil)
		}, []string{"noted delete of Pod ns/a", "troubled delete of Pod ns/a: overdue", "settled delete of Pod ns/a by live_read after 1m0s"}},
		"disproof": {func(b *bench) {
			b.ExpectCreate(owner, ref)
			b.Observe(pods, object("u1", "5"), expectations.DeletedUnknown)
			b.Answer(b.Check(owner).Pending[0], nil)
		}, []string{"noted create of Pod ns/a", "troubled create of Pod ns/a: tombstone", "settled create of Pod ns/a by disproof after 0s"}},
		"versions without order": {func(b *bench) {
			b.ExpectUpdate(owner, ref, "", "x7")
			b.Answer(b.Check(owner).Pending[0], object("u1", "x8"))
			b.Answer(b.Check(owner).Pending[0], object("u1", "x8"))
		}, []string{"noted update of Pod ns/a", "troubled update of Pod ns/a: incomparable"}},
		"evidence taken back": {func(b *bench) {
			tok := b.ExpectCreate(owner, ref)
			b.Observe(pods, object("u1", "5"), expectations.Updated)
			b.Confirm(tok, object("u2", "9"))
		}, []string{"noted create of Pod ns/a", "settled create of Pod ns/a by event after 0s", "noted create of Pod ns/a"}},
		"cancelled": {func(b *bench) { tok := b.ExpectCreate(owner, ref); b.Cancel(tok); b.Cancel(tok) },
			[]string{"noted create of Pod ns/a", "dropped create of Pod ns/a: cancelled"}},
		"forgotten": {func(b *bench) { b.ExpectCreate(owner, ref); b.Forget(owner); b.ForgetKey(owner.Key) },
			[]string{"noted create of Pod ns/a", "dropped create of Pod ns/a: forgotten"}},
		"succeeded": {func(b *bench) { b.ExpectCreate(owner, ref); b.now = b.now.Add(time.Minute); b.Check(successor) },
			[]string{"noted create of Pod ns/a", "dropped create of Pod ns/a: succeeded"}},
	} {
		t.Run(name, func(t *testing.T) {
			var reported recorder
			b := newBenchFor(t, &reported)
			tc.do(b)
			if diff := cmp.Diff(tc.want, reported.lines); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// An observer may call the tracker, which it could not under a lock.
type curious struct {
	recorder
	tracker *expectations.Tracker
}

func (c *curious) Noted(w expectations.Write) { c.tracker.Check(w.Owner) }

func (c *curious) Settled(w expectations.Write, _ expectations.Evidence, _ time.Duration) {
	c.add("settled, %s", c.tracker.Check(w.Owner).State)
}

func (c *curious) Troubled(w expectations.Write, _ expectations.Problem) {
	c.add("troubled, %s", c.tracker.Check(w.Owner).State)
}

func TestObserver_MayUseTracker(t *testing.T) {
	reported := &curious{}
	b := newBenchFor(t, reported)
	reported.tracker = b.Tracker
	b.ExpectCreate(owner, ref)
	b.Observe(pods, object("u1", "5"), expectations.DeletedUnknown)
	b.Observe(pods, object("u1", "5"), expectations.Added)
	if diff := cmp.Diff([]string{"troubled, expired", "settled, satisfied"}, reported.lines); diff != "" {
		t.Error(diff)
	}
}

// ledger counts the beginnings and ends of every write by the time it was noted, which the test makes unique. A second
// beginning of a write may be reported before its first end.
type ledger struct {
	mu   sync.Mutex
	open map[time.Time]int
	odd  []string
}

func (l *ledger) turn(w expectations.Write, by int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open[w.Since] += by; l.open[w.Since] < 0 || l.open[w.Since] > 2 {
		l.odd = append(l.odd, fmt.Sprintf("%v: %d", w, l.open[w.Since]))
	}
}

func (l *ledger) Noted(w expectations.Write) { l.turn(w, 1) }
func (l *ledger) Settled(w expectations.Write, _ expectations.Evidence, _ time.Duration) {
	l.turn(w, -1)
}
func (l *ledger) Dropped(w expectations.Write, _ expectations.DropReason) { l.turn(w, -1) }
func (l *ledger) Troubled(expectations.Write, expectations.Problem)       {}

// However events, answers and cancellations race for a write, it ends once.
func TestObserver_OneEndPerWrite(t *testing.T) {
	var mu sync.Mutex
	now := time.Unix(1000, 0)
	book := &ledger{open: map[time.Time]int{}}
	tracker, err := expectations.New(expectations.Options{Observer: book, TTL: time.Hour, Now: func() time.Time {
		mu.Lock()
		defer mu.Unlock()
		now = now.Add(1)
		return now
	}})
	if err != nil {
		t.Fatal(err)
	}
	const owners, rounds = 4, 500
	stop := make(chan struct{})
	var writers, watchers sync.WaitGroup
	for i := range owners {
		writers.Go(func() {
			o := expectations.Owner{Key: types.NamespacedName{Name: fmt.Sprint(i % 2)}, UID: types.UID(fmt.Sprint(i))}
			for n := range rounds {
				tok := tracker.ExpectCreate(o, ref)
				switch n % 4 {
				case 0:
					tracker.Cancel(tok)
				case 1:
					tracker.Confirm(tok, object("u2", "9"))
				case 2:
					tracker.ForgetKey(o.Key)
				}
				for _, p := range tracker.Check(o).Pending {
					tracker.Answer(p, nil)
				}
			}
		})
	}
	for _, obj := range []string{"u1", "u2"} {
		watchers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					tracker.Observe(pods, object(obj, "8"), expectations.Updated)
					tracker.ObserveBookmark(pods, "", "9")
				}
			}
		})
	}
	writers.Wait()
	close(stop)
	watchers.Wait()
	for i := range owners {
		tracker.ForgetKey(types.NamespacedName{Name: fmt.Sprint(i)})
	}
	if got := tracker.Outstanding(); got != 0 {
		t.Errorf("%d writes outstanding, want none", got)
	}
	for since, n := range book.open {
		if n != 0 {
			t.Errorf("the write of %s ended %d times too few", since, n)
		}
	}
	if len(book.open) < owners*rounds || len(book.odd) > 0 {
		t.Errorf("%d writes were noted, want %d; counted wrong on the way: %v", len(book.open), owners*rounds, book.odd)
	}
}
