// SPDX-License-Identifier: Apache-2.0

package expectations

import (
	"errors"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// DefaultTTL is how long a write may stay unseen before a live read is requested. Watch delivery takes milliseconds;
// longer than this means a lost event, an object outside the cache, or an API server in trouble.
const DefaultTTL = 30 * time.Second

// Options configure a Tracker.
type Options struct {
	// Now returns the current time. Required.
	Now func() time.Time
	// TTL is the age from which an unseen write needs a live read. Defaults to DefaultTTL.
	TTL time.Duration
	// Wake is called, without any lock held and on the goroutine that brings the evidence, when an event or a bookmark
	// settles the last outstanding write of an owner, or when one of its writes turns out to need a live read for another
	// reason than its age. It must not block. Defaults to a no-op.
	Wake func(Owner)
	// Observer records the life of every write. Defaults to none.
	Observer Observer
}

// Tracker holds the writes that are not visible yet. It is safe for concurrent use. Create it with New.
type Tracker struct {
	now      func() time.Time
	ttl      time.Duration
	wake     func(Owner)
	observer Observer
	index
	// spare holds entries that were removed from both indexes, for reuse.
	spare sync.Pool
}

// New returns an empty Tracker. It is an error if Options.Now is missing.
func New(o Options) (*Tracker, error) {
	if o.Now == nil {
		return nil, errors.New("expectations: Options.Now is required")
	}
	if o.TTL <= 0 {
		o.TTL = DefaultTTL
	}
	if o.Wake == nil {
		o.Wake = func(Owner) {}
	}
	return &Tracker{
		now: o.Now, ttl: o.TTL, wake: o.Wake, observer: o.Observer, index: newIndex(),
		spare: sync.Pool{New: func() any { return new(entry) }},
	}, nil
}

// ExpectCreate notes that an object of this name is about to be created.
func (t *Tracker) ExpectCreate(o Owner, ref Ref) Token {
	e := t.entry(&o, &ref)
	e.verb = Create
	tok := e.token()
	t.open(e)
	return tok
}

// ExpectUpdate notes a write that leads to the given resourceVersion. Before the request is sent the version is not
// known: pass "" and supply it with Confirm. base is the version that the write starts from, "" if unknown; when
// the answer carries the same version, the write changed nothing and nothing is awaited.
func (t *Tracker) ExpectUpdate(o Owner, ref Ref, base, resourceVersion string) Token {
	e := t.entry(&o, &ref)
	e.verb, e.base, e.needs = Update, base, resourceVersion
	tok := e.token()
	t.open(e)
	return tok
}

// ExpectDelete notes that the object of this UID is about to be deleted. seen is the newest resourceVersion known of it,
// "" if none: with it, a successor under the same name is recognized as proof of removal.
func (t *Tracker) ExpectDelete(o Owner, ref Ref, uid types.UID, seen string) Token {
	e := t.entry(&o, &ref)
	e.verb, e.uid, e.base = Delete, uid, seen
	tok := e.token()
	t.open(e)
	return tok
}

// entry returns an entry with no more than the owner and the object of the write.
func (t *Tracker) entry(o *Owner, ref *Ref) *entry {
	e, ok := t.spare.Get().(*entry)
	if !ok {
		e = new(entry)
	}
	e.owner, e.ref = *o, *ref
	e.since, e.due = t.now(), t.ttl
	e.state = state{}
	e.hash = [2]uint32{byObject: t.objectHash(ref), byOwner: t.ownerHash(&o.Key)}
	e.handle = &handle{entry: e}
	return e
}

// open publishes the entry. From then on other goroutines may end it.
func (t *Tracker) open(e *entry) {
	t.reportNoted(e)
	ob := &t.objects[e.hash[byObject]%shardCount]
	ob.mu.Lock()
	t.link(ob, e)
	ob.mu.Unlock()
}

// Outstanding returns how many writes are not visible yet, over all owners.
func (t *Tracker) Outstanding() int {
	n := 0
	for i := range t.owners {
		n += int(t.owners[i].count.Load())
	}
	return n
}
