// SPDX-License-Identifier: Apache-2.0

package template

// owners are the origins of fields, in the order in which the fields were first set. It is a hash table of its own as a
// rendering asks some hundred times for fields of four texts each, most of which differ in their last ones alone.
type owners struct {
	entries []ownedField
	// slots has the place in entries, plus one, of the field whose hash leads there or to one of the slots before.
	slots []int32
}

// ownedField is a field and its origin. An origin without stage marks a field that nobody has set, or not any more.
type ownedField struct {
	field  field
	origin origin
}

const firstSlots = 512 // a power of two, and more than twice the fields of most Pods

func newOwners() owners {
	return owners{entries: make([]ownedField, 0, firstSlots/2), slots: make([]int32, firstSlots)}
}

func (t *owners) clear() {
	clear(t.entries)
	t.entries = t.entries[:0]
	clear(t.slots)
}

// get returns the origin of a field; that of a field which nobody has set has no stage.
func (t *owners) get(f field) origin {
	if at := t.slots[t.slot(f)]; at > 0 {
		return t.entries[at-1].origin
	}
	return origin{}
}

func (t *owners) put(f field, o origin) {
	slot := t.slot(f)
	if at := t.slots[slot]; at > 0 {
		t.entries[at-1].origin = o
		return
	}
	t.entries = append(t.entries, ownedField{f, o})
	t.slots[slot] = int32(len(t.entries)) //nolint:gosec // a Pod has less than two billion fields
	if 2*len(t.entries) > len(t.slots) {
		t.grow()
	}
}

func (t *owners) remove(f field) {
	if at := t.slots[t.slot(f)]; at > 0 {
		t.entries[at-1].origin = origin{}
	}
}

func (t *owners) grow() {
	t.slots = make([]int32, 2*len(t.slots))
	for i := range t.entries {
		t.slots[t.slot(t.entries[i].field)] = int32(i + 1) //nolint:gosec // as in put
	}
}

// slot is where the field is, or where it belongs.
func (t *owners) slot(f field) uint32 {
	mask := uint32(len(t.slots) - 1) //nolint:gosec // a power of two that fits
	for i := f.hash() & mask; ; i = (i + 1) & mask {
		if at := t.slots[i]; at == 0 || t.entries[at-1].field == f {
			return i
		}
	}
}

// hash mixes the texts that fields differ in; those of a Pod are few and short.
func (f field) hash() uint32 {
	const prime = 16777619 // of FNV-1a
	h := uint32(2166136261)
	for _, text := range [...]string{f.item, f.name, f.sub, f.base} {
		h = (h ^ uint32(len(text))) * prime //nolint:gosec // a hash
		// The first bytes tell little apart: spec.containers, kubevirt.io/, /var/run/kubevirt.
		for i := max(0, len(text)-12); i < len(text); i++ {
			h = (h ^ uint32(text[i])) * prime
		}
	}
	return h ^ h>>15
}
