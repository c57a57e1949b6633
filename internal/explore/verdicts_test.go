// SPDX-License-Identifier: Apache-2.0

package explore

import (
	"slices"

	"github.com/virtloom/virtloom/handoff"
)

// judge looks whether the world is as it may be.
func (m rules) judge(w *world) {
	runs := 0
	for n := nodeA; n <= nodeB; n++ {
		if w.nodes[n].domain == running {
			runs++
		}
	}
	if runs > 1 {
		m.breaks("two domains of the guest run")
	}
	m.judgeLaunchers(w)
	m.judgeLease(w)
	m.judgeResponsible(w)
}

// judgeLaunchers looks whether a guest has two launcher Pods.
func (m rules) judgeLaunchers(w *world) {
	for s, o := range w.api {
		if o == nil || !slot(s).isLauncher() {
			continue
		}
		if anyPod(&w.api, func(p *object) bool { return p.slot.isLauncher() && p.slot > o.slot && p.owner == o.owner }) {
			m.breaks("there are two launcher Pods")
		}
	}
}

// excuse notes whether the guest may be lost from now on.
func (w *world) excuse(old, now handoff.Lease) {
	if now.Stalled && !old.Stalled {
		w.letStay(placeOf(now.Target))
	}
	switch now.State {
	case handoff.Owned, handoff.Arrived:
		if w.past.seat != nowhere && w.past.seat.String() == now.Holder {
			w.past.excused = false // whatever happened, it is where it belongs
		}
	case handoff.Released:
		if old.Switching() {
			w.giveUp(old) // in the write that says that the target was fenced
		}
		w.past.excused = true // it has ended, or was given up before it ran
	case handoff.Fenced:
		w.excuseFence(old, now)
	}
}

// excuseFence notes whether the fenced node was the only one who knew where the guest is.
func (w *world) excuseFence(old, now handoff.Lease) {
	switch {
	case old.Target != "" && now.Target == "" && now.Cause != handoff.CauseDeclined:
		w.giveUp(old)
	case !now.Stalled && w.nodes[placeOf(now.Target)].domain == held:
		w.past.seat, w.past.excused = nowhere, true
	}
}

// giveUp records that the only process that could report whether it had the guest was fenced:
// the guest may be lost, and what stands still at the source must not run again.
func (w *world) giveUp(l handoff.Lease) {
	w.past.excused = true
	if n := w.past.seat; n != nowhere && n.String() != l.Target && w.nodes[n].domain == paused {
		w.past.seat = nowhere
	}
}

// judgeLease looks whether the lease says that no node has a guest that lives.
func (m rules) judgeLease(w *world) {
	if w.past.seat == nowhere {
		return
	}
	v := w.api[slotVMI]
	if v == nil || v.uid != w.past.uid {
		m.breaks("the object is gone while the guest lives on " + w.past.seat.String())
		return
	}
	l := v.vmi.lease
	switch l.State {
	case handoff.Unclaimed, handoff.Claimed, handoff.Offered, handoff.Released:
		m.breaks("the lease is " + string(l.State) + " while the guest lives on " + w.past.seat.String())
	case handoff.Fenced:
		if l.Target != w.past.seat.String() {
			m.breaks("the lease is Fenced while the guest lives on " + w.past.seat.String())
		}
	}
}

// judgeResponsible looks whether a process can go on: a lease that waits has a deadline
// that is yet to come, or there is something to do for the responsible component.
func (m rules) judgeResponsible(w *world) {
	v := w.api[slotVMI]
	if v == nil {
		return
	}
	l := v.vmi.lease
	waits := l.Deadline != nil && !l.Overdue(clockAt(w.now))
	if l.State == handoff.Owned && !w.silent(placeOf(l.Holder)) || w.unnoticed() {
		waits = true // the next sign of life is the deadline
	}
	if waits || l.Responsible() == handoff.ByNobody || w.underWay() || m.canGoOn(w, v) {
		return
	}
	m.breaks("nobody can go on: the lease is " + leaseOf(w))
}

// unnoticed reports whether a node became unresponsive so recently that no process knows.
func (w *world) unnoticed() bool {
	for n := nodeA; n <= nodeB; n++ {
		if !w.silent(n) && (!w.reachable(n) || !w.procs[agentOf(n)].up) {
			return true
		}
	}
	return false
}

// underWay reports whether something has begun that will lead to a change.
func (w *world) underWay() bool {
	if len(w.late) > 0 {
		return true
	}
	for p := range w.procs {
		if w.procs[p].doing.stage != idle {
			return true
		}
	}
	for n := nodeA; n <= nodeB; n++ {
		if d := &w.nodes[n]; d.job != noJob || d.call.task.verb != noTask || d.domain == incoming {
			return true
		}
	}
	v := w.api[slotVMI]
	return anyPod(&w.api, func(p *object) bool { return p.node == nowhere || p.deleting || v != nil && p.owner != v.uid })
}

// canGoOn reports whether a controller or an agent that knew everything would act, or
// whether word of an unresponsive node is awaited.
func (m rules) canGoOn(w *world, v *object) bool {
	if m.controllersGoOn(w) {
		return true
	}
	for n := nodeA; n <= nodeB; n++ {
		if w.nodes[n].dead {
			continue
		}
		if p := agents(m).look(agents(m).sight(w, n, v)); p.write != nil || len(p.tasks) > 0 || p.waits {
			return true
		}
	}
	switch l := v.vmi.lease; {
	case l.State == handoff.Lost:
		return w.silent(placeOf(l.Holder))
	case l.Stalled, l.State == handoff.Fenced:
		return w.silent(placeOf(l.Target))
	case l.State == handoff.Claimed:
		return true // the scheduler has its own time
	}
	return false
}

// controllersGoOn reports whether a controller that knew everything would write, or look
// again by itself.
func (m rules) controllersGoOn(w *world) bool {
	if ps := controllers(m).gatherVMI(w, w.now, &w.api, false); ps != nil {
		if p := controllers(m).planVMI(ps.vmiKeyOf(w.now)); p.write != nil || len(p.acts) > 0 || p.waits {
			return true
		}
	}
	for s := slotMove1; s <= slotMove2; s++ {
		if ps := gatherMove(s, &w.api, false); ps != nil {
			if p := controllers(m).planMove(ps.moveKeyOf(w.now)); p.write != nil || len(p.acts) > 0 || p.release != nil || p.waits {
				return true
			}
		}
	}
	return false
}

// judgeRemoval looks whether the Pod is taken from under a running guest.
func (m rules) judgeRemoval(w *world, pod *object) {
	v := w.api[slotVMI]
	if w.past.seat != nowhere && pod.slot == w.past.pod && pod.uid == w.past.podUID && v != nil && !v.deleting {
		m.breaks("the Pod in which the guest lives is deleted")
	}
}

// judgeLetGo looks whether the object is about to be let go too early. What
// another process, or one that has lost its memory, had on its way by then
// cannot be known; the garbage collector finds it.
func (m rules) judgeLetGo(w *world, r request) {
	v := w.api[slotVMI]
	if r.slot != slotVMI || r.verb != update || r.want.vmi.finalizer || r.from.vmi == nil || !r.from.vmi.finalizer || v == nil || !v.vmi.finalizer {
		return
	}
	if anyPod(&w.api, func(p *object) bool { return p.owner == r.uid }) {
		m.breaks("the object is let go although a Pod of it is left")
	}
}

// judgeUpdate notes when a guest may be lost, and looks whether the object is let
// go too early.
func (m rules) judgeUpdate(w *world, was, is *object, r request) {
	if is.vmi.err != nil {
		m.breaks("the lease cannot be read: " + is.vmi.err.Error())
	}
	w.excuse(was.vmi.lease, is.vmi.lease)
	if !was.vmi.obj.IsFinal() && is.vmi.obj.IsFinal() && !is.deleting && w.restartsUnasked(is.vmi.obj) {
		w.past.due++
	}
	if is.gone && slices.ContainsFunc(w.late, func(late request) bool {
		return late.by == r.by && !late.orphan && late.verb == create && late.slot.isPod() && late.want.owner == is.uid
	}) {
		m.breaks("the object is let go although a Pod of it may still come of an earlier request")
	}
}
