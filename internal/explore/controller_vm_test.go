// SPDX-License-Identifier: Apache-2.0

package explore

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/vm"
)

// vmKey is what decides what vm.Decide says. It can be compared.
type vmKey struct {
	vm       *principal
	uid      uint8
	deleting bool
	g        *guest
	guestUID uint8
	stopping bool
	revs     [slotCount - slotRev2]revKey
	unseen   bool
	// creates and removes say which write of the guest is not seen yet.
	creates, removes bool
	fault            string
	now              int8
}

// revKey is a start revision; without a UID there is none.
type revKey struct {
	*revision
	uid uint8
}

// machinePlan is what it says.
type machinePlan struct {
	acts []act
	// planned has the status to be stored.
	planned *principal
}

// snapshot makes what package vm asks for, as package vmctrl gathers it.
func (k vmKey) snapshot() vm.Snapshot {
	s := vm.Snapshot{VM: k.vm.instance(k.uid, k.deleting)}
	if k.g != nil {
		s.VMI = k.g.instance(k.guestUID, k.stopping)
	}
	for i, r := range k.revs {
		if r.uid != 0 {
			rev := *r.obj
			rev.UID, rev.ResourceVersion = fullUID(slotRev2+slot(i), r.uid), "1"
			s.Revisions = append(s.Revisions, &rev)
		}
	}
	for _, p := range []struct {
		open bool
		verb vm.Verb
	}{{k.unseen, vm.UpdateVM}, {k.creates, vm.CreateVMI}, {k.removes, vm.DeleteVMI}} {
		if p.open {
			s.Pending = append(s.Pending, vm.Write{Verb: p.verb, Name: slotVMI.String()})
		}
	}
	if k.fault != "" {
		s.Failure = &vm.Failure{Reason: k.fault, Message: "it failed"}
	}
	return s
}

// plan asks the real vm.Decide.
func (m machines) plan(k vmKey) machinePlan {
	return m.known.machines.of(k, func() machinePlan {
		s := k.snapshot()
		plan := vm.Decide(s, clockAt(k.now))
		if len(plan.Need) > 0 {
			cannot("instance types are not modelled")
		}
		out := machinePlan{planned: m.known.principal(plan.VM)}
		for _, a := range plan.Actions {
			out.acts = append(out.acts, m.actOf(k, s, a, plan))
		}
		return out
	})
}

// actOf is what an action writes.
func (m machines) actOf(k vmKey, s vm.Snapshot, a vm.Action, plan vm.Plan) act {
	out := act{slot: slotVMI, uid: k.guestUID, fault: a.Fault.Reason, live: a.If.OwnerLive}
	switch a.Verb {
	case vm.UpdateVM:
		stored := plan.VM.DeepCopy()
		stored.Status = s.VM.Status
		out.verb, out.slot, out.uid, out.vm = update, slotVM, k.uid, m.known.principal(stored)
	case vm.CreateRevision:
		out.verb, out.slot, out.rev = create, slotOfRevision(a.Name), m.known.revision(a.Revision)
	case vm.DeleteRevision:
		at := slotOfRevision(a.Name)
		out.verb, out.slot, out.uid = remove, at, k.revs[at-slotRev2].uid
		if fullUID(at, out.uid) != a.If.UID {
			cannot("%s is deleted by another UID than it has", a.Name)
		}
	case vm.CreateVMI:
		created := a.VMI.DeepCopy()
		created.CreationTimestamp = moment
		out.verb, out.guest = create, m.known.guest(created)
	case vm.AdoptVMI:
		owned := s.VMI.DeepCopy()
		owned.OwnerReferences = append(owned.OwnerReferences, *metav1.NewControllerRef(s.VM, v1.VirtualMachineGroupVersionKind))
		out.verb, out.guest = update, m.known.guest(owned)
	case vm.PatchVMI:
		out.verb, out.guest = update, m.known.guest(a.VMI)
	case vm.DeleteVMI:
		out.verb = remove
	default:
		cannot("action %s is not modelled", a)
	}
	return out
}

// vmKeyOf is the question that a pass over a VirtualMachine asks now.
func (ps *pass) vmKeyOf(now int8) vmKey {
	v := ps.snap[slotVM]
	k := vmKey{vm: v.vm, uid: v.uid, deleting: v.deleting, unseen: ps.unseen, fault: ps.fault, now: now}
	if g := ps.snap[slotVMI]; g != nil {
		k.g, k.guestUID, k.stopping = g.vmi, g.uid, g.deleting
	}
	for i := range k.revs {
		if r := ps.snap[slotRev2+slot(i)]; r != nil {
			k.revs[i] = revKey{r.rev, r.uid}
		}
	}
	return k
}

// work is a pass over the VirtualMachine, up to its first write.
func (m machines) work(w *world, p int, v outlook) {
	pr := &w.procs[p]
	if pr.sees[slotVM] == nil || v.outdated {
		return
	}
	ps := &pass{owner: slotVM, snap: pr.sees, unseen: v.open}
	k := ps.vmKeyOf(m.clockOf(w, p))
	k.creates, k.removes = v.creates, v.removes
	plan := m.plan(k)
	ps.acts, ps.planned = plan.acts, plan.planned
	m.proceed(w, p, ps)
}

// proceed sends the next write of a pass: its actions, then the status that was planned.
func (m machines) proceed(w *world, p int, ps *pass) {
	next := *ps
	switch now := ps.snap[slotVM]; {
	case len(ps.acts) > 0:
		a := ps.acts[0]
		next.acts = ps.acts[1:]
		if a.live && !stands(w, now) {
			return // it has changed: the next pass decides anew
		}
		rules(m).judgeOrdered(w, a)
		controllers(m).send(w, p, &next, a)
	case ps.storing:
	default:
		next.storing = true
		if status := m.known.withStatus(now.vm, ps.planned); status != now.vm {
			controllers(m).send(w, p, &next, act{verb: update, slot: slotVM, uid: now.uid, vm: status})
		}
	}
}

// stands reports whether a live read of the VirtualMachine shows this version of it.
func stands(w *world, o *object) bool {
	live := w.api[slotVM]
	return live != nil && live.uid == o.uid && live.rv == o.rv && !live.deleting
}

// respond goes on after an answer, as package vmctrl does. What the pass decided on stays as it was, but for the VirtualMachine.
func (m machines) respond(w *world, p int, d doing, a answer, o *object) {
	ps := *d.pass
	live := w.api[d.req.slot]
	switch {
	case a == exists && (live == nil || !m.controls(ps.snap[slotVM], live)):
		controllers(m).fails(w, p, &ps, d.act)
		return
	case a == exists, d.req.verb == remove: // that it is gone, or another's by now, is as good
	case a != accepted, o == nil, o.gone && d.req.slot == slotVM:
		return // the next pass decides anew
	case d.req.slot == slotVM:
		ps.snap[slotVM] = o
	}
	m.proceed(w, p, &ps)
}

// controls reports whether the VirtualMachine controls an object.
func (m machines) controls(v, o *object) bool {
	var meta metav1.Object = &metav1.ObjectMeta{}
	switch {
	case o.vmi != nil:
		meta = o.vmi.obj
	case o.rev != nil:
		meta = o.rev.obj
	}
	return metav1.IsControlledBy(meta, v.vm.instance(v.uid, false))
}
