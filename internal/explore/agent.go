// SPDX-License-Identifier: Apache-2.0

package explore

import (
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
)

// agent is one pass of a node's agent: what it sees of the object and of its
// hypervisor, and when.
type agent struct {
	m    *machine
	n    place
	name string
	now  int8
	// o is the object, nil if it is certain not to exist.
	o *object
	l handoff.Lease
	// domain and epoch are the domain here; busy says that its hypervisor moves
	// it, from or to here.
	domain domainState
	epoch  uint8
	busy   bool
	// holding says that moves let the guest arrive held.
	holding bool
}

// plan is what a pass comes to: a write, then a task. A task without a write needs
// the API server's word that the object is as it was seen.
type plan struct {
	write   *guest
	task    task
	command handoff.Command
}

// agentDecide returns what the agent of the node would do that sees the object so.
func (m *machine) agentDecide(w *world, n place, o *object) plan {
	node := &w.nodes[n]
	a := &agent{m: m, n: n, name: n.String(), now: w.now, o: o, domain: node.domain, epoch: node.epoch, busy: w.busy(n), holding: w.holding}
	if o == nil {
		return a.foreign()
	}
	if o.vmi.err != nil {
		return plan{}
	}
	a.l = o.vmi.lease
	return a.byRole()
}

func (a *agent) byRole() plan {
	holds, receives := a.l.Holder == a.name, a.l.Target == a.name
	switch {
	case a.l.State == handoff.Offered && holds:
		return a.offered()
	case a.l.State == handoff.Lost && holds:
		return a.back()
	case a.l.Switching() && receives:
		return a.receive()
	case a.l.State == handoff.Preparing && receives:
		return a.prepare()
	case a.l.Holds(a.name):
		return a.holder()
	default:
		return a.foreign()
	}
}

func (a *agent) holder() plan {
	switch a.l.State {
	case handoff.Moving:
		return a.moving()
	case handoff.Releasing:
		return a.releasing()
	}
	start, starts := a.l.Command(handoff.CommandStart)
	switch {
	case starts:
		return a.start(start)
	case a.domain == noDomain || a.domain.over():
		return a.release()
	}
	return a.withGuest()
}

// withGuest looks after a guest that is here and not on its way.
func (a *agent) withGuest() plan {
	switch {
	case a.l.State == handoff.Arrived && a.o.deleting:
		return a.step(wish{kind: handoff.Stop, within: tick}, a.complete)
	case a.l.State == handoff.Arrived:
		return a.finalize()
	case a.o.deleting && a.l.InMove():
		return a.step(wish{kind: handoff.Revert}, moveFailed)
	case a.o.deleting:
		return a.step(wish{kind: handoff.Stop, within: tick}, nil)
	case a.domain == paused && !a.busy:
		return plan{task: taskResume}
	case a.l.State == handoff.Prepared:
		return a.begin()
	}
	return plan{}
}

// finalize lets a guest go that is held, and ends the move.
func (a *agent) finalize() plan {
	if a.domain == held {
		return plan{task: taskResume}
	}
	return a.step(wish{kind: handoff.Finalize}, a.complete)
}

// offered takes the guest over.
func (a *agent) offered() plan {
	switch {
	case a.domain != noDomain:
		return a.foreign()
	case a.o.deleting:
		return plan{}
	}
	p := a.step(wish{kind: handoff.Accept}, nil)
	return a.after(p, taskStart, handoff.CommandStart)
}

// after adds the task for the command that the write issues.
func (a *agent) after(p plan, t task, k handoff.CommandKind) plan {
	if p.write == nil {
		return p
	}
	if c, open := p.write.lease.Command(k); open {
		p.task, p.command = t, c
	}
	return p
}

// start carries out an open start, unless that has happened.
func (a *agent) start(c handoff.Command) plan {
	mine := uint64(a.epoch) == c.Epoch
	switch {
	case a.domain == running && mine:
		return a.step(wish{kind: handoff.Started}, func(n *content) { n.phase = v1.Running })
	case a.domain.over() && mine:
		return a.release()
	case a.domain != noDomain:
		return a.foreign()
	case a.o.deleting:
		return a.release()
	}
	return plan{task: taskStart, command: c}
}

func (a *agent) release() plan {
	return a.step(wish{kind: handoff.Release}, func(n *content) {
		n.phase = v1.Failed
		a.complete(n)
	})
}

// complete says that the move that brought the guest needs nothing more.
func (a *agent) complete(n *content) {
	if a.l.State == handoff.Arrived {
		n.move.completed = true
	}
}

// releasing stops the guest.
func (a *agent) releasing() plan {
	if a.domain == noDomain || a.domain.over() {
		return a.release()
	}
	c, open := a.l.Command(handoff.CommandStop)
	if !open || a.busy {
		return plan{}
	}
	return plan{task: taskDestroy, command: c}
}

// back returns from silence. A guest that is gone is told of as ended, unless the
// target may have it.
func (a *agent) back() plan {
	gone := a.domain == noDomain || a.domain.over()
	if gone && !a.l.Switching() && !isOpen(a.l, handoff.CommandStart) {
		return a.release()
	}
	return a.step(wish{kind: handoff.Return}, nil)
}

// foreign ends a domain that is not to be here.
func (a *agent) foreign() plan {
	if a.domain == noDomain || a.busy {
		return plan{}
	}
	return plan{task: taskDestroy}
}

func (a *agent) step(e wish, edit func(*content)) plan {
	e.node = a.name
	g, err := a.m.step(a.o.vmi, e, a.now, edit)
	if err != nil || g == a.o.vmi {
		return plan{}
	}
	return plan{write: g}
}

// prepare says that the node is ready to receive the guest.
func (a *agent) prepare() plan {
	switch {
	case a.domain != noDomain:
		return a.foreign()
	case a.o.deleting:
		return plan{}
	}
	return a.step(wish{kind: handoff.Ready, within: stepWithin}, func(n *content) { n.move.address = "192.0.2.1" })
}

// begin stores that the guest starts to move, then lets it.
func (a *agent) begin() plan {
	p := a.step(wish{kind: handoff.Begin, within: stepWithin}, func(n *content) { n.move.started = true })
	return a.after(p, taskMigrate, handoff.CommandMigrateOut)
}

// moving looks after a guest that is being moved away.
func (a *agent) moving() plan {
	abort, asked := a.l.Command(handoff.CommandAbort)
	switch {
	case a.busy && asked:
		return plan{task: taskAbort, command: abort}
	case a.busy && a.o.deleting:
		return plan{task: taskAbort}
	case a.busy, a.l.Stalled:
		return plan{}
	case a.domain == running, a.holding && a.domain == ended:
		return a.step(wish{kind: handoff.Revert}, moveFailed)
	}
	return a.step(wish{kind: handoff.Stall, within: stepWithin}, nil)
}

// receive takes the guest over that has arrived, or says that it has not.
func (a *agent) receive() plan {
	switch {
	case a.busy || a.domain == incoming, a.waits():
		return plan{}
	case a.domain == held:
		return a.takeHeld()
	case a.domain == running || a.domain.over():
		return a.takeOver()
	case a.l.Stalled || a.l.State == handoff.Fenced:
		return a.step(wish{kind: handoff.Decline}, moveFailed)
	}
	return plan{}
}

func (a *agent) takeOver() plan {
	return a.step(wish{kind: handoff.TakeOver}, func(n *content) {
		n.phase, n.move.ended = v1.Running, true
	})
}

// takeHeld takes a guest over that is held and lets it go, if its source has left it.
func (a *agent) takeHeld() plan {
	p, then := a.takeOver(), taskResume
	if !a.l.Stalled && !a.m.bugs.haste {
		p, then = a.step(wish{kind: handoff.Decline}, moveFailed), taskDestroy
	}
	if p.write != nil {
		p.task = then
	}
	return p
}

// waits tells whether the guest is held here and its source may still have it.
func (a *agent) waits() bool {
	return a.domain == held && !a.l.Stalled && a.l.State != handoff.Fenced && !a.m.bugs.haste
}
