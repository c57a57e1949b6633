// SPDX-License-Identifier: Apache-2.0

package expectations

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// change is what one observation did to one entry.
type change struct {
	entry   *entry
	settled bool
	last    bool // settled, and the owner waits for nothing else
}

// Observe feeds one watch event. Owners whose last outstanding write it settles, and those that need a live read because
// of it, are woken. gk is the group and kind of obj.
func (t *Tracker) Observe(gk schema.GroupKind, obj metav1.Object, kind EventKind) {
	if t.outstanding.Load() == 0 {
		return
	}
	ref := Ref{Kind: gk, Namespace: obj.GetNamespace(), Name: obj.GetName()}
	ob := t.objectShard(ref)
	var room [4]change // keeps the common case off the heap
	changes := room[:0]
	ob.mu.Lock()
	for e := ob.entries[ref]; e != nil; {
		next, before := e.nextOfObject, e.problem
		if e.observe(obj, kind) {
			changes = append(changes, change{entry: e, settled: true, last: t.close(ob, e)})
		} else if e.problem != before {
			changes = append(changes, change{entry: e})
		}
		e = next
	}
	ob.mu.Unlock()
	t.spread(changes, ByEvent, kind)
}

// ObserveBookmark tells that the cache has seen everything of this kind up to resourceVersion, in one namespace or, with
// "", in all. It settles writes whose version is known and not newer, and wakes owners as Observe does.
func (t *Tracker) ObserveBookmark(gk schema.GroupKind, namespace, resourceVersion string) {
	if t.outstanding.Load() == 0 {
		return
	}
	var changes []change
	for i := range t.objects {
		ob := &t.objects[i]
		ob.mu.Lock()
		for ref, e := range ob.entries {
			if ref.Kind != gk || (namespace != "" && ref.Namespace != namespace) {
				continue
			}
			for e != nil {
				next := e.nextOfObject
				if e.bookmark(resourceVersion) {
					changes = append(changes, change{entry: e, settled: true, last: t.close(ob, e)})
				}
				e = next
			}
		}
		ob.mu.Unlock()
	}
	t.spread(changes, ByBookmark, Updated)
}

// spread tells the observer and the owners.
func (t *Tracker) spread(changes []change, by Evidence, kind EventKind) {
	for _, c := range changes {
		switch {
		case c.settled:
			t.tellSettled(c.entry, by)
		case kind == DeletedUnknown:
			t.tellTroubled(c.entry, Tombstone)
		default:
			t.tellTroubled(c.entry, Incomparable)
		}
	}
	for _, c := range changes {
		if c.last || !c.settled {
			t.wake(c.entry.owner)
		}
	}
}
