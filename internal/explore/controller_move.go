// SPDX-License-Identifier: Apache-2.0

package explore

import (
	"github.com/virtloom/virtloom/handoff"
)

// pendingWithin bounds, in ticks, how long a migration may wait to be handed over.
const pendingWithin = 4

// moveFailed marks KubeVirt's own migration state as failed.
func moveFailed(n *content) {
	if n.move.uid != "" {
		n.move.ended, n.move.failed, n.move.completed = true, true, true
	}
}

// move takes the first unfinished migration of the guest a step further.
func (c *controller) move() request {
	for s := slotMove1; s <= slotMove2; s++ {
		if m := c.sees[s]; m != nil && m.final == unfinished {
			return c.further(m)
		}
	}
	return request{}
}

func (c *controller) further(m *object) request {
	tag := m.slot.tag()
	if o, ended := c.l.MoveOutcome(tag); ended {
		if o.Result == handoff.ResultMoved {
			return c.finish(m, succeeded)
		}
		return c.finish(m, failed)
	}
	switch {
	case c.l.Tag == tag:
		return c.during(m)
	case c.v.deleting, c.l.State == handoff.Released:
		return c.finish(m, failed)
	case c.l.State != handoff.Owned || isOpen(c.l, handoff.CommandStart):
		return request{}
	case m.deleting, c.now >= m.born+pendingWithin:
		return c.callOff(m)
	}
	return c.handOver(m)
}

// handOver asks the node of the target Pod to get ready.
func (c *controller) handOver(m *object) request {
	p := c.sees[m.slot.target()]
	switch {
	case p == nil:
		s := m.slot.target()
		return request{verb: create, slot: s, want: object{slot: s}.sealed()}
	case p.deleting:
		return c.callOff(m)
	case c.v.vmi.move.uid == m.slot.tag():
		return c.callOff(m) // which was begun before
	case !p.ready:
		return request{}
	case p.node.String() == c.l.Holder:
		// handoff.Step refuses the node that runs the guest already.
		return c.callOff(m)
	}
	return c.step(wish{kind: handoff.Prepare, node: p.node.String(), tag: m.slot.tag(), within: stepWithin}, func(n *content) {
		n.move = moveStatus{uid: m.slot.tag(), source: c.l.Holder, target: p.node.String()}
		if from := podWhere(c.sees, func(s *object) bool { return s.node.String() == c.l.Holder }); from != nil {
			n.move.sourcePod, n.move.sourceUID = from.slot, from.uid
		}
	})
}

// during calls a move off that is not wanted any more, or takes too long.
func (c *controller) during(m *object) request {
	pod := c.sees[m.slot.target()]
	unwanted := m.deleting || c.overdue() || pod != nil && pod.deleting
	switch {
	case !unwanted:
	case c.l.State == handoff.Preparing || c.l.State == handoff.Prepared:
		return c.step(wish{kind: handoff.Cancel, tag: m.slot.tag()}, moveFailed)
	case c.l.State == handoff.Moving && !c.l.Stalled:
		return c.step(wish{kind: handoff.Abort, tag: m.slot.tag()}, nil)
	}
	return request{}
}

// finish stores how a migration ended.
func (c *controller) finish(m *object, v verdict) request {
	want := m.with(func(o *object) {
		o.final = v
		if st := c.v.vmi.move; v == succeeded && st.uid == m.slot.tag() {
			o.source, o.sourceUID = st.sourcePod, st.sourceUID
		}
	})
	return request{verb: update, slot: m.slot, uid: m.uid, base: m.rv, want: want}
}

// callOff ends a migration that was not handed over. It says so on the guest first:
// an earlier request to hand it over, of which nobody knows any more, then finds
// another version and is refused.
func (c *controller) callOff(m *object) request {
	n := c.v.vmi.content
	if n.move.uid == m.slot.tag() {
		return c.finish(m, failed)
	}
	n.move = moveStatus{uid: m.slot.tag()}
	moveFailed(&n)
	return c.store(c.m.guests.of(n))
}

// tidy deletes the Pod that a finished migration has left empty: of a failed one
// its own, of another the one the guest has left.
func (c *controller) tidy() request {
	for s := slotMove1; s <= slotMove2; s++ {
		m := c.sees[s]
		if m == nil || m.final == unfinished {
			continue
		}
		if r := c.tidyAfter(m); r.verb != 0 {
			return r
		}
	}
	return request{}
}

func (c *controller) tidyAfter(m *object) request {
	p := c.sees[m.slot.target()]
	if m.final == succeeded {
		p = c.sees[m.source]
		if p == nil || p.uid != m.sourceUID || !c.left(p.node) {
			return request{}
		}
	}
	if p == nil || !p.slot.isPod() || p.deleting {
		return request{}
	}
	return c.delete(p)
}

// left tells whether the guest is known to run elsewhere.
func (c *controller) left(n place) bool {
	return c.l.Holder != n.String() && c.l.MayRun(c.l.Holder) && !c.l.MayRun(n.String())
}
