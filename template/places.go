// SPDX-License-Identifier: Apache-2.0

package template

// places are where the elements of a Pod's long lists are, by their keys. Most lists are short, and looked through faster
// than they are indexed.
type places map[field]*placed

// placed are the places in one list, of which there were n elements when they were noted.
type placed struct {
	n  int
	at map[string]int
}

// shortList is how many elements a list has at most that is looked through.
const shortList = 32

// list is the list that the field is an element of.
func (f field) list() field {
	if f.item != "" {
		f.item = ""
		return f
	}
	return field{base: f.base}
}

// find returns where a list has the element of a key, -1 if it does not. A list that has grown or shrunk otherwise than by
// setters is noted anew.
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
			if k := keyOf(&list[i]); p.at[k] == 0 { // the first of several, as one that looks through the list finds it
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

// added notes that a setter has appended an element; n is how many there are now.
func (p places) added(name field, key string, n int) {
	if list := p[name]; list != nil && list.n == n-1 {
		list.n, list.at[key] = n, n
	}
}
