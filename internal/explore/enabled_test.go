// SPDX-License-Identifier: Apache-2.0

package explore

// enabled appends the actions that are possible in the world, always in the same
// order.
func (m *machine) enabled(w *world, out []action) []action {
	e := &enabler{w: w, out: out}
	if w.focus >= 0 {
		e.process(uint8(w.focus))
		return e.out
	}
	for p := range uint8(procCount) {
		e.process(p)
	}
	e.late()
	for n := nodeA; n <= nodeB; n++ {
		e.hypervisor(n)
		e.node(n)
	}
	e.pods()
	e.dependents()
	e.user()
	e.orders()
	e.clock()
	return e.out
}

// enabler collects actions.
type enabler struct {
	w   *world
	out []action
}

func (e *enabler) add(d does, who, what uint8) {
	if e.w.left.allows(d) {
		e.out = append(e.out, action{d, who, what})
	}
}

func (e *enabler) process(p uint8) {
	pr := &e.w.procs[p]
	if !pr.up {
		e.down(p)
		return
	}
	n := nodeOf(int(p))
	if n != nowhere && e.w.nodes[n].dead {
		return
	}
	connected := n == nowhere || e.w.reachable(n)
	if connected {
		for s := range slotCount {
			if pr.waiting(s) > 0 {
				e.add(sees, p, uint8(s))
			}
		}
	}
	switch pr.doing.stage {
	case idle:
		e.works(p, pr)
	case asking:
		e.asking(p, connected)
	case ready:
		e.add(calls, p, 0)
	}
	e.upsets(p, connected)
}

// works are the passes that a process may make: an agent has one guest to look after, a
// controller the guest, its migrations and its VirtualMachine.
func (e *enabler) works(p uint8, pr *proc) {
	e.add(works, p, uint8(slotVMI))
	if p >= uint8(agentA) {
		if pr.sees[slotVMI] != nil {
			e.add(filesFail, p, 0)
			e.add(listenFails, p, 0)
		}
		return
	}
	for _, s := range owners[1:] {
		if pr.sees[s] != nil {
			e.add(works, p, uint8(s))
		}
	}
}

func (e *enabler) asking(p uint8, connected bool) {
	if !connected {
		// Nothing gets through; in the end the process learns just that.
		e.add(timesOut, p, 0)
		return
	}
	e.add(answered, p, 0)
	e.add(answerLost, p, 0)
	e.add(requestLost, p, 0)
	e.add(requestLate, p, 0)
}

// upsets are what may happen to a process that runs.
func (e *enabler) upsets(p uint8, connected bool) {
	e.add(crashes, p, 0)
	if connected {
		e.add(relists, p, 0)
		if e.w.old != nil {
			e.add(relistsOld, p, 0)
		}
	}
	if e.w.procs[ctrl1].leads && e.w.procs[ctrl2].leads && p < agentA {
		e.add(stepsDown, p, 0)
	}
}

// down are what may happen to a process that does not run. An agent comes back
// when the call of its predecessor has ended.
func (e *enabler) down(p uint8) {
	n := nodeOf(int(p))
	switch {
	case n == nowhere:
		if p == ctrl2 && !e.w.procs[ctrl2].up {
			e.add(leads, p, 0)
		}
		if p == ctrl2 || e.w.procs[ctrl2].up {
			return
		}
	case !e.w.reachable(n), e.w.nodes[n].call.task.verb != noTask:
		return
	}
	e.add(restarts, p, 0)
	if e.w.old != nil {
		e.add(restartsOld, p, 0)
	}
}

func (e *enabler) late() {
	for i := range e.w.late {
		e.add(lands, 0, uint8(i))
		e.add(fades, 0, uint8(i))
	}
}

func (e *enabler) hypervisor(n place) {
	node := &e.w.nodes[n]
	who := uint8(n)
	if node.dead {
		return
	}
	if node.call.task.verb != noTask {
		e.add(callEnds, who, 0)
		if !e.w.procs[agentOf(n)].up {
			e.add(callFades, who, 0)
		}
	}
	if node.job != noJob {
		e.job(who, node)
	}
	if node.domain == incoming && !e.w.busy(n) {
		e.add(cleans, who, 0)
	}
	if node.domain == running && !e.w.busy(n) {
		e.add(guestEnds, who, 0)
	}
}

// job is what may come of a move.
func (e *enabler) job(who uint8, node *machineState) {
	e.add(movesOn, who, 0)
	if node.job != jobResumed || node.jobHeld {
		e.add(moveFails, who, 0)
	}
	e.add(moveBreaks, who, 0)
	if node.job == jobAsked && !e.w.procs[agentOf(node.jobTo)].listens {
		e.add(dialFails, who, 0) // the agent of the target has stopped since it was ready
	}
}

func (e *enabler) node(n place) {
	node := &e.w.nodes[n]
	who := uint8(n)
	switch {
	case node.dead:
		if !node.gone {
			e.add(forgets, who, 0)
		}
		return
	case node.cut || node.deaf:
		e.add(heals, who, 0)
	default:
		e.add(cutOff, who, 0)
		e.add(deafens, who, 0)
	}
	e.add(dies, who, 0)
	if e.w.silent(n) {
		e.add(fences, who, 0)
	}
}

// pods is what scheduler, kubelet and garbage collector do.
func (e *enabler) pods() {
	w := e.w
	for s, o := range w.api {
		if o == nil || !o.slot.isPod() {
			continue
		}
		what := uint8(s)
		switch {
		case o.node == nowhere:
			e.bind(o)
		case o.deleting && w.removable(o):
			e.add(removes, 0, what)
		case !o.deleting && w.silent(o.node):
			e.add(evicts, 0, what)
		}
		if w.forgotten(slotVMI, o.owner) && !o.deleting {
			e.add(collects, 0, what)
		}
	}
}

// dependents is what the garbage collector does once a VirtualMachine is gone.
func (e *enabler) dependents() {
	w := e.w
	if w.uids[slotVM] == 0 || !w.forgotten(slotVM, w.uids[slotVM]) {
		return
	}
	for s, o := range w.api {
		if o != nil && !o.deleting && (slot(s) == slotVMI || slot(s).isRevision()) {
			e.add(collects, 0, uint8(s))
		}
	}
}

// removable reports whether a Pod can be removed: its node is dead, or it can be talked to and
// no domain of the guest is there, unless that lives in another Pod.
func (w *world) removable(o *object) bool {
	n := &w.nodes[o.node]
	switch {
	case n.dead:
		return true
	case n.cut:
		return false
	case n.domain == noDomain || n.domain.over():
		return true
	}
	return w.past.seat == o.node && (w.past.pod != o.slot || w.past.podUID != o.uid)
}

// forgotten reports whether an owner is gone and every controller has observed that: the
// garbage collector takes its time.
func (w *world) forgotten(s slot, uid uint8) bool {
	for _, o := range [...]*object{w.api[s], w.procs[ctrl1].sees[s], w.procs[ctrl2].sees[s]} {
		if o != nil && o.uid == uid {
			return false
		}
	}
	return true
}

// bind chooses a node: for the launcher Pod the first that is there, for a target
// the one the guest is not on.
func (e *enabler) bind(o *object) {
	w := e.w
	wanted := nodeA
	if o.slot.isTarget() && w.api[slotVMI] != nil {
		if holder := placeOf(w.api[slotVMI].vmi.lease.Holder); holder != nowhere {
			wanted = holder.other()
			e.add(misplaces, uint8(holder), uint8(o.slot))
		}
	}
	if o.slot.isLauncher() && (w.silent(wanted) || w.nodes[wanted].dead) {
		wanted = nodeB
	}
	if w.nodes[wanted].dead || w.nodes[wanted].cut {
		return
	}
	e.add(binds, uint8(wanted), uint8(o.slot))
}

func (e *enabler) user() {
	w := e.w
	v := w.api[slotVMI]
	if v == nil || v.deleting {
		return
	}
	e.add(deletes, 0, uint8(slotVMI))
	for s := slotMove1; s <= slotMove2; s++ {
		m := w.api[s]
		switch {
		case m == nil:
			if w.uids[s] == 0 {
				e.add(asks, 0, uint8(s))
				return
			}
		case m.final() == unfinished:
			if !m.deleting {
				e.add(cancels, 0, uint8(s))
			}
			return
		}
	}
}

// clock lets time pass, unless something that takes less than a tick is under way.
func (e *enabler) clock() {
	w := e.w
	if w.old == nil {
		e.add(fallsBehind, 0, 0)
	}
	if len(w.late) > 0 {
		return
	}
	for n := nodeA; n <= nodeB; n++ {
		if c := w.nodes[n].call; c.task.verb != noTask && c.begun < w.now {
			return
		}
	}
	e.add(ticks, 0, 0)
}
