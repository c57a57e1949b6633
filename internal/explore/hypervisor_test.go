// SPDX-License-Identifier: Apache-2.0

package explore

// busy reports whether a hypervisor is migrating the guest from or to the node.
func (w *world) busy(n place) bool {
	if w.nodes[n].job != noJob {
		return true
	}
	o := &w.nodes[n.other()]
	return o.job != noJob && o.job < jobResumed && o.jobTo == n
}

// land carries out the call that the node's hypervisor was sent.
func (m hypervisors) land(w *world, n place) {
	node := &w.nodes[n]
	c := node.call
	node.call = call{}
	switch t := c.task; t.verb {
	case taskStart:
		m.start(w, n, t)
	case taskDestroy:
		m.destroy(w, n)
	case taskUndefine:
		if node.domain.over() {
			node.domain, node.mark = noDomain, mark{}
		}
	case taskMark:
		if node.domain != noDomain {
			node.mark = t.mark
		}
	case taskMigrate:
		m.migrate(w, n, t)
	case taskAbort:
		if node.job == jobAsked || node.job == jobCopying {
			w.dropIncoming(node)
			w.jobOver(n, true)
		}
	case taskResume:
		m.resume(w, n)
	}
	w.returned(n)
}

// jobOver ends what the node's hypervisor knows of a move. Who carries it out learns how.
func (w *world) jobOver(n place, failed bool) {
	node, pr := &w.nodes[n], &w.procs[agentOf(n)]
	node.job, node.jobTo, node.jobHeld = noJob, nowhere, false
	if pr.up && pr.moving {
		pr.moving, pr.ended, pr.failed = false, justNow, failed
	}
}

// returned lets the agent go on after its call.
func (w *world) returned(n place) {
	pr := &w.procs[agentOf(n)]
	if pr.doing.stage != calling {
		return
	}
	if pr.doing.tasks = pr.doing.tasks[1:]; len(pr.doing.tasks) == 0 {
		pr.doing = doing{}
		return
	}
	pr.doing.stage = ready
}

func (m hypervisors) start(w *world, n place, t task) {
	node := &w.nodes[n]
	if node.domain != noDomain {
		return // the hypervisor refuses: there is one of that name
	}
	if w.past.started&(1<<t.mark.epoch) != 0 {
		m.breaks("a start is carried out twice")
	}
	if w.past.seat != nowhere {
		m.breaks("the guest is started on " + n.String() + " while it lives on " + w.past.seat.String())
	}
	w.past.started |= 1 << t.mark.epoch
	node.domain, node.mark = running, t.mark
	w.past.seat, w.past.excused = n, false
	w.past.uid, w.past.pod, w.past.podUID = t.mark.uid, slotCount, 0
	if p := podWhere(&w.api, func(p *object) bool { return p.node == n && p.slot.isLauncher() && p.owner == t.mark.uid }); p != nil {
		w.past.pod, w.past.podUID = p.slot, p.uid
	}
}

func (m hypervisors) resume(w *world, n place) {
	node := &w.nodes[n]
	switch {
	case node.domain == paused && node.job == noJob:
		node.domain = running
		m.revive(w, n)
	case node.domain == held:
		node.domain = running
		if w.nodes[n.other()].domain != running { // else there are two
			m.revive(w, n)
		}
	}
}

// letStay notes that the guest lives on n, where it is held, because the source has said
// that it does not run it any more: from now on it must not.
func (w *world) letStay(n place) {
	o := n.other()
	stopped := w.past.seat == o && (w.nodes[o].domain == paused || w.nodes[o].domain == left)
	died := w.past.seat == nowhere && w.nodes[o].dead // what it had sent arrives late
	if w.nodes[n].domain == held && (stopped || died) {
		w.sit(n)
	}
}

// revive judges a stopped domain that runs again: it must be the guest itself, not
// what it was before it moved.
func (m hypervisors) revive(w *world, n place) {
	if w.past.seat != n {
		m.breaks("what the guest was before it moved runs again on " + n.String())
	}
}

func (m hypervisors) destroy(w *world, n place) {
	node := &w.nodes[n]
	v := w.api[slotVMI]
	wanted := v != nil && !v.deleting && !w.past.excused
	if w.past.seat == n && (node.domain == running || node.domain == paused || node.domain == held) {
		if wanted {
			m.breaks("the guest is destroyed on " + n.String() + " although nobody asked for that")
		}
		w.past.seat = nowhere
	}
	if node.job != noJob {
		w.dropIncoming(node)
		w.jobOver(n, true)
	}
	if node.domain != noDomain {
		node.domain = ended
	}
}

func (m hypervisors) migrate(w *world, n place, t task) {
	node, pr := &w.nodes[n], &w.procs[agentOf(n)]
	if pr.doing.stage == calling {
		pr.moving, pr.ended, pr.failed = true, never, false
	}
	if node.domain != running || node.job != noJob || t.to == nowhere {
		w.jobOver(n, true)
		return
	}
	if w.past.moved&(1<<t.command.Epoch) != 0 {
		m.breaks("a move is attempted twice")
	}
	w.past.moved |= 1 << t.command.Epoch
	node.job, node.jobTo, node.jobHeld = jobAsked, t.to, t.held
}

// dropIncoming ends what the target has of a move that will not come to an end.
func (w *world) dropIncoming(source *machineState) {
	if t := &w.nodes[source.jobTo]; t.domain == incoming {
		t.domain, t.mark = noDomain, mark{}
	}
}

// moveOn takes a move one step further.
func (m hypervisors) moveOn(w *world, n place) {
	node := &w.nodes[n]
	t := &w.nodes[node.jobTo]
	switch node.job {
	case jobAsked:
		if t.dead || t.domain != noDomain && !t.domain.over() {
			w.jobOver(n, true)
			return
		}
		node.job = jobCopying
		t.domain, t.mark = incoming, node.mark
	case jobCopying:
		node.job, node.domain = jobPaused, paused
	case jobPaused:
		if t.domain != incoming {
			m.moveFail(w, n)
			return
		}
		node.job = jobResumed
		if t.domain = held; !node.jobHeld {
			t.domain = running
			w.sit(node.jobTo)
		}
	case jobResumed:
		node.domain = left
		w.jobOver(n, false)
	}
}

// sit notes that the guest lives on the target of the move now, in the Pod that was
// made for it.
func (w *world) sit(n place) {
	w.past.seat, w.past.pod, w.past.podUID = n, slotCount, 0
	v := w.api[slotVMI]
	for s := slotMove1; s <= slotMove2; s++ {
		if p := w.api[s.target()]; p != nil && v != nil && s.tag() == v.vmi.lease.Tag {
			w.past.pod, w.past.podUID = p.slot, p.uid
		}
	}
}

// moveFail ends a move the way hypervisors do when they can talk to each other:
// the target's part is removed, then the source runs on. Once the target runs the
// guest there is no way back. A target that holds it may have it still when the source,
// which has not heard of that, runs on.
func (m hypervisors) moveFail(w *world, n place) {
	node := &w.nodes[n]
	if node.job == jobResumed && !node.jobHeld {
		return
	}
	w.dropIncoming(node)
	w.jobOver(n, true)
	if node.domain == paused {
		node.domain = running
		m.revive(w, n)
	}
}

// moveBreak lets the source's hypervisor forget the move, as when it is restarted
// in the middle: the domains stay as they are.
func (w *world) moveBreak(n place) { w.jobOver(n, true) }

// die ends a node for good.
func (w *world) die(n place) {
	node := &w.nodes[n]
	last := w.past.seat == n.other() && w.nodes[n.other()].domain == left // all of it was held here
	if w.past.seat == n || last {
		w.past.seat, w.past.excused = nowhere, true
	}
	if v := w.api[slotVMI]; v != nil && v.vmi.lease.Switching() {
		w.past.excused = true // no process knows whether it had the guest
	}
	*node = machineState{dead: true, gone: node.gone, beat: node.beat}
	other := &w.nodes[n.other()]
	if other.jobTo == n && other.job == jobResumed {
		// The source learns nothing: it stays as it is.
		w.jobOver(n.other(), true)
	}
	p := &w.procs[agentOf(n)]
	if p.up {
		w.lose(agentOf(n))
	}
}

// lose ends a process: its memory is gone, what it has sent is on its way.
func (w *world) lose(p int) {
	pr := &w.procs[p]
	if pr.doing.stage == asking {
		w.late = append(w.late[:len(w.late):len(w.late)], pr.doing.req)
	}
	*pr = proc{}
	w.orphan(func(r request) bool { return r.by == int8(p) })
}
