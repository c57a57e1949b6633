// SPDX-License-Identifier: Apache-2.0

package expectations

import (
	"hash/maphash"
	"slices"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/types"
)

// Every entry is in two indexes, by its object and by its owner. An index is split into shards, far more of them than
// there are workers, so that two workers rarely contend.
const shardCount = 256

// side identifies one of the two indexes.
type side uint8

const (
	byObject side = 0
	byOwner  side = 1
)

// smallTable is the number of lists that a shard has room for in itself. Together with the rest of the shard they fill
// one cache line, so that the usual operation touches no other and shares none with its neighbours.
const smallTable = 2

// shard is a part of an index: a hash table of lists that run through the entries themselves, so that putting one in
// allocates nothing. The table grows with the number of entries and shrinks with it.
type shard struct {
	mu    sync.Mutex
	count atomic.Int32 // written under mu; read without it to skip empty shards
	side  side
	table []*entry // guarded by mu, as are the links of the entries in it; its length is a power of two
	small [smallTable]*entry
	_     [8]byte // to the end of the cache line
}

// index finds the outstanding entries by object and by owner. The state of an entry is guarded by the shard of its object. An
// entry is in both indexes or in none: changing that takes the lock of the object's shard and, inside it, that of the owner's.
type index struct {
	seed    maphash.Seed
	objects *[shardCount]shard
	owners  *[shardCount]shard
}

// links are the place of an entry in the list of one index.
type links struct{ next, prev *entry }

func newIndex() index {
	shards := newShards()
	return index{seed: maphash.MakeSeed(), objects: &shards[byObject], owners: &shards[byOwner]}
}

// newShards returns empty shards for both sides. They are one object, as one so large begins at a page, and so every
// shard at a cache line.
func newShards() *[2][shardCount]shard {
	both := &[2][shardCount]shard{}
	for which := range both {
		for i := range both[which] {
			s := &both[which][i]
			s.side, s.table = side(which), s.small[:]
		}
	}
	return both
}

// head returns the first entry of the list that holds the entries of this hash, among others.
func (s *shard) head(hash uint32) *entry {
	return *s.list(hash)
}

// list returns where the list for a hash begins. The shard itself was chosen by the lowest bits.
func (s *shard) list(hash uint32) **entry {
	return &s.table[int(hash/shardCount)&(len(s.table)-1)]
}

// links returns the place of an entry in this index. The mask lets the compiler omit the bounds check.
func (s *shard) links(e *entry) *links { return &e.links[s.side&1] }

// after returns the next entry of the list that e is in.
func (s *shard) after(e *entry) *entry { return s.links(e).next }

// all returns the entries of the shard.
func (s *shard) all() []*entry {
	found := make([]*entry, 0, s.count.Load())
	for _, e := range s.table {
		for ; e != nil; e = s.after(e) {
			found = append(found, e)
		}
	}
	return found
}

func (s *shard) insert(e *entry) {
	n := int(s.count.Add(1))
	if n > 2*len(s.table) {
		s.resize(2 * len(s.table))
	}
	s.push(e)
}

func (s *shard) push(e *entry) {
	first, own := s.list(e.hash[s.side&1]), s.links(e)
	own.next, own.prev = *first, nil
	if own.next != nil {
		s.links(own.next).prev = e
	}
	*first = e
}

func (s *shard) remove(e *entry) {
	own := s.links(e)
	if own.next != nil {
		s.links(own.next).prev = own.prev
	}
	if own.prev != nil {
		s.links(own.prev).next = own.next
	} else {
		*s.list(e.hash[s.side&1]) = own.next
	}
	own.next, own.prev = nil, nil
	n := int(s.count.Add(-1))
	if len(s.table) > smallTable && n < len(s.table)/4 {
		s.resize(len(s.table) / 2)
	}
}

// resize moves the entries to a table of another size. Entries of one list keep their order, so that an
// iteration over it may continue.
func (s *shard) resize(size int) {
	old := s.table
	if s.table = s.small[:]; size > smallTable {
		s.table = make([]*entry, size)
	}
	for _, e := range old {
		for e != nil && s.after(e) != nil {
			e = s.after(e)
		}
		for e != nil {
			before := s.links(e).prev
			s.push(e)
			e = before
		}
	}
	clear(old)
}

func (x *index) hash(namespace, name string) uint32 {
	return uint32(maphash.String(x.seed, name)*31 + maphash.String(x.seed, namespace))
}

func (x *index) objectHash(r *Ref) uint32 { return x.hash(r.Namespace, r.Name) }

func (x *index) ownerHash(key *types.NamespacedName) uint32 { return x.hash(key.Namespace, key.Name) }

// link puts the entry into both indexes. The caller holds the lock of its object.
func (x *index) link(ob *shard, e *entry) {
	ob.insert(e)
	ow := &x.owners[e.hash[byOwner]%shardCount]
	ow.mu.Lock()
	ow.insert(e)
	ow.mu.Unlock()
}

// unlink ends the entry: it takes it out of both indexes and reports whether it was the last one of its owner. The caller
// holds the lock of its object, is the only one to know the entry afterwards, and gives it back to spare when done.
func (x *index) unlink(ob *shard, e *entry) (last bool) {
	e.handle.entry = nil
	ob.remove(e)
	hash := e.hash[byOwner]
	ow := &x.owners[hash%shardCount]
	ow.mu.Lock()
	ow.remove(e)
	last = true
	for other := ow.head(hash); other != nil && last; other = ow.after(other) {
		last = other.hash[byOwner] != hash || other.owner != e.owner
	}
	ow.mu.Unlock()
	return last
}

// idle reports, without a lock, that no owner of the shard has a write outstanding. It is the usual cost of
// Check.
func (x *index) idle(ownerHash uint32) bool {
	return x.owners[ownerHash%shardCount].count.Load() == 0
}

// writesOf returns the outstanding writes of a key that match, oldest first. They may end at any time. match is called
// with a lock held and may read only fields that never change.
func (x *index) writesOf(key types.NamespacedName, match func(*entry) bool) []Token {
	hash := x.ownerHash(&key)
	if x.idle(hash) {
		return nil
	}
	var found []Token
	ow := &x.owners[hash%shardCount]
	ow.mu.Lock()
	for e := ow.head(hash); e != nil; e = ow.after(e) {
		if e.hash[byOwner] == hash && e.owner.Key == key && match(e) {
			found = append(found, e.token())
		}
	}
	ow.mu.Unlock()
	slices.Reverse(found)
	return found
}
