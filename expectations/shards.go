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

func (t *Tracker) entriesOf(key types.NamespacedName, match func(*entry) bool) []*entry {
	os := t.ownerShard(key)
	os.mu.Lock()
	defer os.mu.Unlock()
	var out []*entry
	for e := os.entries[key]; e != nil; e = e.nextOfOwner {
		if match(e) {
			out = append(out, e)
		}
	}
	slices.Reverse(out) // oldest first
	return out
}

// unlinkOwner removes the entry from its owner's list and reports whether it was the last one of that owner.
func (t *Tracker) unlinkOwner(e *entry) (last bool) {
	os := t.ownerShard(e.owner.Key)
	os.mu.Lock()
	defer os.mu.Unlock()
	last = true
	removed := false
	var prev *entry
	for cur := os.entries[e.owner.Key]; cur != nil; cur = cur.nextOfOwner {
		if cur == e {
			removed = true
			switch {
			case prev != nil:
				prev.nextOfOwner = cur.nextOfOwner
			case cur.nextOfOwner == nil:
				delete(os.entries, e.owner.Key)
			default:
				os.entries[e.owner.Key] = cur.nextOfOwner
			}
			continue
		}
		if cur.owner.UID == e.owner.UID {
			last = false
		}
		prev = cur
	}
	if !removed {
		return false
	}
	t.outstanding.Add(-1)
	return last
}

// lockedUnlink removes the entry from its object's list and marks it settled. Unlinking twice does nothing.
func (s *objectShard) lockedUnlink(e *entry) {
	if !e.open {
		return
	}
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
