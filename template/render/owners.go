// SPDX-License-Identifier: Apache-2.0

package render

// fieldOwners are the origins of fields, in the order in which the fields were first set. It is a custom hash table because a
// rendering looks up some hundred fields of four strings each, most of which differ in the last ones only.
type fieldOwners struct {
	entries []ownedField
	// slots has the index in entries, plus one, of the field whose hash leads there or to a previous slot.
	slots []int32
}

// ownedField is a field and its origin. An origin without a stage marks a field that is not set (any more).
type ownedField struct {
	field  field
	origin origin
}

const firstSlots = 512 // a power of two, and more than twice the fields of most Pods

func newOwners() fieldOwners {
	return fieldOwners{entries: make([]ownedField, 0, firstSlots/2), slots: make([]int32, firstSlots)}
}

func (t *fieldOwners) clear() {
	clear(t.entries)
	t.entries = t.entries[:0]
	clear(t.slots)
}

// get returns the origin of a field; an unset field has no stage.
func (t *fieldOwners) get(f field) origin {
	if at := t.slots[t.slot(f)]; at > 0 {
		return t.entries[at-1].origin
	}
	return origin{}
}

func (t *fieldOwners) put(f field, o origin) { *t.at(f) = o }

// at returns a pointer to the origin of a field, valid until the next call.
func (t *fieldOwners) at(f field) *origin {
	slot := t.slot(f)
	if at := t.slots[slot]; at > 0 {
		return &t.entries[at-1].origin
	}
	t.entries = append(t.entries, ownedField{field: f})
	t.slots[slot] = int32(len(t.entries)) //nolint:gosec // a Pod has less than two billion fields
	if 2*len(t.entries) > len(t.slots) {
		t.grow()
	}
	return &t.entries[len(t.entries)-1].origin
}

func (t *fieldOwners) remove(f field) {
	if at := t.slots[t.slot(f)]; at > 0 {
		t.entries[at-1].origin = origin{}
	}
}

func (t *fieldOwners) grow() {
	t.slots = make([]int32, 2*len(t.slots))
	for i := range t.entries {
		t.slots[t.slot(t.entries[i].field)] = int32(i + 1) //nolint:gosec // as in put
	}
}

// slot returns the slot of the field, or the free slot for it.
func (t *fieldOwners) slot(f field) uint32 {
	mask := uint32(len(t.slots) - 1) //nolint:gosec // a power of two that fits
	for i := f.hash() & mask; ; i = (i + 1) & mask {
		if at := t.slots[i]; at == 0 || t.entries[at-1].field == f {
			return i
		}
	}
}

// hash mixes the beginnings and ends of the strings in which fields differ. Collisions are resolved by comparison.
func (f field) hash() uint32 {
	const odd = 0x9e3779b97f4a7c15 // spreads differences over all bits
	h := mixed(f.item)
	h = h*odd ^ mixed(f.name)
	h = h*odd ^ uint64(len(f.sub))<<8 ^ uint64(len(f.base))
	if f.sub == "" && f.name == "" {
		h ^= mixed(f.base)
	}
	if f.sub != "" {
		h ^= uint64(f.sub[1%len(f.sub)])<<16 ^ uint64(f.sub[len(f.sub)-1])<<24
	}
	return uint32((h * odd) >> 32) //nolint:gosec // a hash
}

// mixed combines the first and the last eight bytes of a string and its length.
func mixed(s string) uint64 {
	n := len(s)
	if n >= 8 {
		return eight(s[:8])*31 ^ eight(s[n-8:]) + uint64(n)
	}
	h := uint64(n)
	for i := range n {
		h = h<<8 | uint64(s[i])
	}
	return h
}

func eight(s string) uint64 {
	_ = s[7]
	return uint64(s[0]) | uint64(s[1])<<8 | uint64(s[2])<<16 | uint64(s[3])<<24 |
		uint64(s[4])<<32 | uint64(s[5])<<40 | uint64(s[6])<<48 | uint64(s[7])<<56
}
