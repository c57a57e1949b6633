// SPDX-License-Identifier: Apache-2.0

package queue

// block closes or opens the lane.
func (l *line) block(name string, closed bool) {
	ln := l.lanes[name]
	if ln == nil {
		if !closed {
			return
		}
		ln = l.lane(name)
	}
	if ln.blocked == closed && !ln.held {
		return
	}
	ln.blocked = closed
	l.hold(ln, false)
	l.refreshLane(ln)
	l.dropLane(ln)
}

// holdBack closes the lane of the node until anything changes in it, or for a
// namespace in it.
func (l *line) holdBack(n *node) {
	l.hold(n.spot.lane, true)
	l.refreshLane(n.spot.lane)
}

// stir notes that the lane has changed.
func (l *line) stir(ln *lane) {
	if ln.held {
		l.hold(ln, false)
		l.refreshLane(ln)
	}
}

func (l *line) hold(ln *lane, held bool) {
	switch {
	case held && !ln.held:
		l.held++
	case !held && ln.held:
		l.held--
	}
	ln.held = held
}

// refreshLane updates the accounts after the lane was opened or closed. A spot of a closed
// lane may stay among the open ones of its account unless it is the first: closing and
// opening then costs a look at each.
func (l *line) refreshLane(ln *lane) {
	for _, s := range ln.spots {
		open := &s.account.open
		if s.items.n > 0 && s.turn == 0 && !ln.closed() {
			open.fix(s)
		}
		if open.len() > 0 && open.top() == s {
			s.account.settle(s.level)
		}
	}
}

// refresh restores the positions of the spot, whose items have changed, and its namespace.
func (l *line) refresh(s *spot) {
	open := &s.account.open
	switch {
	case s.items.n == 0:
		open.remove(s)
	case s.turn > 0 || !s.lane.closed():
		open.fix(s)
	}
	s.account.settle(s.level)
}

// settle restores the position of the namespace by its first open spot.
func (a *account) settle(lv *level) {
	for a.open.len() > 0 && a.open.top().lane.closed() {
		a.open.remove(a.open.top())
	}
	if a.open.len() > 0 {
		lv.open.fix(a)
	} else {
		lv.open.remove(a)
	}
}

// maxSpare is how many unused objects are kept for reuse.
const maxSpare = 1024

func (l *line) lane(name string) *lane {
	ln := l.lanes[name]
	if ln != nil {
		return ln
	}
	if last := len(l.freeLanes) - 1; last >= 0 {
		ln, l.freeLanes = l.freeLanes[last], l.freeLanes[:last]
	} else {
		ln = &lane{}
	}
	ln.name = name
	l.lanes[name] = ln
	return ln
}

func (l *line) dropLane(ln *lane) {
	if len(ln.spots) > 0 || ln.blocked {
		return
	}
	delete(l.lanes, ln.name)
	l.hold(ln, false)
	l.freeLanes = spare(l.freeLanes, ln)
}

// spot returns the account's spot in the lane.
func (l *line) spot(lv *level, a *account, name string) *spot {
	if a.recent != nil && a.recent.lane.name == name {
		return a.recent
	}
	ln := l.lane(name)
	s := a.spots[ln]
	if s != nil {
		a.recent = s
		return s
	}
	if last := len(l.freeSpots) - 1; last >= 0 {
		s, l.freeSpots = l.freeSpots[last], l.freeSpots[:last]
	} else {
		s = &spot{}
	}
	s.lane, s.account, s.level, s.place = ln, a, lv, len(ln.spots)
	ln.spots = append(ln.spots, s)
	a.spots[ln], a.recent = s, s
	return s
}

// dropSpot drops an empty spot. An account keeps its last one: items that come one at a
// time usually come to the same lane.
func (l *line) dropSpot(s *spot) {
	ln := s.lane
	last := len(ln.spots) - 1
	ln.spots[s.place] = ln.spots[last]
	ln.spots[s.place].place = s.place
	ln.spots[last] = nil
	ln.spots = ln.spots[:last]
	delete(s.account.spots, ln)
	if s.account.recent == s {
		s.account.recent = nil
	}
	s.lane, s.account, s.level = nil, nil, nil
	l.freeSpots = spare(l.freeSpots, s)
	l.dropLane(ln)
}

// forget drops an account without items.
func (l *line) forget(lv *level, a *account) {
	for _, s := range a.spots {
		l.dropSpot(s)
	}
	delete(lv.accounts, a.namespace)
	l.spare = spare(l.spare, a)
}

func spare[T any](list []T, e T) []T {
	if len(list) >= maxSpare {
		return list
	}
	return append(list, e)
}
