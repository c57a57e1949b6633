// SPDX-License-Identifier: Apache-2.0

package explore

import (
	"slices"
)

// key identifies a state.
type key struct{ a, b uint64 }

// canon computes keys. Of resourceVersions only the order counts, so each is
// replaced by its rank among all that the state remembers: states that differ by
// writes that no process remembers are one.
type canon struct {
	words []uint64
	// at are the places in words that hold a resourceVersion, at their low end.
	at  []int
	rvs []uint16
}

func (c *canon) key(w *world) key {
	c.words, c.at, c.rvs = c.words[:0], c.at[:0], c.rvs[:0]
	c.world(w)
	slices.Sort(c.rvs)
	c.rvs = slices.Compact(c.rvs)
	for _, i := range c.at {
		rank, _ := slices.BinarySearch(c.rvs, uint16(c.words[i]))
		c.words[i] = c.words[i]&^0xffff | uint64(rank)
	}
	h := newHash()
	for _, x := range c.words {
		h.word(x)
	}
	a, b := h.sum()
	return key{a, b}
}

func (c *canon) put(x uint64) { c.words = append(c.words, x) }

// version puts a resourceVersion with 48 bits of something else.
func (c *canon) version(rv uint16, high uint64) {
	c.at = append(c.at, len(c.words))
	c.rvs = append(c.rvs, rv)
	c.words = append(c.words, high<<16|uint64(rv))
}

func (c *canon) object(o *object) {
	if o == nil {
		c.put(0)
		return
	}
	c.put(o.sum)
	c.version(o.rv, 1)
}

func (c *canon) objects(os *[slotCount]*object) {
	for s, o := range os {
		if o != nil {
			c.put(uint64(s))
			c.object(o)
		}
	}
	c.put(^uint64(0))
}

func (c *canon) world(w *world) {
	c.put(uint64(uint8(w.now)) | uint64(uint8(w.focus))<<8 | uint64(len(w.late))<<16 | uint64(w.names)<<24)
	c.objects(&w.api)
	c.put(packed(w.uids[:8]))
	c.put(packed(w.uids[8:]))
	if w.old != nil {
		c.objects(w.old)
	}
	for p := range w.procs {
		c.proc(&w.procs[p])
	}
	for n := nodeA; n <= nodeB; n++ {
		c.node(&w.nodes[n])
	}
	for i := range w.late {
		c.request(&w.late[i])
	}
	c.put(packed(w.left[:8]))
	c.put(packed(w.left[8:16]))
	c.put(packed(w.left[16:]))
	c.put(uint64(w.past.seat) | uint64(w.past.pod)<<8 | uint64(w.past.podUID)<<16 | uint64(bit(w.past.excused)|bit(w.past.evicted)<<1)<<24 | uint64(w.past.uid)<<32 | uint64(w.past.due)<<40)
	c.put(w.past.started)
	c.put(w.past.moved)
}

func packed(bs []uint8) uint64 {
	var x uint64
	for i, b := range bs {
		x |= uint64(b) << (8 * (i % 8))
	}
	return x
}

func (c *canon) proc(p *proc) {
	c.put(uint64(bit(p.up)|bit(p.leads)<<1|bit(p.live)<<2|byte(p.doing.stage)<<3) | uint64(bit(p.moving)|byte(p.ended)<<1|bit(p.failed)<<3|bit(p.listens)<<4)<<8)
	if !p.up {
		return
	}
	c.objects(&p.sees)
	for s := range slotCount {
		for _, o := range p.queue {
			if o.slot == s {
				c.put(uint64(s))
				c.object(o)
			}
		}
	}
	c.put(^uint64(0))
	for _, notes := range p.notes {
		for i := range notes {
			n := &notes[i]
			c.put(uint64(n.kind) | uint64(n.verb)<<8 | uint64(n.event)<<16 | uint64(n.slot)<<24 | uint64(n.uid)<<32 | uint64(uint8(n.at))<<40 | uint64(n.of)<<48)
			c.version(n.base, 2)
			c.object(n.obj)
		}
		c.put(^uint64(0))
	}
	c.doing(&p.doing)
}

func (c *canon) doing(d *doing) {
	if d.stage == idle {
		return
	}
	if d.stage == asking {
		c.request(&d.req)
	}
	c.put(uint64(len(d.tasks)) | uint64(uint8(d.confirmed))<<8)
	for i := range d.tasks {
		c.task(&d.tasks[i])
	}
	if d.by != nil {
		c.put(d.by.sum)
	}
	if d.pass != nil {
		c.pass(d.pass)
		c.put(sumOf(d.act.fault) + uint64(bit(d.act.untold)))
	}
}

func (c *canon) task(t *task) {
	c.put(uint64(t.verb) | uint64(t.mark.uid)<<8 | uint64(t.mark.epoch)<<16 | uint64(t.mark.move)<<24 |
		uint64(bit(t.mark.held)|bit(t.held)<<1|bit(t.touches)<<2)<<32 | uint64(t.to)<<40)
	c.put(sumOf(t.command.ID))
}

func (c *canon) pass(p *pass) {
	c.objects(&p.snap)
	for i := range p.acts {
		a := &p.acts[i]
		c.put(uint64(a.verb) | uint64(a.slot)<<8 | uint64(a.uid)<<16 | uint64(a.guards)<<24 | uint64(bit(a.live))<<32)
		if a.guest != nil {
			c.put(a.guest.sum)
		}
		if a.move != nil {
			c.put(a.move.sum)
		}
		if a.vm != nil {
			c.put(a.vm.sum)
		}
		if a.rev != nil {
			c.put(a.rev.sum)
		}
	}
	if p.release != nil {
		c.put(p.release.sum)
	}
	if p.planned != nil {
		c.put(p.planned.sum)
	}
	c.put(sumOf(p.fault + "/" + string(p.evidence)))
	c.put(uint64(p.owner) | uint64(bit(p.unseen)|bit(p.storing)<<1|bit(p.silent[nodeA])<<2|bit(p.silent[nodeB])<<3)<<8)
}

func (c *canon) request(r *request) {
	c.version(r.base, uint64(r.verb)|uint64(r.slot)<<8|uint64(r.uid)<<16|uint64(uint8(r.by))<<24|uint64(bit(r.orphan)|byte(r.guards)<<1)<<32)
	if r.from != nil {
		c.put(r.from.sum)
	}
	if r.want != nil {
		c.put(r.want.sum)
	}
}

func (c *canon) node(n *machineState) {
	c.put(uint64(bit(n.dead)|bit(n.gone)<<1|bit(n.fenced)<<2|bit(n.cut)<<3|bit(n.deaf)<<4) |
		uint64(uint8(n.beat))<<8 | uint64(n.domain)<<16 | uint64(n.job)<<32 | uint64(n.jobTo)<<40 | uint64(bit(n.jobHeld))<<48)
	c.put(uint64(n.mark.uid) | uint64(n.mark.epoch)<<8 | uint64(n.mark.move)<<16 | uint64(bit(n.mark.held))<<24 | uint64(uint8(n.call.begun))<<32)
	if n.call.task.verb != noTask {
		c.task(&n.call.task)
	}
}
