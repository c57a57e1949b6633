// SPDX-License-Identifier: Apache-2.0

package explore

import (
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/expectations"
	"github.com/virtloom/virtloom/handoff"
)

// stepWithin bounds every step of a lease.
const stepWithin = 2 * tick

// controller is one pass of a controller: what it sees, and when. It makes at most
// one write; what else there is to do comes with the next pass.
type controller struct {
	m *machine
	// w is for live reads and for the nodes' signs of life.
	w    *world
	now  int8
	sees *[slotCount]*object
	v    *object
	l    handoff.Lease
}

// ctrlWork is a pass of the controller p.
func (m *machine) ctrlWork(w *world, p int) {
	switch m.check(w, p) {
	case expectations.Waiting:
		return
	case expectations.Expired:
		m.readLive(w, p)
		return
	}
	if r := m.ctrlDecide(w, m.clockOf(w, p), &w.procs[p].sees); r.verb != 0 {
		m.send(w, p, r)
	}
}

// ctrlDecide returns what a controller that sees this would write, a request
// without a verb if nothing.
func (m *machine) ctrlDecide(w *world, now int8, sees *[slotCount]*object) request {
	c := &controller{m: m, w: w, now: now, sees: sees, v: sees[slotVMI]}
	if c.v == nil || c.v.vmi.err != nil {
		return request{}
	}
	c.l = c.v.vmi.lease
	for _, part := range []func() request{c.silence, c.own, c.move, c.tidy} {
		if r := part(); r.verb != 0 {
			return r
		}
	}
	return request{}
}

// step is the write that moves the lease.
func (c *controller) step(e wish, edit func(*content)) request {
	g, err := c.m.step(c.v.vmi, e, c.now, edit)
	if err != nil || g == c.v.vmi {
		return request{}
	}
	return c.store(g)
}

func (c *controller) store(g *guest) request {
	return request{
		verb: update, slot: slotVMI, uid: c.v.uid, base: c.v.rv,
		want: c.v.with(func(o *object) { o.vmi = g }),
	}
}

// isOpen tells whether the lease has an open command of the kind.
func isOpen(l handoff.Lease, k handoff.CommandKind) bool { _, open := l.Command(k); return open }

func (c *controller) overdue() bool { return c.l.Overdue(clockAt(c.now)) }

// silence looks after nodes that give no sign of life.
func (c *controller) silence() request {
	holder := placeOf(c.l.Holder)
	switch c.l.State {
	case handoff.Owned, handoff.Arrived, handoff.Releasing, handoff.Moving:
		if c.l.Stalled && c.overdue() {
			return c.fence(placeOf(c.l.Target))
		}
		if c.w.silent(holder) {
			return c.step(wish{kind: handoff.Suspect, node: c.l.Holder}, nil)
		}
	case handoff.Preparing, handoff.Prepared:
		if c.w.silent(holder) {
			return c.step(wish{kind: handoff.Cancel, tag: c.l.Tag}, moveFailed)
		}
	case handoff.Lost:
		return c.fence(holder)
	case handoff.Fenced:
		if c.l.Target != "" {
			return c.fence(placeOf(c.l.Target))
		}
	}
	return request{}
}

// fence looks for evidence that the guest is not on the node.
func (c *controller) fence(n place) request {
	if !c.overdue() && !c.w.nodes[n].fenced {
		return request{}
	}
	evidence := c.evidence(n)
	if evidence == "" {
		return request{}
	}
	return c.step(wish{kind: handoff.Fence, node: n.String(), evidence: evidence}, nil)
}

func (c *controller) evidence(n place) handoff.EvidenceKind {
	pods := &c.w.api // the API server's own word
	if c.m.bugs.tombstones {
		pods = c.sees
	}
	switch node := &c.w.nodes[n]; {
	case node.fenced:
		return handoff.FenceConfirmed
	case node.gone:
		return handoff.NodeGone
	case !anyPod(pods, func(p *object) bool { return p.node == n }):
		return handoff.PodGone
	}
	return ""
}

func anyPod(objects *[slotCount]*object, match func(*object) bool) bool {
	return podWhere(objects, match) != nil
}

// podWhere returns the first Pod that matches.
func podWhere(objects *[slotCount]*object, match func(*object) bool) *object {
	for _, o := range objects {
		if o != nil && o.slot.isPod() && match(o) {
			return o
		}
	}
	return nil
}

// own takes the guest to a node, and to its end.
func (c *controller) own() request {
	if c.v.deleting {
		return c.end()
	}
	switch c.l.State {
	case handoff.Unclaimed:
		return c.step(wish{kind: handoff.Claim, within: stepWithin}, func(n *content) {
			n.finalizer, n.phase = true, v1.Pending
		})
	case handoff.Claimed:
		return c.claimed()
	case handoff.Offered:
		if c.overdue() {
			return c.step(wish{kind: handoff.Withdraw}, func(n *content) { n.phase = v1.Pending })
		}
	case handoff.Fenced:
		return c.fenced()
	case handoff.Released:
		return c.empty()
	}
	return request{}
}

// empty deletes the Pods of a guest that has ended. Nothing leads out of that state,
// so that a late look is as good.
func (c *controller) empty() request {
	if p := podWhere(c.sees, func(p *object) bool { return !p.deleting }); p != nil {
		return c.delete(p)
	}
	return request{}
}

// claimed brings the guest to a node, or gives it up.
func (c *controller) claimed() request {
	if r := c.place(); r.verb != 0 || !c.overdue() {
		return r
	}
	if p := c.launcher(); p != nil && c.w.silent(p.node) {
		return c.release()
	}
	return c.step(wish{kind: handoff.Claim, within: stepWithin}, nil)
}

// fenced starts the guest anew elsewhere, or gives it up.
func (c *controller) fenced() request {
	switch {
	case c.l.Target != "":
		return request{}
	case c.overdue() || !c.m.restart:
		return c.release()
	}
	lost := func(p *object) bool {
		n := &c.w.nodes[p.node]
		return !p.deleting && (n.gone || n.fenced)
	}
	if p := podWhere(c.sees, lost); p != nil {
		return c.delete(p)
	}
	return c.place()
}

func (c *controller) launcher() *object {
	return podWhere(c.sees, func(p *object) bool { return p.slot.isLauncher() })
}

// place sees to it that the guest has a Pod, and offers it to the Pod's node. It
// deletes none: what it sees may be old, and the guest may live in the Pod by now.
func (c *controller) place() request {
	p := c.launcher()
	switch {
	case p == nil:
		return c.createLauncher()
	case p.deleting || !p.ready || c.w.silent(p.node):
		return request{}
	}
	return c.step(wish{kind: handoff.Offer, node: p.node.String(), within: stepWithin}, func(n *content) {
		n.phase = v1.Scheduled
	})
}

// createLauncher makes the guest's Pod, whose name says what it is for: there
// cannot be a second one.
func (c *controller) createLauncher() request {
	s := slotLauncher
	if c.m.bugs.names {
		if s = slotExtra1 + slot(c.w.names); s >= slotCount {
			return request{}
		}
	}
	return request{verb: create, slot: s, want: object{slot: s}.sealed()}
}

func (c *controller) delete(p *object) request {
	return request{verb: remove, slot: p.slot, uid: p.uid, base: p.rv}
}

func (c *controller) release() request {
	return c.step(wish{kind: handoff.Release}, func(n *content) { n.phase = v1.Failed })
}

// end brings a guest that is being deleted to its end, as far as that is not for its
// node to do.
func (c *controller) end() request {
	switch c.l.State {
	case handoff.Unclaimed, handoff.Claimed, handoff.Offered:
		return c.release()
	case handoff.Moving:
		return c.step(wish{kind: handoff.Abort, tag: c.l.Tag}, nil)
	case handoff.Fenced:
		if c.l.Target == "" {
			return c.release()
		}
	case handoff.Released:
		return c.letGo()
	}
	return request{}
}

// letGo removes what is left of the guest, and then the finalizer: not before the
// API server itself says that no Pod is left.
func (c *controller) letGo() request {
	pods := c.sees
	if !c.m.bugs.tombstones && !anyPod(pods, func(*object) bool { return true }) {
		pods = &c.w.api
	}
	if p := podWhere(pods, func(p *object) bool { return !p.deleting }); p != nil {
		return c.delete(p)
	}
	if !c.v.vmi.finalizer || anyPod(pods, func(*object) bool { return true }) {
		return request{}
	}
	n := c.v.vmi.content
	n.finalizer = false
	return c.store(c.m.guests.of(n))
}
