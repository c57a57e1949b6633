// SPDX-License-Identifier: Apache-2.0

package explore

import (
	"slices"
)

// key tells states apart.
type key struct{ a, b uint64 }

// canon computes keys. Of resourceVersions only the order counts, so each is
// replaced by its rank among all that the state remembers: states that differ by
// writes nobody knows of any more are one.
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
	c.put(packed(w.uids[:]))
	c.put(uint64(w.uids[slotCount-1]))
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
	c.put(uint64(w.past.seat) | uint64(w.past.pod)<<8 | uint64(w.past.podUID)<<16 | uint64(bit(w.past.excused)|bit(w.past.evicted)<<1)<<24)
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
	c.put(uint64(bit(p.up) | bit(p.leads)<<1 | bit(p.live)<<2 | byte(p.doing.stage)<<3))
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
	for i := range p.notes {
		n := &p.notes[i]
		c.put(uint64(n.kind) | uint64(n.verb)<<8 | uint64(n.event)<<16 | uint64(n.slot)<<24 | uint64(n.uid)<<32 | uint64(uint8(n.at))<<40)
		c.version(n.base, 2)
		c.object(n.obj)
	}
	c.put(^uint64(0))
	c.doing(&p.doing)
}

func (c *canon) doing(d *doing) {
	if d.stage == idle {
		return
	}
	if d.stage == asking {
		c.request(&d.req)
	}
	var h hash
	h.text(d.command.ID)
	x, _ := h.sum()
	c.put(x)
	c.put(uint64(d.task) | uint64(uint8(d.confirmed))<<8 | uint64(bit(d.then != nil))<<16)
	if d.by != nil {
		c.put(d.by.sum)
	}
	if d.then != nil {
		c.request(d.then)
	}
}

func (c *canon) request(r *request) {
	c.version(r.base, uint64(r.verb)|uint64(r.slot)<<8|uint64(r.uid)<<16|uint64(r.by)<<24|uint64(bit(r.orphan))<<32)
	if r.want != nil {
		c.put(r.want.sum)
	}
}

func (c *canon) node(n *machineState) {
	c.put(uint64(bit(n.dead)|bit(n.gone)<<1|bit(n.fenced)<<2|bit(n.cut)<<3|bit(n.deaf)<<4) |
		uint64(uint8(n.beat))<<8 | uint64(n.domain)<<16 | uint64(n.epoch)<<24 | uint64(n.job)<<32 | uint64(n.jobTo)<<40)
	c.put(uint64(n.call.task) | uint64(n.call.epoch)<<8 | uint64(n.call.to)<<16 | uint64(uint8(n.call.begun))<<24)
}
