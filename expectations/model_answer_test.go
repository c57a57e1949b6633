// SPDX-License-Identifier: Apache-2.0

package expectations_test

import "github.com/virtloom/virtloom/expectations"

// answer evaluates a live read.
func (m *model) answer(w *modelWrite, live *view) expectations.Finding {
	if !w.open {
		return expectations.Shown
	}
	before := w.problem
	found := m.find(w, live)
	switch found {
	case expectations.Shown:
		m.settle(w, expectations.ByLiveRead)
	case expectations.Disproved:
		m.settle(w, expectations.ByDisproof)
	case expectations.Unordered:
		w.problem = expectations.Incomparable
		if before != expectations.Incomparable {
			m.trouble(w, expectations.Incomparable)
		}
	default:
		w.problem = expectations.NoProblem
	}
	return found
}

func (m *model) find(w *modelWrite, live *view) expectations.Finding {
	switch {
	case live == nil && w.Verb == expectations.Delete:
		return expectations.Shown
	case live == nil:
		return expectations.Disproved
	case w.Verb == expectations.Delete:
		return m.findDeleted(w, *live)
	case w.Verb == expectations.Create:
		return m.findCreated(w, *live)
	default:
		return m.findUpdated(w, *live)
	}
}

func (m *model) findDeleted(w *modelWrite, live view) expectations.Finding {
	if less(live.version, w.base) {
		return m.behind(w)
	}
	if live.uid == w.uid && !live.terminating {
		return expectations.Disproved
	}
	return expectations.Shown
}

func (m *model) findCreated(w *modelWrite, live view) expectations.Finding {
	if w.exists {
		return expectations.Shown
	}
	if w.uid == "" && w.needs == "" {
		return m.learn(w, live)
	}
	if live.uid == w.uid {
		return m.found(w)
	}
	if less(live.version, w.needs) {
		return m.behind(w)
	}
	return expectations.Disproved
}

func (m *model) findUpdated(w *modelWrite, live view) expectations.Finding {
	if w.needs == "" {
		if live.version != "" && live.version == w.base {
			return expectations.Disproved
		}
		if less(live.version, w.base) {
			return m.behind(w)
		}
		return m.learn(w, live)
	}
	if atLeast(live.version, w.needs) {
		return m.found(w)
	}
	if less(live.version, w.needs) {
		return m.behind(w)
	}
	if w.uid != "" && w.uid != live.uid {
		return expectations.Disproved
	}
	return expectations.Unordered
}

// found: the server has it. A cache that has only just lost the object gets the rest of its time.
func (m *model) found(w *modelWrite) expectations.Finding {
	if w.problem == expectations.Tombstone && m.now.Before(w.due) {
		return expectations.CacheBehind
	}
	return expectations.Shown
}

// learn: nothing was known of the write; now the cache has to show what the server has.
func (m *model) learn(w *modelWrite, live view) expectations.Finding {
	w.uid, w.needs, w.older = live.uid, live.version, false
	if w.needs == "" || atLeast(w.seen, w.needs) {
		return expectations.Shown
	}
	w.due = m.now.Add(m.ttl)
	return expectations.CacheBehind
}

// behind: the reading is older than the write. The second such reading, a TTL after the first, is trusted.
func (m *model) behind(w *modelWrite) expectations.Finding {
	if w.older && !m.now.Before(w.due) {
		return expectations.Disproved
	}
	if !w.older {
		w.older, w.due = true, m.now.Add(m.ttl)
	}
	return expectations.ServerBehind
}
