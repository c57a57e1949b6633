// SPDX-License-Identifier: Apache-2.0

package explore

import (
	"errors"
	"fmt"

	"github.com/virtloom/virtloom/handoff"
)

// settleSteps bounds how many actions a world may take to come to rest.
const settleSteps = 4000

// quietTicks is for how long nothing may change but the time, before a world counts as at
// rest: longer than any deadline is away.
const quietTicks = 8

// ErrRestless means that a world did not come to rest although nothing went wrong
// any more.
var ErrRestless = errors.New("the world does not come to rest")

// settleDown lets a world go on without any fault until it rests: partitions heal,
// processes start, the Node objects of dead nodes are deleted, everything is
// delivered, time passes. What is broken on the way is an error. It stops when it is
// enough, if that is not nil.
func (m *machine) settleDown(w *world, enough func(*world) bool) error {
	w.focus = -1
	saved := w.left
	w.left = budget{}
	defer func() { w.left = saved }()
	quiet := 0
	for turn := range settleSteps {
		if enough != nil && enough(w) {
			return nil
		}
		a, found := m.calm(w, turn)
		if found {
			quiet = 0
		} else {
			// Nothing but time can change anything.
			if quiet++; quiet > quietTicks {
				return nil
			}
			a = action{does: ticks}
			w.left[timePassing] = 1
		}
		if m.apply(w, a); m.broken != "" {
			return fmt.Errorf("broken while it settles: %s", m.broken)
		}
	}
	return fmt.Errorf("%w: the lease is %s", ErrRestless, leaseOf(w))
}

func leaseOf(w *world) string {
	v := w.api[slotVMI]
	if v == nil {
		return "gone"
	}
	l := v.vmi.lease
	return fmt.Sprintf("%s of %q to %q, epoch %d, %s", l.State, l.Holder, l.Target, l.Epoch, l.Cause)
}

// calm chooses an action that changes something and is no fault; each turn begins
// to look at another place, so that nothing that can happen waits for ever.
func (m *machine) calm(w *world, turn int) (action, bool) {
	var c canon
	was := c.key(w)
	all := m.enabled(w, nil)
	for i := range all {
		a := all[(turn+i)%len(all)]
		if !calming(w, a) {
			continue
		}
		n := *w
		m.apply(&n, a)
		n.focus = -1
		if c.key(&n) != was {
			return a, true
		}
	}
	return action{}, false
}

// calming reports whether an action belongs to a world without faults.
func calming(w *world, a action) bool {
	switch a.does {
	case ticks, evicts, fades, callFades, moveFails, moveBreaks, dialFails:
		return false
	case stepsDown:
		return a.who == ctrl1
	case restarts:
		return a.who != ctrl2
	case works:
		// First what it can know.
		if len(w.procs[a.who].queue) > 0 {
			return false
		}
	}
	return costs[a.does].free() || costs[a.does] == noFault
}

// resting is a world at rest.
type resting struct{ *world }

// right returns the violation of a world at rest, nil if there is none.
func (w resting) right() error {
	runs, err := w.runsOn()
	if err != nil {
		return err
	}
	if w.uids[slotVM] > 0 {
		return w.machineRight(runs)
	}
	return w.guestRight(runs)
}

// guestRight returns the violation of a guest by itself.
func (w resting) guestRight(runs place) error {
	v := w.api[slotVMI]
	if v == nil || v.deleting {
		return w.rightlyGone(v, runs)
	}
	l := v.vmi.lease
	switch {
	case l.State == handoff.Released && runs == nowhere && w.past.excused:
		return nil
	case l.State != handoff.Owned || len(l.Open) > 0:
		return fmt.Errorf("the guest does not come to run: the lease is %s", leaseOf(w.world))
	case runs == nowhere || runs.String() != l.Holder:
		return fmt.Errorf("the guest does not run where the lease is: %s", leaseOf(w.world))
	}
	return w.tidied(runs)
}

// runsOn is where the guest runs. No domain may be half-way there.
func (w resting) runsOn() (place, error) {
	runs := nowhere
	for n := nodeA; n <= nodeB; n++ {
		switch d := w.nodes[n].domain; d {
		case noDomain, ended, left:
		case running:
			runs = n
		default:
			return nowhere, fmt.Errorf("a domain is left %s on %s", domainNames[d], n)
		}
	}
	return runs, nil
}

// tidied returns an error for leftovers of migrations of a running VMI.
func (w resting) tidied(runs place) error {
	for s := slotMove1; s <= slotMove2; s++ {
		if o := w.api[s]; o != nil && o.final() == unfinished {
			return fmt.Errorf("migration %s does not end", s)
		}
	}
	pods := 0
	for _, o := range w.api {
		if o == nil || !o.slot.isPod() || w.nodes[o.node].dead {
			continue
		}
		if pods++; o.node != runs {
			return fmt.Errorf("the Pod %s is left on %q", o.slot, o.node)
		}
	}
	if pods != 1 && !w.past.evicted {
		return fmt.Errorf("the guest has %d Pods", pods)
	}
	return nil
}

// rightlyGone returns an error for leftovers of a deleted VMI.
func (w resting) rightlyGone(v *object, runs place) error {
	switch {
	case v != nil:
		return fmt.Errorf("the object does not go: the lease is %s", leaseOf(w.world))
	case runs != nowhere:
		return fmt.Errorf("the guest runs on %s although its object is gone", runs)
	case anyPod(&w.api, func(*object) bool { return true }):
		return errors.New("a Pod is left of a guest that is gone")
	}
	return nil
}
