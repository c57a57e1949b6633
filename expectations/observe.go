// SPDX-License-Identifier: Apache-2.0

package expectations

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// settled is an entry that an observation has settled.
type settled struct {
	*entry
	last bool // the owner has no other outstanding write
}

// Observe applies one watch event. It wakes the owners whose last outstanding write it settles, and those that need a
// live read because of it. gk is the group and kind of obj, which must not be changed afterwards, as is the rule for
// objects from informers.
func (t *Tracker) Observe(gk schema.GroupKind, obj metav1.Object, kind EventKind) {
	ref := Ref{Kind: gk, Namespace: obj.GetNamespace(), Name: obj.GetName()}
	hash := t.objectHash(&ref)
	ob := &t.objects[hash%shardCount]
	if ob.count.Load() == 0 {
		return
	}
	var room [4]settled // keeps the common case off the heap
	did := room[:0]
	var alarmed []Write // copies, as their entries are open to others
	ob.mu.Lock()
	next := ob.head(hash)
	for next != nil {
		e := next
		next = ob.after(e)
		if e.hash[byObject] != hash || e.ref != ref {
			continue
		}
		before := e.problem
		if e.observe(obj, kind) {
			e.keepEarly(obj)
			did = append(did, settled{entry: e, last: t.unlink(ob, e)})
		} else if e.problem != before {
			alarmed = append(alarmed, e.write())
		}
	}
	ob.mu.Unlock()
	t.spread(did, ByEvent)
	for _, w := range alarmed {
		if kind == DeletedUnknown {
			t.reportTroubled(w, Tombstone)
		} else {
			t.reportTroubled(w, Incomparable)
		}
		t.wake(w.Owner)
	}
}

// ObserveBookmark records that the cache is complete for this kind up to resourceVersion, in one namespace or, with "",
// in all. It settles writes whose version is known and not newer, and wakes owners as Observe does.
func (t *Tracker) ObserveBookmark(gk schema.GroupKind, namespace, resourceVersion string) {
	matches := func(r Ref) bool { return r.Kind == gk && (namespace == "" || r.Namespace == namespace) }
	var did []settled
	for i := range t.objects {
		ob := &t.objects[i]
		if ob.count.Load() == 0 {
			continue
		}
		ob.mu.Lock()
		for _, e := range ob.all() {
			if matches(e.ref) && e.bookmark(resourceVersion) {
				did = append(did, settled{entry: e, last: t.unlink(ob, e)})
			}
		}
		ob.mu.Unlock()
	}
	t.spread(did, ByBookmark)
}

// spread notifies the observer and the owners, and releases the entries.
func (t *Tracker) spread(did []settled, by Evidence) {
	for _, s := range did {
		t.reportSettled(s.entry, by)
	}
	for _, s := range did {
		if s.last {
			t.wake(s.owner)
		}
		t.spare.Put(s.entry)
	}
}
