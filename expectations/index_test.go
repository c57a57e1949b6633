// SPDX-License-Identifier: Apache-2.0

package expectations

import (
	"slices"
	"testing"
	"unsafe"
)

func TestShard_FillsCacheLine(t *testing.T) {
	const line = 64
	if got := unsafe.Sizeof(shard{}); unsafe.Sizeof(uintptr(0)) == 8 && got != line {
		t.Errorf("a shard has %d bytes, want %d", got, line)
	}
	for range 10 {
		if at := uintptr(unsafe.Pointer(newShards())); at%line != 0 {
			t.Errorf("shards begin at %#x, across cache lines", at)
		}
	}
}

// Tables grow and shrink with their entries; an iteration over a list meanwhile misses no entry of it.
func TestShard_TableSize(t *testing.T) {
	const crowd = 1000
	s := &newShards()[byObject][0]
	entries := make([]*entry, crowd)
	for i := range entries {
		entries[i] = &entry{hash: [2]uint32{byObject: uint32(i/2) * shardCount}} // two of each hash
		s.insert(entries[i])
	}
	if len(s.table) < crowd/2 || len(s.table) > crowd {
		t.Errorf("a table of %d lists for %d entries", len(s.table), crowd)
	}
	follow := func(hash uint32, do func(*entry)) (found []*entry) {
		for e := s.head(hash); e != nil; {
			next := s.after(e)
			if e.hash[byObject] == hash {
				found = append(found, e)
				do(e)
			}
			e = next
		}
		return found
	}
	for i := 0; i < crowd; i += 2 {
		want := []*entry{entries[i+1], entries[i]} // the newer one first
		if got := follow(uint32(i/2)*shardCount, func(*entry) {}); !slices.Equal(got, want) {
			t.Fatalf("entries %d and %d: found %d, or in another order", i, i+1, len(got))
		}
	}
	for i := 0; i < crowd; i += 2 {
		if got := follow(uint32(i/2)*shardCount, s.remove); len(got) != 2 {
			t.Fatalf("removed %d entries of two while following their list", len(got))
		}
	}
	if len(s.table) != smallTable || len(s.all()) != 0 || s.count.Load() != 0 {
		t.Errorf("an emptied shard has %d lists, %d entries and counts %d", len(s.table), len(s.all()), s.count.Load())
	}
}
