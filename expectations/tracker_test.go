// SPDX-License-Identifier: Apache-2.0

package expectations_test

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/virtloom/virtloom/expectations"
)

var (
	pods  = schema.GroupKind{Kind: "Pod"}
	owner = expectations.Owner{Key: types.NamespacedName{Namespace: "ns", Name: "vm"}, UID: "owner-1"}
	ref   = expectations.Ref{Kind: pods, Namespace: "ns", Name: "a"}
)

func object(uid, version string) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: "a", UID: types.UID(uid), ResourceVersion: version,
	}}
}

func terminating(uid, version string) *metav1.PartialObjectMetadata {
	o := object(uid, version)
	o.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
	return o
}

// bench is a tracker with a clock that the test moves and a list of woken owners.
type bench struct {
	*expectations.Tracker
	now   time.Time
	woken []expectations.Owner
}

func newBench(t testing.TB) *bench { t.Helper(); return newBenchFor(t, nil) }

func newBenchFor(t testing.TB, observer expectations.Observer) *bench {
	t.Helper()
	b := &bench{now: time.Unix(1000, 0)}
	tracker, err := expectations.New(expectations.Options{
		Now: func() time.Time { return b.now }, TTL: time.Minute, Observer: observer,
		Wake: func(o expectations.Owner) { b.woken = append(b.woken, o) },
	})
	if err != nil {
		t.Fatal(err)
	}
	b.Tracker = tracker
	return b
}

func TestNew_RequiresClock(t *testing.T) {
	if _, err := expectations.New(expectations.Options{}); err == nil || !strings.Contains(err.Error(), "Options.Now is required") {
		t.Fatalf("got error %v, want one that names Options.Now", err)
	}
}

func TestCheck_ReportsMissingEvidence(t *testing.T) {
	b := newBench(t)
	other := ref
	other.Name = "b"
	b.ExpectUpdate(owner, ref, "4", "9")
	b.now = b.now.Add(time.Second)
	b.ExpectDelete(owner, other, "u7", "")
	b.Observe(pods, object("u1", "6"), expectations.Updated)

	got := b.Check(owner)
	want := expectations.Verdict{
		State: expectations.Waiting, Deadline: time.Unix(1060, 0), RequeueAfter: 59 * time.Second,
		Pending: []expectations.Pending{
			{Ref: ref, Verb: expectations.Update, Since: time.Unix(1000, 0), Needs: "9", Seen: "6"},
			{Ref: other, Verb: expectations.Delete, Since: time.Unix(1001, 0), Needs: "u7"},
		},
	}
	ignoreToken := cmp.FilterPath(func(p cmp.Path) bool { return p.Last().String() == ".token" }, cmp.Ignore())
	if diff := cmp.Diff(want, got, ignoreToken); diff != "" {
		t.Error(diff)
	}
	if got, want := got.Pending[0].String(), "update of Pod ns/a, needs 9, has seen 6"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestTracker_WritesDoNotReplace(t *testing.T) {
	b := newBench(t)
	b.ExpectUpdate(owner, ref, "", "5")
	b.ExpectUpdate(owner, ref, "", "9")
	b.ExpectDelete(owner, ref, "u1", "")
	if got := len(b.Check(owner).Pending); got != 3 {
		t.Fatalf("%d pending, want 3", got)
	}
	b.Observe(pods, object("u1", "5"), expectations.Updated)
	if got := len(b.Check(owner).Pending); got != 2 {
		t.Fatalf("%d pending after the first version, want 2", got)
	}
	b.Observe(pods, terminating("u1", "10"), expectations.Updated)
	if !b.Check(owner).Satisfied() {
		t.Fatalf("pending %v, want none", b.Check(owner).Pending)
	}
}

func TestOwner_DistinguishedByUID(t *testing.T) {
	b := newBench(t)
	successor := owner
	successor.UID = "owner-2"
	b.ExpectCreate(owner, ref)
	if !b.Check(successor).Satisfied() {
		t.Error("the successor waits for a write of its predecessor")
	}
	b.Forget(owner)
	if got := b.Outstanding(); got != 0 {
		t.Errorf("%d writes outstanding after Forget", got)
	}
	b.ExpectCreate(owner, ref)
	b.ExpectCreate(successor, ref)
	b.ForgetKey(owner.Key)
	if got := b.Outstanding(); got != 0 {
		t.Errorf("%d writes outstanding after ForgetKey", got)
	}
}

func TestCheck_DropsOverdueWritesOfPredecessor(t *testing.T) {
	b := newBench(t)
	b.ExpectCreate(owner, ref)
	b.now = b.now.Add(time.Minute)
	successor := owner
	successor.UID = "owner-2"
	if !b.Check(successor).Satisfied() {
		t.Error("the successor waits for a write of its predecessor")
	}
	if got := b.Outstanding(); got != 0 {
		t.Errorf("%d writes outstanding, want 0", got)
	}
}

func TestWake_OnLastEvidence(t *testing.T) {
	b := newBench(t)
	b.ExpectUpdate(owner, ref, "", "5")
	b.ExpectUpdate(owner, ref, "", "9")
	b.Observe(pods, object("u1", "6"), expectations.Updated)
	if len(b.woken) != 0 {
		t.Fatalf("woken %v with a write outstanding", b.woken)
	}
	b.Observe(pods, object("u1", "9"), expectations.Updated)
	if diff := cmp.Diff([]expectations.Owner{owner}, b.woken); diff != "" {
		t.Error(diff)
	}
}

func TestWake_OnLiveReadNeeded(t *testing.T) {
	b := newBench(t)
	b.ExpectDelete(owner, ref, "u1", "")
	b.Observe(pods, object("u1", "6"), expectations.DeletedUnknown)
	b.Observe(pods, object("u1", "6"), expectations.DeletedUnknown)
	if diff := cmp.Diff([]expectations.Owner{owner}, b.woken); diff != "" {
		t.Error(diff)
	}
}

// The owner's own pass confirms and reads: waking it for that would run it again and again.
func TestWake_NotByOwnReadings(t *testing.T) {
	for name, settle := range map[string]func(*bench) bool{
		"Confirm": func(b *bench) bool {
			tok := b.ExpectUpdate(owner, ref, "4", "")
			b.Observe(pods, object("u1", "6"), expectations.Updated)
			return b.Confirm(tok, object("u1", "6"))
		},
		"Seen": func(b *bench) bool { return b.Seen(b.ExpectCreate(owner, ref), object("u1", "6")) },
		"Exists": func(b *bench) bool {
			tok := b.ExpectCreate(owner, ref)
			b.Observe(pods, object("u1", "6"), expectations.Deleted)
			return b.Exists(tok)
		},
		"Answer": func(b *bench) bool {
			b.ExpectDelete(owner, ref, "u1", "")
			return b.Answer(b.Check(owner).Pending[0], nil).Settled()
		},
		"Cancel": func(b *bench) bool { b.Cancel(b.ExpectCreate(owner, ref)); return true },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			if !settle(b) || !b.Check(owner).Satisfied() {
				t.Errorf("still waits for %v", b.Check(owner).Pending)
			}
			if len(b.woken) != 0 {
				t.Errorf("woken %v", b.woken)
			}
		})
	}
}

func TestWake_OnIncomparableAnswer(t *testing.T) {
	b := newBench(t)
	tok := b.ExpectUpdate(owner, ref, "", "")
	b.Observe(pods, object("u1", "x7"), expectations.Updated)
	if len(b.woken) != 0 {
		t.Fatalf("woken %v before the answer", b.woken)
	}
	b.Confirm(tok, object("u1", "9"))
	b.Confirm(tok, object("u1", "9"))
	if diff := cmp.Diff([]expectations.Owner{owner}, b.woken); diff != "" {
		t.Error(diff)
	}
}

func TestObserveBookmark_Namespace(t *testing.T) {
	b := newBench(t)
	for _, ns := range []string{"a", "b", ""} {
		b.ExpectUpdate(owner, expectations.Ref{Kind: pods, Namespace: ns, Name: "x"}, "", "9")
	}
	for _, step := range []struct {
		namespace, version string
		left               int
	}{{"c", "10", 3}, {"a", "8", 3}, {"a", "9", 2}, {"a", "10", 2}, {"b", "340282366920938463463374607431768211456", 1}, {"", "9", 0}} {
		b.ObserveBookmark(pods, step.namespace, step.version)
		if got := b.Outstanding(); got != step.left {
			t.Errorf("%d outstanding after bookmark %s of namespace %q, want %d", got, step.version, step.namespace, step.left)
		}
	}
	if diff := cmp.Diff([]expectations.Owner{owner}, b.woken); diff != "" {
		t.Error(diff)
	}
}

func TestWake_MayUseTracker(t *testing.T) {
	var tracker *expectations.Tracker
	var seen expectations.Verdict
	tracker, err := expectations.New(expectations.Options{
		Now: func() time.Time { return time.Unix(0, 0) },
		Wake: func(o expectations.Owner) {
			seen = tracker.Check(o)
			tracker.ExpectCreate(o, ref)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	tracker.ExpectCreate(owner, ref)
	tracker.Observe(pods, object("u1", "5"), expectations.Added)
	if !seen.Satisfied() {
		t.Errorf("woken owner sees %v", seen.Pending)
	}
	if tracker.Outstanding() != 1 {
		t.Errorf("%d outstanding, want the one that Wake noted", tracker.Outstanding())
	}
}

func TestToken_Zero(t *testing.T) {
	b := newBench(t)
	b.Cancel(expectations.Token{})
	if !b.Confirm(expectations.Token{}, nil) || !b.Answer(expectations.Pending{}, nil).Settled() {
		t.Error("a zero token awaits something")
	}
	tok := b.ExpectCreate(owner, ref)
	b.Cancel(tok)
	b.Cancel(tok)
	if b.Outstanding() != 0 {
		t.Errorf("%d outstanding after cancelling twice", b.Outstanding())
	}
}

func TestTracker_ConcurrentOwners(t *testing.T) {
	var woken atomic.Int64
	tracker, err := expectations.New(expectations.Options{
		Now: func() time.Time { return time.Unix(0, 0) }, Wake: func(expectations.Owner) { woken.Add(1) },
	})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for i := range 200 {
				name := fmt.Sprintf("vm-%d", i%5) // names are shared between workers, owners are not
				o := expectations.Owner{Key: types.NamespacedName{Namespace: "ns", Name: name}, UID: types.UID(fmt.Sprint(w))}
				r := expectations.Ref{Kind: pods, Namespace: "ns", Name: name}
				tok := tracker.ExpectCreate(o, r)
				obj := object(fmt.Sprintf("u%d-%d", w, i), fmt.Sprint(1+w*1000+i))
				obj.Name = name
				tracker.Observe(pods, obj, expectations.Added)
				tracker.Confirm(tok, obj)
				tracker.Observe(pods, obj, expectations.Added)
				tracker.Check(o)
				if i%7 == 0 {
					tracker.Forget(o)
				}
			}
		})
	}
	wg.Wait()
	if got := tracker.Outstanding(); got != 0 {
		t.Errorf("%d outstanding, want 0", got)
	}
	if woken.Load() == 0 {
		t.Error("no owner was woken")
	}
}

// Pending changes neither the calls to the observer nor the verdict of the owner.
func TestPending_ReadOnly(t *testing.T) {
	b := newBench(t)
	if p := b.Pending(owner.Key); p != nil {
		t.Errorf("without a write: %v", p)
	}
	b.ExpectCreate(owner, ref)
	b.now = b.now.Add(time.Second)
	other := owner
	other.UID = "another"
	b.ExpectUpdate(other, ref, "4", "6")
	b.now = b.now.Add(time.Minute)
	for range 2 {
		p := b.Pending(owner.Key)
		if len(p) != 2 || p[0].Verb != expectations.Create || p[1].Verb != expectations.Update || p[0].Problem != expectations.Overdue || p[1].Needs != "6" {
			t.Fatalf("pending are %v", p)
		}
	}
	if n := b.Outstanding(); n != 2 {
		t.Errorf("%d writes are left", n)
	}
}
