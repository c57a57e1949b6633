// SPDX-License-Identifier: Apache-2.0

package expectations

import (
	"hash/maphash"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

type objectShard struct {
	mu      sync.Mutex
	entries map[Ref]*entry // guarded by mu; linked by entry.nextOfObject
	_       [40]byte       // keeps neighbouring shards off one cache line
}

type ownerShard struct {
	mu      sync.Mutex
	entries map[types.NamespacedName]*entry // guarded by mu; linked by entry.nextOfOwner
	_       [40]byte
}

// entriesOf returns the open entries of all owners of a key, oldest first.
func (t *Tracker) entriesOf(key types.NamespacedName) []*entry {
	os := t.ownerShard(key)
	os.mu.Lock()
	defer os.mu.Unlock()
	var out []*entry
	for e := os.entries[key]; e != nil; e = e.nextOfOwner {
		out = append(out, e)
	}
	slices.Reverse(out)
	return out
}

// close takes an open entry out of both indexes and reports whether it was the last one of its owner. The caller holds
// the lock of ob.
func (t *Tracker) close(ob *objectShard, e *entry) (last bool) {
	ob.unlink(e)
	t.outstanding.Add(-1)
	os := t.ownerShard(e.owner.Key)
	os.mu.Lock()
	defer os.mu.Unlock()
	return os.unlink(e)
}

// unlink removes the entry from its owner's list and reports whether it was the last one of that owner.
func (s *ownerShard) unlink(e *entry) (last bool) {
	last = true
	var prev *entry
	for cur := s.entries[e.owner.Key]; cur != nil; cur = cur.nextOfOwner {
		switch {
		case cur != e:
			last = last && cur.owner.UID != e.owner.UID
			prev = cur
		case prev != nil:
			prev.nextOfOwner = cur.nextOfOwner
		case cur.nextOfOwner == nil:
			delete(s.entries, e.owner.Key)
		default:
			s.entries[e.owner.Key] = cur.nextOfOwner
		}
	}
	e.nextOfOwner = nil
	return last
}

// unlink removes the entry from its object's list and marks it closed.
func (s *objectShard) unlink(e *entry) {
	e.open = false
	head := s.entries[e.ref]
	switch {
	case head == e && e.nextOfObject == nil:
		delete(s.entries, e.ref)
	case head == e:
		s.entries[e.ref] = e.nextOfObject
	default:
		for cur := head; cur != nil; cur = cur.nextOfObject {
			if cur.nextOfObject == e {
				cur.nextOfObject = e.nextOfObject
				break
			}
		}
	}
	e.nextOfObject = nil
}

func (t *Tracker) objectShard(ref Ref) *objectShard {
	return &t.objects[maphash.String(t.seed, ref.Name)%shardCount]
}

func (t *Tracker) ownerShard(key types.NamespacedName) *ownerShard {
	return &t.owners[maphash.String(t.seed, key.Name)%shardCount]
}
