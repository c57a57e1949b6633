// SPDX-License-Identifier: Apache-2.0

package queue

// heap is a binary heap whose elements store their place in it, so that any of them
// can be moved or removed in O(log n). Per place an element is in at most one heap.
type heap[T any] struct {
	less func(a, b T) bool
	// place returns where the element stores its place, from 1; 0 means that it
	// is not in the heap.
	place func(T) *int
	list  []T
}

func (h *heap[T]) len() int { return len(h.list) }

// top returns the least element; the heap must not be empty.
func (h *heap[T]) top() T { return h.list[0] }

// fix restores the element's position after its order has changed, and adds it if it is
// not in the heap.
func (h *heap[T]) fix(e T) {
	at := *h.place(e)
	if at == 0 {
		h.list = append(h.list, e)
		at = len(h.list)
		*h.place(e) = at
	}
	if !h.up(at - 1) {
		h.down(at - 1)
	}
}

// remove removes the element; a missing one is not an error.
func (h *heap[T]) remove(e T) {
	at := *h.place(e)
	if at == 0 {
		return
	}
	i, last := at-1, len(h.list)-1
	h.swap(i, last)
	var none T
	h.list[last] = none
	h.list = h.list[:last]
	*h.place(e) = 0
	if i < last && !h.up(i) {
		h.down(i)
	}
}

func (h *heap[T]) swap(i, j int) {
	h.list[i], h.list[j] = h.list[j], h.list[i]
	*h.place(h.list[i]), *h.place(h.list[j]) = i+1, j+1
}

// up reports whether the element moved.
func (h *heap[T]) up(i int) bool {
	from := i
	for i > 0 {
		parent := (i - 1) / 2
		if !h.less(h.list[i], h.list[parent]) {
			break
		}
		h.swap(i, parent)
		i = parent
	}
	return i != from
}

func (h *heap[T]) down(i int) {
	for {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < len(h.list); child++ {
			if h.less(h.list[child], h.list[least]) {
				least = child
			}
		}
		if least == i {
			return
		}
		h.swap(i, least)
		i = least
	}
}
