// SPDX-License-Identifier: Apache-2.0

package explore

// answer is what the API server says to a request.
type answer uint8

const (
	accepted answer = iota
	// exists: a creation found an object of that name.
	exists
	// conflict: the object has another version or UID.
	conflict
	// missing: there is no such object.
	missing
)

// commit carries a request out at the API server and returns the object as it is
// then; that is nil for a removal.
func (w *world) commit(r request) (answer, *object) {
	have := w.api[r.slot]
	switch {
	case r.verb == create:
		return w.created(r)
	case have == nil:
		return missing, nil
	case have.uid != r.uid:
		return conflict, nil
	case r.verb == remove:
		w.remove(have)
		return accepted, nil
	}
	n := r.want.with(func(o *object) { o.uid, o.deleting = have.uid, have.deleting })
	if have.rv != r.base {
		g := w.known.changed(r, have)
		if g == nil {
			return conflict, nil
		}
		n = n.with(func(o *object) { o.vmi = g })
	}
	if n.vm != nil {
		n = n.with(func(o *object) { o.vm = w.known.counted(have.vm, o.vm) })
	}
	if n.sum == have.sum {
		return accepted, have // the API server stores nothing that is as it was
	}
	if n.deleting && !n.held() {
		return accepted, w.vanish(n)
	}
	return accepted, w.store(n)
}

// created carries a creation out.
func (w *world) created(r request) (answer, *object) {
	if w.api[r.slot] != nil {
		return exists, nil
	}
	w.uids[r.slot]++
	if r.slot == slotVMI {
		w.past.started, w.past.moved = 0, 0 // epochs are those of one object
	}
	w.orphan(func(late request) bool { return late.verb == create && late.slot == r.slot })
	return accepted, w.store(r.want.with(func(o *object) { o.uid = w.uids[r.slot] }))
}

// changed is what a change comes to that was made from an earlier version; nil if it is
// refused.
func (k *memory) changed(r request, have *object) *guest {
	if r.slot != slotVMI || r.from == nil {
		return nil
	}
	return k.patched(patchKey{
		from: r.from.vmi, want: r.want.vmi, have: have.vmi, wasDeleting: r.from.deleting, deleting: have.deleting, guards: r.guards,
	})
}

// held reports whether a finalizer keeps the object.
func (o *object) held() bool {
	return o.vmi != nil && len(o.vmi.obj.Finalizers) > 0 || o.vm != nil && len(o.vm.obj.Finalizers) > 0 || o.move != nil && o.move.finalizer
}

// store makes o the newest version and queues its watch events.
func (w *world) store(o *object) *object {
	w.rv++
	n := *o
	n.rv = w.rv
	w.api[o.slot] = &n
	w.push(&n)
	return &n
}

// remove begins the deletion of an object, which is over at once if nothing holds
// it: a finalizer, or a node on which a Pod may run.
func (w *world) remove(o *object) {
	switch {
	case o.deleting:
	case o.held(), o.slot.isPod() && o.node != nowhere:
		w.store(o.with(func(o *object) { o.deleting = true }))
	default:
		w.vanish(o)
	}
}

// vanish removes an object.
func (w *world) vanish(o *object) *object {
	w.rv++
	n := *o.with(func(o *object) { o.gone = true })
	n.rv = w.rv
	w.api[o.slot] = nil
	w.push(&n)
	return &n
}

// orphan marks requests under way as remembered by no process.
func (w *world) orphan(which func(request) bool) {
	late := append([]request(nil), w.late...)
	for i := range late {
		late[i].orphan = late[i].orphan || which(late[i])
	}
	w.late = late
	for p := range w.procs {
		if r := &w.procs[p].doing.req; w.procs[p].doing.stage == asking {
			r.orphan = r.orphan || which(*r)
		}
	}
}
