// SPDX-License-Identifier: Apache-2.0

package explore

import (
	"github.com/virtloom/virtloom/expectations"
	"github.com/virtloom/virtloom/handoff"
)

// bugs switch off, one at a time, what keeps the protocol safe.
type bugs struct {
	// epochs: a node acts on what its cache says, without asking Authorize.
	epochs bool
	// tombstones: a tombstone or a cache miss counts as a deletion.
	tombstones bool
	// ambiguous: a write whose outcome is unknown counts as not done.
	ambiguous bool
	// names: the name of a Pod says nothing; each attempt has a new one.
	names bool
	// persist: a node acts first, and stores that it will afterwards.
	persist bool
	// haste: a target lets a guest run that it holds, before its source has said that
	// it is gone.
	haste bool
}

// machine carries out steps on worlds. It holds no state of them, only what it
// remembers of pure functions. Each goroutine needs its own.
type machine struct {
	bugs    bugs
	restart bool
	// harmOnly leaves out the rules that say what the lease must tell.
	harmOnly bool
	skew     int8
	lag      int
	guests   *guests
	steps    map[stepKey]stepped
	gate     gate
	// broken is the first rule that the last action has broken.
	broken string
}

func (m *machine) breaks(rule string) {
	if m.broken == "" {
		m.broken = rule
	}
}

// clockOf is what the clock of the process says; that of the second controller
// may be ahead.
func (m *machine) clockOf(w *world, p int) int8 {
	if p == ctrl2 {
		return w.now + m.skew
	}
	return w.now
}

// send lets a request leave the process. A controller notes it first.
func (m *machine) send(w *world, p int, r request) {
	pr := &w.procs[p]
	r.by, r.orphan = int8(p), r.verb == create && w.api[r.slot] != nil
	if r.slot >= slotExtra1 && r.verb == create {
		w.names++
	}
	if p < agentA {
		m.judgeLetGo(w, r)
		m.note(w, p, note{kind: noteExpect, verb: r.verb, slot: r.slot, uid: r.uid, base: r.base})
	}
	pr.doing.stage, pr.doing.req = asking, r
}

// agentWork is a pass of an agent. It decides on its cache; before it touches the
// guest without a write that proves the cache to be current, it decides again on
// the object read live. A cache miss says nothing either.
func (m *machine) agentWork(w *world, p int) {
	n, pr := nodeOf(p), &w.procs[p]
	o := pr.sees[slotVMI]
	missed := o == nil && !pr.live
	if missed && w.nodes[n].domain == noDomain {
		return // there is nothing to find out
	}
	if pr.live || missed && !m.bugs.tombstones {
		m.agentWorkLive(w, p)
		return
	}
	pl := m.agentDecide(w, n, o)
	if pl.write == nil && pl.task != noTask && !missed && !m.bugs.epochs {
		m.agentWorkLive(w, p)
		return
	}
	m.agentAct(w, p, o, pl)
}

// agentWorkLive is a pass on the API server's own word, if that can be had.
func (m *machine) agentWorkLive(w *world, p int) {
	n := nodeOf(p)
	if !w.reachable(n) {
		return
	}
	w.procs[p].live = false
	o := w.api[slotVMI]
	m.agentAct(w, p, o, m.agentDecide(w, n, o))
}

func (m *machine) agentAct(w *world, p int, o *object, pl plan) {
	pr := &w.procs[p]
	d := doing{task: pl.task, command: pl.command, confirmed: w.now}
	switch {
	case pl.write != nil:
		r := request{verb: update, slot: slotVMI, uid: o.uid, base: o.rv, by: int8(p), want: o.with(func(o *object) { o.vmi = pl.write })}
		d.by = pl.write
		if m.bugs.persist && pl.task != noTask {
			d.stage, d.then = ready, &r
			break
		}
		d.stage, d.req = asking, r
	case pl.task != noTask:
		d.stage = ready
		if o != nil {
			d.by = o.vmi
		}
	default:
		return
	}
	pr.doing = d
}

// begin lets an agent call its hypervisor, if it still may.
func (m *machine) begin(w *world, p int) {
	n, pr := nodeOf(p), &w.procs[p]
	d := pr.doing
	if m.authorize(d, w.now) != nil {
		pr.doing = doing{}
		return
	}
	c := call{task: d.task, epoch: uint8(d.command.Epoch), begun: w.now}
	if d.by != nil {
		c.to = placeOf(d.by.lease.Target)
	}
	w.nodes[n].call = c
	pr.doing = doing{stage: calling, then: d.then, task: d.task}
}

// authorize asks the real Lease.Authorize, or for a task that no command asks for
// whether what it follows from was confirmed in time.
func (m *machine) authorize(d doing, now int8) error {
	switch {
	case m.bugs.epochs, d.then != nil:
		return nil
	case d.command.ID != "":
		return d.by.lease.Authorize(d.command, clockAt(d.confirmed), clockAt(now))
	default:
		return handoff.Confirmed(clockAt(d.confirmed), clockAt(now))
	}
}

// respond lets a process learn what came of its request.
func (m *machine) respond(w *world, p int, a answer, o *object) {
	pr := &w.procs[p]
	d := pr.doing
	pr.doing = doing{}
	if p < agentA {
		switch a.outcome() {
		case expectations.Accepted:
			m.note(w, p, note{kind: noteConfirm, obj: o})
			m.seen(w, p)
		case expectations.Refused:
			m.note(w, p, note{kind: noteRefuse})
		case expectations.Exists:
			m.taken(w, p, d.req.slot)
		}
		return
	}
	switch {
	case a != accepted:
		pr.live = a == conflict
	case d.task != noTask && d.then == nil && d.req.want != nil && d.by != nil && !m.bugs.persist:
		pr.doing = doing{stage: ready, task: d.task, command: d.command, by: d.by, confirmed: d.confirmed}
	}
}

// fault lets a process learn nothing but that its request failed.
func (m *machine) fault(w *world, p int) {
	pr := &w.procs[p]
	pr.doing = doing{}
	if p < agentA && m.bugs.ambiguous {
		m.note(w, p, note{kind: noteRefuse})
		return
	}
	m.settle(w, p)
}

// settle drops notes about a write that the cache shows by now.
func (m *machine) settle(w *world, p int) {
	if m.check(w, p) == expectations.Satisfied {
		w.procs[p].notes = nil
	}
}

// carry carries a request out and judges what it does.
func (m *machine) carry(w *world, r request) (answer, *object) {
	before := w.api
	a, o := w.commit(r)
	if a != accepted {
		return a, o
	}
	switch {
	case r.verb == remove:
		m.judgeRemoval(w, before[r.slot])
	case r.slot == slotVMI && r.verb == update:
		m.judgeUpdate(w, before[slotVMI], o, r)
	}
	return a, o
}
