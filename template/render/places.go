// SPDX-License-Identifier: Apache-2.0

package render

// places indexes the elements of a Pod's long lists by key. Most lists are short and faster to scan than to index.
type places map[field]*placed

// placed is the index of one list, which had n elements at the time.
type placed struct {
	n  int
	at map[string]int
}

// shortList is the maximum length of a list that is scanned.
const shortList = 32

// list returns the list that contains the field.
func (f field) list() field {
	if f.item != "" {
		f.item = ""
		return f
	}
	return field{base: f.base}
}

// find returns the index of the element with a key, or -1. A list that was modified other than by setters is indexed again.
func find[T any](d *rendering, list []T, name field, key string, keyOf func(*T) string) int {
	if len(list) <= shortList {
		for i := range list {
			if keyOf(&list[i]) == key {
				return i
			}
		}
		return -1
	}
	p := d.places[name]
	if p == nil || p.n != len(list) {
		p = &placed{n: len(list), at: make(map[string]int, 2*len(list))}
		for i := range list {
			if k := keyOf(&list[i]); p.at[k] == 0 { // the first of several, as a scan would find it
				p.at[k] = i + 1
			}
		}
		d.note(name, p)
	}
	return p.at[key] - 1
}

func (d *rendering) note(name field, p *placed) {
	if d.places == nil {
		d.places = places{}
	}
	d.places[name] = p
}

// added records that a setter has appended an element; n is the new length.
func (p places) added(name field, key string, n int) {
	if list := p[name]; list != nil && list.n == n-1 {
		list.n, list.at[key] = n, n
	}
}
