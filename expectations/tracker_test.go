// SPDX-License-Identifier: Apache-2.0

package expectations_test

import (
	"errors"
	"fmt"
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

func newBench(t testing.TB) *bench {
	t.Helper()
	b := &bench{now: time.Unix(1000, 0)}
	tracker, err := expectations.New(expectations.Options{
		Now: func() time.Time { return b.now }, TTL: time.Minute,
		Wake: func(o expectations.Owner) { b.woken = append(b.woken, o) },
	})
	if err != nil {
		t.Fatal(err)
	}
	b.Tracker = tracker
	return b
}

func TestNewNeedsAClock(t *testing.T) {
	if _, err := expectations.New(expectations.Options{}); !errors.Is(err, expectations.ErrNoClock) {
		t.Fatalf("got error %v, want ErrNoClock", err)
	}
}

func TestEvidence(t *testing.T) {
	const (
		satisfied = expectations.Satisfied
		waiting   = expectations.Waiting
		expired   = expectations.Expired
	)
	create := func(b *bench) expectations.Token { return b.ExpectCreate(owner, ref) }
	update := func(base, to string) func(*bench) expectations.Token {
		return func(b *bench) expectations.Token { return b.ExpectUpdate(owner, ref, base, to) }
	}
	remove := func(seen string) func(*bench) expectations.Token {
		return func(b *bench) expectations.Token { return b.ExpectDelete(owner, ref, "u1", seen) }
	}
	see := func(kind expectations.EventKind, o *metav1.PartialObjectMetadata) func(*bench, expectations.Token) {
		return func(b *bench, _ expectations.Token) { b.Observe(pods, o, kind) }
	}
	confirm := func(o *metav1.PartialObjectMetadata) func(*bench, expectations.Token) {
		return func(b *bench, tok expectations.Token) { b.Confirm(tok, o) }
	}
	later := func(d time.Duration) func(*bench, expectations.Token) {
		return func(b *bench, _ expectations.Token) { b.now = b.now.Add(d) }
	}
	bookmark := func(gk schema.GroupKind, ns, rv string) func(*bench, expectations.Token) {
		return func(b *bench, _ expectations.Token) { b.ObserveBookmark(gk, ns, rv) }
	}
	cancel := func(b *bench, tok expectations.Token) { b.Cancel(tok) }
	type steps []func(*bench, expectations.Token)

	for name, tc := range map[string]struct {
		expect func(*bench) expectations.Token
		steps  steps
		want   expectations.State
	}{
		"creation unseen waits": {create, nil, waiting},
		"creation seen by name": {create, steps{see(expectations.Added, object("u1", "5"))}, satisfied},
		"creation seen by another object of the name waits once confirmed": {
			create, steps{confirm(object("u2", "9")), see(expectations.Updated, object("u1", "8"))}, waiting},
		"creation seen by UID once confirmed": {
			create, steps{confirm(object("u2", "9")), see(expectations.Added, object("u2", "9"))}, satisfied},
		"creation seen before the answer": {
			create, steps{see(expectations.Added, object("u2", "9")), confirm(object("u2", "9"))}, satisfied},
		"evidence about a predecessor is taken back by the answer": {
			create, steps{see(expectations.Updated, object("u1", "8")), confirm(object("u2", "9"))}, waiting},
		"evidence taken back is given again by the right object": {
			create, steps{see(expectations.Updated, object("u1", "8")), confirm(object("u2", "9")), see(expectations.Added, object("u2", "9"))}, satisfied},
		"created object replaced before it was seen": {
			create, steps{confirm(object("u2", "9")), see(expectations.Added, object("u3", "12"))}, satisfied},
		"removal of a predecessor is not a creation": {create, steps{see(expectations.Deleted, object("u1", "8"))}, waiting},
		"removal of the created object before the answer": {
			create, steps{see(expectations.Deleted, object("u2", "10")), confirm(object("u2", "9"))}, satisfied},
		"tombstone never settles a creation": {create, steps{see(expectations.DeletedUnknown, object("u1", "5"))}, expired},
		"creation refused":                   {create, steps{cancel}, satisfied},
		"creation overdue needs a live read": {create, steps{later(time.Minute)}, expired},
		"creation confirmed and bookmarked":  {create, steps{confirm(object("u2", "9")), bookmark(pods, "", "9")}, satisfied},
		"creation not confirmed, bookmarked": {create, steps{bookmark(pods, "", "9")}, waiting},
		"bookmark of another kind":           {create, steps{confirm(object("u2", "9")), bookmark(schema.GroupKind{Kind: "Node"}, "", "99")}, waiting},
		"bookmark of another namespace":      {create, steps{confirm(object("u2", "9")), bookmark(pods, "other", "99")}, waiting},
		"older bookmark":                     {create, steps{confirm(object("u2", "9")), bookmark(pods, "ns", "8")}, waiting},

		"update unseen waits":     {update("", "10"), nil, waiting},
		"update seen exactly":     {update("", "10"), steps{see(expectations.Updated, object("u1", "10"))}, satisfied},
		"update seen newer":       {update("", "9"), steps{see(expectations.Updated, object("u1", "10"))}, satisfied},
		"update seen older waits": {update("", "10"), steps{see(expectations.Updated, object("u1", "9"))}, waiting},
		"versions beyond 64 bits are ordered": {
			update("", "340282366920938463463374607431768211455"), steps{see(expectations.Updated, object("u1", "340282366920938463463374607431768211456"))}, satisfied},
		"versions beyond 64 bits, older": {
			update("", "340282366920938463463374607431768211455"), steps{see(expectations.Updated, object("u1", "340282366920938463463374607431768211454"))}, waiting},
		"incomparable version is reported":       {update("", "10"), steps{see(expectations.Updated, object("u1", "x7"))}, expired},
		"zero version is no evidence":            {update("", "10"), steps{see(expectations.Updated, object("u1", "0"))}, expired},
		"identical opaque version is the same":   {update("", "x7"), steps{see(expectations.Updated, object("u1", "x7"))}, satisfied},
		"update whose answer is unknown waits":   {update("5", ""), steps{see(expectations.Updated, object("u1", "99"))}, waiting},
		"update seen before the answer":          {update("5", ""), steps{see(expectations.Updated, object("u1", "7")), confirm(object("u1", "7"))}, satisfied},
		"update seen older before the answer":    {update("5", ""), steps{see(expectations.Updated, object("u1", "6")), confirm(object("u1", "7"))}, waiting},
		"update that changed nothing":            {update("5", ""), steps{confirm(object("u1", "5"))}, satisfied},
		"update of an object removed afterwards": {update("", "10"), steps{see(expectations.Deleted, object("u1", "12"))}, satisfied},
		"tombstone never settles an update":      {update("", "10"), steps{see(expectations.DeletedUnknown, object("u1", "12"))}, expired},
		"bookmark settles an update":             {update("", "10"), steps{bookmark(pods, "ns", "10")}, satisfied},

		"deletion unseen waits":                      {remove(""), nil, waiting},
		"deletion seen":                              {remove(""), steps{see(expectations.Deleted, object("u1", "9"))}, satisfied},
		"deletion seen as termination":               {remove(""), steps{see(expectations.Updated, terminating("u1", "9"))}, satisfied},
		"deletion of another object of the name":     {remove(""), steps{see(expectations.Deleted, object("u2", "9"))}, waiting},
		"target still there":                         {remove(""), steps{see(expectations.Updated, object("u1", "9"))}, waiting},
		"newer successor proves removal":             {remove("5"), steps{see(expectations.Added, object("u2", "9"))}, satisfied},
		"late event of a predecessor proves nothing": {remove("5"), steps{see(expectations.Updated, object("u0", "4"))}, waiting},
		"successor without known version":            {remove(""), steps{see(expectations.Added, object("u2", "9"))}, waiting},
		"tombstone never settles a deletion":         {remove("5"), steps{see(expectations.DeletedUnknown, object("u1", "5"))}, expired},
		"deletion event after a tombstone":           {remove("5"), steps{see(expectations.DeletedUnknown, object("u1", "5")), see(expectations.Deleted, object("u1", "9"))}, satisfied},
		"bookmark never settles a deletion":          {remove("5"), steps{bookmark(pods, "", "99")}, waiting},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			tok := tc.expect(b)
			for _, step := range tc.steps {
				step(b, tok)
			}
			got := b.Check(owner)
			if got.State != tc.want {
				t.Fatalf("got %s %v, want %s", got.State, got.Pending, tc.want)
			}
			if left := b.Outstanding(); (left == 0) != (tc.want == satisfied) {
				t.Errorf("%d writes outstanding in state %s", left, tc.want)
			}
		})
	}
}

func TestCheckTellsWhatIsMissing(t *testing.T) {
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

func TestNoWriteReplacesAnother(t *testing.T) {
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

func TestOwnersOfOneNameAreTwo(t *testing.T) {
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

func TestSuccessorDropsOverdueWritesOfItsPredecessor(t *testing.T) {
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

func TestWakeComesWithTheLastEvidence(t *testing.T) {
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

func TestWakeComesWhenALiveReadIsNeeded(t *testing.T) {
	b := newBench(t)
	b.ExpectDelete(owner, ref, "u1", "")
	b.Observe(pods, object("u1", "6"), expectations.DeletedUnknown)
	b.Observe(pods, object("u1", "6"), expectations.DeletedUnknown)
	if diff := cmp.Diff([]expectations.Owner{owner}, b.woken); diff != "" {
		t.Error(diff)
	}
}

func TestWakeMayUseTheTracker(t *testing.T) {
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

func TestAnswer(t *testing.T) {
	create := func(b *bench) { b.ExpectCreate(owner, ref) }
	remove := func(b *bench) { b.ExpectDelete(owner, ref, "u1", "") }
	update := func(to string) func(*bench) { return func(b *bench) { b.ExpectUpdate(owner, ref, "4", to) } }
	for name, tc := range map[string]struct {
		expect func(*bench)
		live   metav1.Object
		want   expectations.Finding
	}{
		"creation found":                   {create, object("u1", "5"), expectations.CacheBehind},
		"creation disproved":               {create, nil, expectations.Disproved},
		"deletion done":                    {remove, nil, expectations.Shown},
		"deletion under way":               {remove, terminating("u1", "7"), expectations.Shown},
		"deletion disproved":               {remove, object("u1", "7"), expectations.Disproved},
		"update reached":                   {update("6"), object("u1", "6"), expectations.Shown},
		"update not reached":               {update("6"), object("u1", "5"), expectations.ServerBehind},
		"update not comparable":            {update("6"), object("u1", "x"), expectations.Unordered},
		"update of an object now gone":     {update("6"), nil, expectations.Disproved},
		"unknown update that was not made": {update(""), object("u1", "4"), expectations.Disproved},
		"unknown update that was made":     {update(""), object("u1", "6"), expectations.CacheBehind},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			tc.expect(b)
			b.now = b.now.Add(2 * time.Minute)
			v := b.Check(owner)
			if v.State != expectations.Expired || v.Pending[0].Problem != expectations.Overdue {
				t.Fatalf("got %s %v before the answer", v.State, v.Pending)
			}
			if got := b.Answer(v.Pending[0], tc.live); got != tc.want {
				t.Errorf("found %s, want %s", got, tc.want)
			}
			if got, want := b.Check(owner).Satisfied(), tc.want.Settled(); got != want {
				t.Errorf("satisfied = %v, want %v", got, want)
			}
		})
	}
}

func TestAnswerIsAboutItsOwnWriteOnly(t *testing.T) {
	b := newBench(t)
	b.ExpectCreate(owner, ref)
	b.now = b.now.Add(time.Minute)
	v := b.Check(owner)
	b.ExpectCreate(owner, ref) // noted after the reading was asked for
	b.Answer(v.Pending[0], nil)
	if got := len(b.Check(owner).Pending); got != 1 {
		t.Errorf("%d pending, want the later write", got)
	}
}

func TestZeroTokenIsHarmless(t *testing.T) {
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

func TestConcurrentOwnersEndSatisfied(t *testing.T) {
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
		t.Error("nobody was woken")
	}
}
