// SPDX-License-Identifier: Apache-2.0

package expectations

import (
	"errors"
	"hash/maphash"
	"sync/atomic"
	"time"

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
	// Wake is called, without any lock held and on the goroutine that brings the evidence, when an event or a bookmark
	// settles the last outstanding write of an owner, or when one of its writes turns out to need a live read for another
	// reason than its age. It must not block. Defaults to nothing.
	Wake func(Owner)
	// Observer is told what becomes of every write. Defaults to nobody.
	Observer Observer
}

// Tracker holds the writes that are not visible yet. It is safe for concurrent use. Create it with New.
type Tracker struct {
	now      func() time.Time
	ttl      time.Duration
	wake     func(Owner)
	observer Observer
	seed     maphash.Seed

	// outstanding lets Check answer without a lock in the steady state.
	outstanding atomic.Int64
	// The state of an entry is guarded by the shard of its object; the list of an owner by the shard of its key. An entry
	// is open exactly while it is in both: whoever changes that holds the lock of the object and, inside it, that of the
	// owner.
	objects [shardCount]objectShard
	owners  [shardCount]ownerShard
}

// Token identifies one noted write towards Confirm, Exists, Seen and Cancel. The zero Token is valid and stands for
// nothing.
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
	t := &Tracker{now: o.Now, ttl: o.TTL, wake: o.Wake, observer: o.Observer, seed: maphash.MakeSeed()}
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
	e.since, e.due = t.now(), t.ttl
	t.tellNoted(e)
	ob := t.objectShard(e.ref)
	ob.mu.Lock()
	abandoned := t.link(ob, e)
	ob.mu.Unlock()
	for _, old := range abandoned {
		t.drop(old, Succeeded)
	}
	return Token{entry: e}
}

// link opens the entry in both indexes; the caller holds the lock of ob. It returns the overdue entries of predecessors of
// the owner under the same key, which nobody will ask for again.
func (t *Tracker) link(ob *objectShard, e *entry) (abandoned []*entry) {
	e.open = true
	e.nextOfObject = ob.entries[e.ref]
	ob.entries[e.ref] = e
	t.outstanding.Add(1)

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

// Outstanding returns how many writes are not visible yet, over all owners.
func (t *Tracker) Outstanding() int { return int(t.outstanding.Load()) }
