// SPDX-License-Identifier: Apache-2.0

package migration

// namespaceTurn is a namespace waiting for its turn: what it has spent and its
// items, oldest first, never empty.
type namespaceTurn struct {
	spent float64
	items []Item
}

func (t namespaceTurn) before(o namespaceTurn) bool {
	if t.spent != o.spent {
		return t.spent < o.spent
	}
	return older(t.items[0], o.items[0]) < 0
}

// turns is a binary heap of namespaces, the next one first.
type turns []namespaceTurn

func (h *turns) push(t namespaceTurn) {
	*h = append(*h, t)
	s := *h
	for i := len(s) - 1; i > 0; {
		parent := (i - 1) / 2
		if !s[i].before(s[parent]) {
			return
		}
		s[i], s[parent] = s[parent], s[i]
		i = parent
	}
}

// pop removes the next namespace; the heap must not be empty.
func (h *turns) pop() namespaceTurn {
	s := *h
	top, last := s[0], len(s)-1
	s[0] = s[last]
	s = s[:last]
	*h = s
	for i := 0; ; {
		next := i
		for child := 2*i + 1; child <= 2*i+2 && child < len(s); child++ {
			if s[child].before(s[next]) {
				next = child
			}
		}
		if next == i {
			return top
		}
		s[i], s[next] = s[next], s[i]
		i = next
	}
}
