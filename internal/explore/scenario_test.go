// SPDX-License-Identifier: Apache-2.0

package explore

import (
	"fmt"

	v1 "kubevirt.io/api/core/v1"
)

// Scenario is where an exploration starts and what may happen in it. One is an
// immutable value, safe for concurrent use.
type Scenario struct {
	// Name is how reports call it.
	Name string
	// Start is the script that leads to the first state; empty means a guest that was
	// just asked for.
	Start string
	// Faults is how many faults may happen in all.
	Faults uint8
	// allow is what may happen how often.
	allow budget
	// settle, if it is set, is out of how many states one is let settle, instead of what
	// the limits say.
	settle int
	// machine, if it is set, is the run strategy of a VirtualMachine whose guest it is, which
	// alone is there at first. Its user may ask for orders.
	machine v1.VirtualMachineRunStrategy
	orders  orderSet
	// holding: a guest that moves arrives held, and the source's hypervisor may lose
	// the answer that says so.
	holding bool
	// skew is how far the clock of the second controller is ahead, in ticks.
	skew int8
	// lag is how many versions of an object a process may lag behind; zero means any
	// number.
	lag int
	// randomNames and credulous are those of a machine.
	randomNames, credulous bool
	// gate makes the controllers' expectations; nil means the real ones.
	gate func() gate
}

// budget is what may happen, with the limit of faults in it.
func (s *Scenario) budget() budget {
	b := s.allow
	b[noFault] = s.Faults
	return b
}

// newMachine returns a machine for the scenario that shares what it understood
// with others.
func (s *Scenario) newMachine(known *memory) (*machine, error) {
	m := &machine{randomNames: s.randomNames, credulous: s.credulous, skew: s.skew, lag: s.lag, known: known}
	if s.gate != nil {
		m.gate = s.gate()
		return m, nil
	}
	g, err := newTrackerGate()
	m.gate = g
	return m, err
}

// first is the first state of the scenario: one controller, two agents, and a
// guest that was just asked for, then what Start says.
func (s *Scenario) first(m *machine) (world, error) {
	w := world{focus: -1, holding: s.holding, known: m.known, orders: s.orders}
	if s.machine != "" {
		w.uids[slotVM], w.past.due = 1, 1
		w.store(object{slot: slotVM, uid: 1, vm: m.known.principal(wantedMachine(s.machine))}.sealed())
	} else {
		w.uids[slotVMI] = 1
		w.store(object{slot: slotVMI, uid: 1, vmi: m.known.guest(wanted())}.sealed())
	}
	for _, p := range []int{ctrl1, agentA, agentB} {
		m.list(&w, p, &w.api)
	}
	for f := range w.left {
		w.left[f] = unlimited
	}
	m.lag = 0 // the script says what is seen
	r := &replay{m: m, w: w}
	if err := r.run(s.Start); err != nil {
		return w, fmt.Errorf("explore: scenario %s: %w", s.Name, err)
	}
	m.lag = s.lag
	r.w.left = s.budget()
	return r.w, nil
}

// unlimited is a budget that replays do not use up.
const unlimited = 250
