// SPDX-License-Identifier: Apache-2.0

package expectations

import (
	"errors"
	"hash/maphash"
	"slices"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// DefaultTTL is how long a write may stay unseen before a live read is asked for. Watch delivery takes milliseconds;
// longer than this means a lost event, an object outside the cache, or an API server in trouble.
const DefaultTTL = 30 * time.Second

// shardCount is a power of two far above the number of workers, so that two of them rarely meet.
const shardCount = 64

// Options configure a Tracker.
type Options struct {
	// Now tells the time. Required.
	Now func() time.Time
	// TTL is the age from which an unseen write needs a live read. Defaults to DefaultTTL.
	TTL time.Duration
	// Wake is called, without any lock held and on the goroutine that delivers the event, when an event settles the
	// last outstanding write of an owner or shows that a live read is needed. It must not block. Defaults to nothing.
	Wake func(Owner)
}

// Tracker holds the writes that are not visible yet. It is safe for concurrent use. Create it with New.
type Tracker struct {
	now  func() time.Time
	ttl  time.Duration
	wake func(Owner)
	seed maphash.Seed

	// outstanding lets Check answer without a lock in the steady state.
	outstanding atomic.Int64
	// The state of an entry is guarded by the shard of its object; the list of an owner by the shard of its key. No
	// function holds two of these locks.
	objects [shardCount]objectShard
	owners  [shardCount]ownerShard
}

// Token identifies one noted write towards Confirm and Cancel. The zero Token is valid and stands for nothing.
type Token struct{ entry *entry }

// ErrNoClock is returned by New when Options.Now is missing.
var ErrNoClock = errors.New("expectations: Options.Now is required")

// New returns an empty Tracker.
func New(o Options) (*Tracker, error) {
	if o.Now == nil {
		return nil, ErrNoClock
	}
	if o.TTL <= 0 {
		o.TTL = DefaultTTL
	}
	if o.Wake == nil {
		o.Wake = func(Owner) {}
	}
	t := &Tracker{now: o.Now, ttl: o.TTL, wake: o.Wake, seed: maphash.MakeSeed()}
	for i := range shardCount {
		t.objects[i].entries = map[Ref]*entry{}
		t.owners[i].entries = map[types.NamespacedName]*entry{}
	}
	return t, nil
}

// ExpectCreate notes that an object of this name is about to be created.
func (t *Tracker) ExpectCreate(o Owner, ref Ref) Token {
	return t.expect(&entry{owner: o, ref: ref, verb: Create})
}

// ExpectUpdate notes a write that leads to the given resourceVersion. Before the request is sent the version is not
// known: pass "" and tell it with Confirm. base is the version that the write starts from, "" if unknown; when the
// answer carries the same one the write changed nothing and nothing is awaited.
func (t *Tracker) ExpectUpdate(o Owner, ref Ref, base, resourceVersion string) Token {
	return t.expect(&entry{owner: o, ref: ref, verb: Update, base: base, needs: resourceVersion})
}

// ExpectDelete notes that the object of this UID is about to be deleted. seen is the newest resourceVersion known of it,
// "" if none: with it, a successor under the same name is recognised as proof of removal.
func (t *Tracker) ExpectDelete(o Owner, ref Ref, uid types.UID, seen string) Token {
	return t.expect(&entry{owner: o, ref: ref, verb: Delete, uid: uid, base: seen})
}

func (t *Tracker) expect(e *entry) Token {
	e.since = t.now()
	t.link(e)
	return Token{entry: e}
}

// link puts the entry into both indexes. The owner's list comes first, so that an event cannot settle an entry before
// its owner is known to wait.
func (t *Tracker) link(e *entry) {
	t.outstanding.Add(1)
	for _, old := range t.linkOwner(e) {
		t.drop(old)
	}
	ob := t.objectShard(e.ref)
	ob.mu.Lock()
	e.open = true
	e.nextOfObject = ob.entries[e.ref]
	ob.entries[e.ref] = e
	ob.mu.Unlock()
}

// linkOwner adds the entry to its owner's list and returns the overdue entries of predecessors under the same key, which
// nobody will ask for again.
func (t *Tracker) linkOwner(e *entry) (abandoned []*entry) {
	os := t.ownerShard(e.owner.Key)
	os.mu.Lock()
	defer os.mu.Unlock()
	e.nextOfOwner = os.entries[e.owner.Key]
	os.entries[e.owner.Key] = e
	for old := e.nextOfOwner; old != nil; old = old.nextOfOwner {
		if old.owner.UID != e.owner.UID && e.since.Sub(old.since) >= t.ttl {
			abandoned = append(abandoned, old)
		}
	}
	return abandoned
}

// Confirm reports that the server accepted the write and returned obj. The evidence needed becomes exact: the UID of a
// created object, the version of an updated one. Evidence seen in the meantime counts; evidence about another
// object of the same name, which had settled the creation, is taken back. obj may be nil when the answer carries no
// object, as for deletions. Confirm reports whether nothing is awaited any more.
func (t *Tracker) Confirm(tok Token, obj metav1.Object) (settled bool) {
	e := tok.entry
	if e == nil {
		return true
	}
	ob := t.objectShard(e.ref)
	ob.mu.Lock()
	verdict := e.confirm(obj)
	if verdict == settledNow {
		ob.lockedUnlink(e)
	}
	var again *entry
	if verdict == reopened {
		again = e.successor()
	}
	ob.mu.Unlock()
	switch {
	case verdict == settledNow:
		t.unlinkOwner(e)
	case again != nil:
		t.link(again)
	}
	return verdict == settledNow || verdict == settledBefore
}

// Cancel takes a noted write back, because the server definitely refused it. Cancelling twice, or after evidence came,
// does nothing. Never cancel on an error for which Classify says Ambiguous.
func (t *Tracker) Cancel(tok Token) {
	e := tok.entry
	if e == nil {
		return
	}
	t.drop(e)
}

func (t *Tracker) drop(e *entry) (last bool) {
	ob := t.objectShard(e.ref)
	ob.mu.Lock()
	was := e.open
	ob.lockedUnlink(e)
	ob.mu.Unlock()
	return was && t.unlinkOwner(e)
}

// Observe feeds one watch event. Owners whose last outstanding write it settles, and those that need a live read because
// of it, are woken. gk is the group and kind of obj.
func (t *Tracker) Observe(gk schema.GroupKind, obj metav1.Object, kind EventKind) {
	if t.outstanding.Load() == 0 {
		return
	}
	ref := Ref{Kind: gk, Namespace: obj.GetNamespace(), Name: obj.GetName()}
	ob := t.objectShard(ref)
	var room [2][4]*entry // keeps the common case off the heap
	settled, alarmed := room[0][:0], room[1][:0]
	ob.mu.Lock()
	for e := ob.entries[ref]; e != nil; {
		next := e.nextOfObject
		before := e.problem
		if e.observe(obj, kind) {
			ob.lockedUnlink(e)
			settled = append(settled, e)
		} else if e.problem != before {
			alarmed = append(alarmed, e)
		}
		e = next
	}
	ob.mu.Unlock()
	t.finish(settled)
	for _, e := range alarmed {
		t.wake(e.owner)
	}
}

// finish takes settled entries off their owners' lists and wakes the owners that wait for nothing else.
func (t *Tracker) finish(settled []*entry) {
	for _, e := range settled {
		if t.unlinkOwner(e) {
			t.wake(e.owner)
		}
	}
}

// ObserveBookmark tells that the cache has seen everything of this kind up to resourceVersion, in one namespace or, with
// "", in all. It settles writes whose version is known and not newer.
func (t *Tracker) ObserveBookmark(gk schema.GroupKind, namespace, resourceVersion string) {
	if t.outstanding.Load() == 0 {
		return
	}
	var settled []*entry
	for i := range t.objects {
		ob := &t.objects[i]
		ob.mu.Lock()
		for ref, e := range ob.entries {
			if ref.Kind != gk || (namespace != "" && ref.Namespace != namespace) {
				continue
			}
			for e != nil {
				next := e.nextOfObject
				if e.bookmark(resourceVersion) {
					ob.lockedUnlink(e)
					settled = append(settled, e)
				}
				e = next
			}
		}
		ob.mu.Unlock()
	}
	t.finish(settled)
}

// Answer feeds back the live read of one pending write, made after the Check that reported it. live is nil when the API
// server says that the object does not exist. It returns false if the write is still outstanding: its version is not
// reached (a stale reading) or cannot be compared.
func (t *Tracker) Answer(p Pending, live metav1.Object) bool {
	e := p.entry
	if e == nil {
		return true
	}
	ob := t.objectShard(e.ref)
	ob.mu.Lock()
	if !e.open {
		ob.mu.Unlock()
		return true
	}
	settled := e.answer(live)
	if settled {
		ob.lockedUnlink(e)
	}
	ob.mu.Unlock()
	if settled {
		t.unlinkOwner(e)
	}
	return settled
}

// Check tells whether the cache shows every write of the owner. It costs a few nanoseconds when nothing is outstanding.
func (t *Tracker) Check(o Owner) Verdict {
	if t.outstanding.Load() == 0 {
		return Verdict{}
	}
	entries := t.entriesOf(o.Key, func(e *entry) bool { return e.owner.UID == o.UID })
	if len(entries) == 0 {
		return Verdict{}
	}
	now := t.now()
	var v Verdict
	for _, e := range entries {
		p, open := t.pending(e, now)
		if !open {
			continue
		}
		v.Pending = append(v.Pending, p)
		if p.Problem != NoProblem {
			v.State = Expired
		}
		if due := p.Since.Add(t.ttl); v.Deadline.IsZero() || due.Before(v.Deadline) {
			v.Deadline = due
		}
	}
	if len(v.Pending) == 0 {
		return Verdict{}
	}
	if v.State == Expired {
		v.Deadline = time.Time{}
	} else {
		v.State, v.RequeueAfter = Waiting, v.Deadline.Sub(now)
	}
	slices.SortStableFunc(v.Pending, func(a, b Pending) int { return a.Since.Compare(b.Since) })
	return v
}

func (t *Tracker) pending(e *entry, now time.Time) (Pending, bool) {
	ob := t.objectShard(e.ref)
	ob.mu.Lock()
	defer ob.mu.Unlock()
	if !e.open {
		return Pending{}, false
	}
	p := Pending{
		Ref: e.ref, Verb: e.verb, Since: e.since,
		Needs: e.needs, Seen: e.seen, Problem: e.problem, entry: e,
	}
	if e.verb == Delete {
		p.Needs = string(e.uid)
	}
	if p.Problem == NoProblem && now.Sub(e.since) >= t.ttl {
		p.Problem = Overdue
	}
	return p, true
}

// Forget drops every outstanding write of an owner.
func (t *Tracker) Forget(o Owner) {
	for _, e := range t.entriesOf(o.Key, func(e *entry) bool { return e.owner.UID == o.UID }) {
		t.drop(e)
	}
}

// ForgetKey drops the outstanding writes of every owner that had this key. Call it when the owner is not found.
func (t *Tracker) ForgetKey(key types.NamespacedName) {
	for _, e := range t.entriesOf(key, func(*entry) bool { return true }) {
		t.drop(e)
	}
}

// Outstanding returns how many writes are not visible yet, over all owners.
func (t *Tracker) Outstanding() int { return int(t.outstanding.Load()) }
