// SPDX-License-Identifier: Apache-2.0

package explore

import (
	"slices"
	"time"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/vmi"
)

// pass is what a controller remembers between two writes of a pass over one object.
type pass struct {
	// owner is the object: the guest, a migration of it, or its VirtualMachine.
	owner slot
	// snap are the objects as they were gathered, with what this pass has made of them.
	snap [slotCount]*object
	// acts are yet to be carried out.
	acts []act
	// fault is why the last action that failed did.
	fault string
	// unseen, silent and evidence were found when the pass began.
	unseen   bool
	silent   [3]bool
	evidence handoff.EvidenceKind
	// storing says that the actions are over, release is what is written after the
	// status: the migration without its finalizer.
	storing bool
	release *movement
	// planned has the status to store of a VirtualMachine.
	planned *principal
}

// act is one write of a plan.
type act struct {
	verb   verb
	slot   slot
	uid    uint8
	guest  *guest
	move   *movement
	vm     *principal
	rev    *revision
	guards guards
	// fault names the failure.
	fault string
	// unversioned says that the deletion is expected without a version, untold that it
	// is not expected at all.
	unversioned, untold bool
	// live requires the VirtualMachine to be stored as the pass knows it.
	live bool
}

// vmiKey is what decides what vmi.Decide says. It can be compared.
type vmiKey struct {
	g        *guest
	uid      uint8
	deleting bool
	pods     podKeys
	moves    [2]moving
	unseen   bool
	fault    string
	silent   [3]bool
	evidence handoff.EvidenceKind
	// owned says that the VirtualMachine of the guest exists.
	owned bool
	now   int8
}

// vmiPlan is what it says.
type vmiPlan struct {
	acts   []act
	write  *guest
	guards guards
	waits  bool
}

// vmiNeeds is what has to be read from the API server itself.
type vmiNeeds struct {
	proof bool
	about place
}

// acceptWithin bounds an offer.
const acceptWithin = 2 * tick

// snapshot makes what package vmi asks for.
func (k vmiKey) snapshot() vmi.Snapshot {
	s := vmi.Snapshot{VMI: k.g.instance(k.uid, k.deleting), Config: vmi.Config{AcceptWithin: acceptWithin, PodHoldsDomain: true}}
	s.VMExists = k.owned
	s.Pods, s.Earlier = k.pods.pods(s.VMI)
	if len(s.Pods) > 0 {
		s.Earlier = nil
	}
	for _, m := range k.moves {
		if m.movement != nil && m.final == unfinished {
			s.Migrations = append(s.Migrations, m.migration())
		}
	}
	if k.unseen {
		s.Pending = []string{"a write"}
	}
	if k.fault != "" {
		s.Failure = &vmi.Failure{Reason: k.fault, Message: "it failed"}
	}
	s.Silent = map[string]time.Time{}
	for n := nodeA; n <= nodeB; n++ {
		if k.silent[n] {
			s.Silent[n.String()] = epochOfTime
		}
	}
	if k.evidence != "" {
		s.Evidence = map[string]handoff.Evidence{}
		for _, n := range s.NeedsEvidence() {
			s.Evidence[n] = handoff.Evidence{Kind: k.evidence}
		}
	}
	return s
}

// planVMI asks the real vmi.Decide.
func (m controllers) planVMI(k vmiKey) vmiPlan {
	return m.known.passes.of(k, func() vmiPlan {
		s := k.snapshot()
		plan := vmi.Decide(s, clockAt(k.now))
		out := vmiPlan{waits: plan.RequeueAt != nil}
		for _, a := range plan.Actions {
			switch a.Verb {
			case vmi.CreateLauncher:
				out.acts = append(out.acts, act{verb: create, slot: slotLauncher, fault: a.Fault})
			case vmi.DeletePod:
				at := slotOf(a.Pod.Name)
				out.acts = append(out.acts, act{verb: remove, slot: at, uid: k.pods[at].uid, fault: a.Fault})
			case vmi.PatchPod: // labels and annotations of Pods are not modelled
			default:
				cannot("action %s is not modelled", a)
			}
		}
		if g := m.known.guest(plan.VMI); g != k.g {
			out.write, out.guards = g, guardsOf(k.g, g)
		}
		return out
	})
}

// guardsOf are the guards of a change of a guest, as package vmictrl has them.
func guardsOf(was, want *guest) guards {
	if was.obj.Annotations[handoff.Annotation] == want.obj.Annotations[handoff.Annotation] &&
		was.obj.Status.Phase == want.obj.Status.Phase && slices.Equal(was.obj.Finalizers, want.obj.Finalizers) {
		return byNothing
	}
	return byGuest
}

// vmiKeyOf is the question that a pass asks now.
func (ps *pass) vmiKeyOf(now int8) vmiKey {
	v := ps.snap[slotVMI]
	return vmiKey{
		g: v.vmi, uid: v.uid, deleting: v.deleting, pods: podsOf(&ps.snap),
		moves:  [2]moving{movingOf(ps.snap[slotMove1]), movingOf(ps.snap[slotMove2])},
		unseen: ps.unseen, fault: ps.fault, silent: ps.silent, evidence: ps.evidence, owned: ps.snap[slotVM] != nil, now: now,
	}
}

// gatherVMI is what a pass over the guest begins with; nil if there is nothing to decide.
func (m controllers) gatherVMI(w *world, now int8, sees *[slotCount]*object, unseen bool) *pass {
	if sees[slotVMI] == nil {
		return nil
	}
	ps := &pass{owner: slotVMI, snap: *sees, unseen: unseen}
	for n := nodeA; n <= nodeB; n++ {
		ps.silent[n] = w.silent(n)
	}
	k := ps.vmiKeyOf(now)
	needs := m.known.needs.of(k, func() vmiNeeds {
		s := k.snapshot()
		out := vmiNeeds{proof: s.NeedsProof()}
		for _, n := range s.NeedsEvidence() {
			out.about = placeOf(n)
		}
		return out
	})
	if needs.proof {
		uid := ps.snap[slotVMI].uid
		for s, o := range w.api {
			switch was := ps.snap[s]; {
			case !slot(s).isPod():
			case o != nil && o.owner == uid:
				ps.snap[s] = o
			case was != nil && was.owner == uid:
				ps.snap[s] = nil
			}
		}
	}
	if needs.about != nowhere {
		ps.evidence = m.evidence(w, ps.snap[slotVMI].vmi.lease, needs.about, now)
	}
	return ps
}

// evidence is what there is to find out about a node, as package vmictrl asks: from the
// API server itself, and not before the lease's time is up; a fencing device at once.
func (m controllers) evidence(w *world, l handoff.Lease, n place, now int8) handoff.EvidenceKind {
	switch node := &w.nodes[n]; {
	case node.fenced:
		return handoff.FenceConfirmed
	case !l.Overdue(clockAt(now)):
		return ""
	case node.gone:
		return handoff.NodeGone
	case !anyPod(&w.api, func(p *object) bool { return p.node == n }):
		return handoff.PodGone
	}
	return ""
}

func anyPod(objects *[slotCount]*object, match func(*object) bool) bool {
	return podWhere(objects, match) != nil
}

// podWhere returns the first Pod that matches.
func podWhere(objects *[slotCount]*object, match func(*object) bool) *object {
	for _, o := range objects {
		if o != nil && o.slot.isPod() && match(o) {
			return o
		}
	}
	return nil
}

// work is a pass of the controller p over an object, up to its first write.
func (m controllers) work(w *world, p int, of slot) {
	notebook(m).turn(w, p, of)
	v := notebook(m).check(w, p, of)
	if len(v.problems) > 0 {
		notebook(m).readLive(w, p, of, v.problems)
		v = notebook(m).check(w, p, of)
	}
	pr := &w.procs[p]
	now := m.clockOf(w, p)
	switch {
	case of == slotVM:
		machines(m).work(w, p, v)
	case of != slotVMI:
		if ps := gatherMove(of, &pr.sees, v.open); ps != nil {
			ps.acts = m.planMove(ps.moveKeyOf(now)).acts
			m.proceed(w, p, ps)
		}
	case !v.outdated:
		if ps := m.gatherVMI(w, now, &pr.sees, v.open); ps != nil && ps.snap[slotVMI].vmi.err == nil {
			ps.acts = m.planVMI(ps.vmiKeyOf(now)).acts
			m.proceed(w, p, ps)
		}
	}
}

// proceed sends the next write of a pass, if there is one: its actions, then what has
// become of them.
func (m controllers) proceed(w *world, p int, ps *pass) {
	if ps.owner == slotVM {
		machines(m).proceed(w, p, ps)
		return
	}
	if len(ps.acts) > 0 {
		next := *ps
		a := ps.acts[0]
		next.acts = ps.acts[1:]
		m.send(w, p, &next, a)
		return
	}
	if ps.storing {
		if ps.release != nil {
			next := *ps
			next.release = nil
			m.send(w, p, &next, act{verb: update, slot: ps.owner, uid: ps.snap[ps.owner].uid, move: ps.release})
		}
		return
	}
	next := *ps
	next.storing = true
	now := m.clockOf(w, p)
	if ps.owner != slotVMI {
		plan := m.planMove(ps.moveKeyOf(now))
		next.release = plan.release
		if plan.write == nil {
			m.proceed(w, p, &next)
			return
		}
		m.send(w, p, &next, act{verb: update, slot: ps.owner, uid: ps.snap[ps.owner].uid, move: plan.write})
		return
	}
	if plan := m.planVMI(ps.vmiKeyOf(now)); plan.write != nil {
		m.send(w, p, &next, act{verb: update, slot: slotVMI, uid: ps.snap[slotVMI].uid, guest: plan.write, guards: plan.guards})
	}
}

// send lets a write leave the process, noted as package expectationsctrl notes it.
func (m controllers) send(w *world, p int, ps *pass, a act) {
	r := request{verb: a.verb, slot: a.slot, uid: a.uid, by: int8(p), guards: a.guards}
	was := ps.snap[a.slot]
	switch a.verb {
	case create:
		if a.slot == slotLauncher {
			r.slot = launcherOf(ps.snap[slotVMI].uid)
		}
		if m.randomNames && a.slot == slotLauncher {
			r.slot = slotExtra1 + slot(w.names)
			if r.slot > slotExtra3 {
				return
			}
			w.names++
		}
		r.want = object{slot: r.slot, vmi: a.guest, rev: a.rev}.sealed()
		if r.slot.isPod() {
			r.want = r.want.with(func(o *object) { o.owner = ps.snap[slotVMI].uid })
		}
		r.orphan = w.api[r.slot] != nil
	case update:
		r.base, r.from = was.rv, was
		r.want = was.with(func(o *object) { o.vmi, o.move, o.vm = a.guest, a.move, a.vm })
	case remove:
		if was != nil && !a.unversioned {
			r.base = was.rv
		}
	}
	rules(m).judgeLetGo(w, r)
	if !a.untold {
		notebook(m).note(w, p, ps.owner, note{kind: noteExpect, verb: r.verb, slot: r.slot, uid: r.uid, base: r.base, of: ps.snap[ps.owner].uid})
	}
	w.procs[p].doing = doing{stage: asking, req: r, pass: ps, act: a}
}

// respond lets a controller learn what came of its write.
func (m controllers) respond(w *world, p int, a answer, o *object) {
	d := w.procs[p].doing
	w.procs[p].doing = doing{pass: d.pass}
	if !d.act.untold {
		m.settleNote(w, p, d, a, o)
	}
	w.procs[p].doing = doing{}
	ps := *d.pass
	at := d.req.slot
	if ps.owner == slotVM {
		machines(m).respond(w, p, d, a, o)
		return
	}
	switch {
	case d.req.verb == remove && (a == accepted || a == missing || a == conflict):
		m.forget(&ps, at) // that it is gone, or another's by now, is as good
	case a == exists:
		ps.snap[at] = w.api[at] // read live
	case a == accepted:
		if o == nil || o.gone {
			return // the object went with its last finalizer
		}
		ps.snap[at] = o
	case ps.storing:
		return
	case ps.owner != slotVMI: // conflict, or it is gone
		m.fails(w, p, &ps, d.act)
		return
	}
	m.proceed(w, p, &ps)
}

// forget drops a Pod that was deleted from what a pass goes by, as package
// migrationctrl does.
func (m controllers) forget(ps *pass, at slot) {
	if ps.owner != slotVMI && at.isPod() {
		ps.snap[at] = nil
	}
}

// settleNote notes the answer to a write in a controller's expectations.
func (m controllers) settleNote(w *world, p int, d doing, a answer, o *object) {
	owner := d.pass.owner
	switch {
	case a == accepted && d.req.verb == remove:
		notebook(m).note(w, p, owner, note{kind: noteConfirm, slot: d.req.slot})
		notebook(m).seen(w, p, owner, d.req.slot)
	case a == accepted:
		notebook(m).note(w, p, owner, note{kind: noteConfirm, slot: d.req.slot, obj: o})
		notebook(m).seen(w, p, owner, d.req.slot)
	case a == exists:
		notebook(m).taken(w, p, owner, d.req.slot)
	default:
		notebook(m).note(w, p, owner, note{kind: noteRefuse, slot: d.req.slot})
	}
}

// fault lets a controller learn nothing but that its write failed.
func (m controllers) fault(w *world, p int) {
	d := w.procs[p].doing
	w.procs[p].doing = doing{}
	if m.credulous {
		notebook(m).note(w, p, d.pass.owner, note{kind: noteRefuse, slot: d.req.slot})
	}
	notebook(m).settle(w, p, d.pass.owner)
	if !d.pass.storing {
		ps := *d.pass
		m.fails(w, p, &ps, d.act)
	}
}

// fails goes on after an action that failed: package vmictrl with the other actions,
// packages migrationctrl and vmctrl with none.
func (m controllers) fails(w *world, p int, ps *pass, a act) {
	if ps.owner != slotVMI {
		ps.acts = nil
	}
	if ps.fault == "" {
		ps.fault = a.fault
	}
	if ps.owner == slotVM {
		ps.planned = machines(m).plan(ps.vmKeyOf(m.clockOf(w, p))).planned
	}
	m.proceed(w, p, ps)
}
