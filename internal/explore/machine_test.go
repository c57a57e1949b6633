// SPDX-License-Identifier: Apache-2.0

package explore

// machine carries out steps on worlds. It holds no state of them, only what it
// remembers of pure functions. Each goroutine needs its own.
type machine struct {
	// randomNames makes the names of Pods say nothing, and credulous takes a write whose
	// outcome is unknown for one that was not made: as controllers have long done.
	randomNames, credulous bool
	skew                   int8
	lag                    int
	known                  *memory
	gate                   gate
	// broken is the first rule that the last action has broken.
	broken string
}

// The methods of a machine by whose part they play.
type (
	// controllers are passes of the controllers, agents those of the agents.
	controllers struct{ *machine }
	agents      struct{ *machine }
	// machines are those of the controllers that are about a VirtualMachine.
	machines struct{ *machine }
	// notebook is the expectations of the controllers, see note.
	notebook struct{ *machine }
	// hypervisors carry out what agents ask for.
	hypervisors struct{ *machine }
	// rules judge what an action has made of a world.
	rules struct{ *machine }
)

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

// respond lets a process learn what came of its request.
func (m *machine) respond(w *world, p int, a answer, o *object) {
	if p < agentA {
		controllers{m}.respond(w, p, a, o)
		return
	}
	agents{m}.respond(w, p, a, o)
}

// fault lets a process learn nothing but that its request failed.
func (m *machine) fault(w *world, p int) {
	if p < agentA {
		controllers{m}.fault(w, p)
		return
	}
	w.procs[p].doing = doing{}
}

// carry carries a request out and judges what it does.
func (m *machine) carry(w *world, r request) (answer, *object) {
	before := w.api
	a, o := w.commit(r)
	if a != accepted {
		return a, o
	}
	switch {
	case r.verb == remove && r.slot.isPod():
		rules{m}.judgeRemoval(w, before[r.slot])
	case r.slot == slotVMI && r.verb == create:
		rules{m}.judgeCreated(w)
	case r.slot == slotVMI && r.verb == update:
		rules{m}.judgeUpdate(w, before[slotVMI], o, r)
	}
	return a, o
}
