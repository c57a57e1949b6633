// SPDX-License-Identifier: Apache-2.0

package expectations

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// entry is one noted write. Its mutable part is guarded by the object shard of ref, except nextOfOwner, which is guarded
// by the owner shard.
type entry struct {
	owner Owner
	ref   Ref
	verb  Verb
	since time.Time

	open    bool      // still outstanding
	uid     types.UID // create: known once confirmed; delete: the target
	base    string    // update: version before the write; delete: newest version known of the target
	needs   string    // version that must be seen; "" until the server's answer is known
	seen    string    // newest version observed since the write was noted
	seenUID types.UID // UID of the last object observed under the name
	problem Problem

	nextOfObject *entry
	nextOfOwner  *entry
}

// order compares two versions. ok is false if either is missing or not well formed, unless they are identical, which
// the API conventions allow to be tested for any version.
func order(a, b string) (cmp int, ok bool) {
	if a == "" || b == "" || a == "0" || b == "0" {
		return 0, false
	}
	if a == b {
		return 0, true
	}
	c, err := resourceversion.CompareResourceVersion(a, b)
	return c, err == nil
}

func reached(have, need string) bool {
	c, ok := order(have, need)
	return ok && c >= 0
}

// observe takes a watch event in and reports whether it settles the entry.
func (e *entry) observe(obj metav1.Object, kind EventKind) bool {
	switch {
	case kind == DeletedUnknown:
		// What a tombstone carries may be old, and that the object is gone is hearsay: a list from an API server that
		// lags behind looks the same.
		e.problem = Tombstone
		return false
	case e.verb == Delete:
		return e.observeForDelete(obj, kind)
	case e.verb == Create && kind == Deleted && e.uid == "":
		// Perhaps the end of a predecessor. Confirm can tell.
		e.noteSeen(obj)
		return false
	default:
		return e.evidence(obj)
	}
}

func (e *entry) observeForDelete(obj metav1.Object, kind EventKind) bool {
	if obj.GetUID() == e.uid {
		e.noteSeen(obj)
		return kind == Deleted || obj.GetDeletionTimestamp() != nil
	}
	// A name belongs to one object at a time. Another UID at a version newer than one known of ours means that ours is
	// gone; at an older or unknown version it is a predecessor in a late event.
	known := e.base
	if c, ok := order(e.seen, known); e.seen != "" && (known == "" || (ok && c > 0)) {
		known = e.seen
	}
	c, ok := order(obj.GetResourceVersion(), known)
	return ok && c > 0
}

// evidence reports whether obj shows a creation or update.
func (e *entry) evidence(obj metav1.Object) bool {
	e.noteSeen(obj)
	if e.verb == Create {
		if e.uid == "" || obj.GetUID() == e.uid {
			return true
		}
		return reached(obj.GetResourceVersion(), e.needs) // ours is already gone again
	}
	if e.needs == "" {
		return false
	}
	if _, ok := order(obj.GetResourceVersion(), e.needs); !ok {
		e.problem = Incomparable
		return false
	}
	return reached(obj.GetResourceVersion(), e.needs)
}

func (e *entry) noteSeen(obj metav1.Object) {
	e.seenUID = obj.GetUID()
	rv := obj.GetResourceVersion()
	if c, ok := order(rv, e.seen); e.seen == "" || !ok || c > 0 {
		e.seen = rv
	}
}

// bookmark reports whether a cache that is complete up to rv must have seen the write.
func (e *entry) bookmark(rv string) bool {
	return e.verb != Delete && e.needs != "" && reached(rv, e.needs)
}

// confirmation is what the server's answer does to an entry.
type confirmation int

const (
	stillOpen     confirmation = iota // evidence is yet to come
	settledNow                        // evidence had come before the answer, or none is needed
	settledBefore                     // nothing was awaited any more
	reopened                          // it had been settled by evidence about another object
)

// confirm takes the server's answer in.
func (e *entry) confirm(obj metav1.Object) confirmation {
	switch {
	case obj != nil && e.verb == Create:
		return e.confirmCreate(obj)
	case obj != nil && e.verb == Update && e.open:
		return e.confirmUpdate(obj)
	case e.open:
		return stillOpen
	default:
		return settledBefore
	}
}

func (e *entry) confirmCreate(obj metav1.Object) confirmation {
	e.uid, e.needs = obj.GetUID(), obj.GetResourceVersion()
	shown := e.seenUID == e.uid || reached(e.seen, e.needs)
	switch {
	case e.open && shown:
		return settledNow
	case e.open:
		return stillOpen
	case !shown && e.seenUID != "":
		return reopened
	default:
		return settledBefore
	}
}

func (e *entry) confirmUpdate(obj metav1.Object) confirmation {
	e.needs = obj.GetResourceVersion()
	unchanged := e.needs != "" && e.needs == e.base
	if unchanged || reached(e.seen, e.needs) {
		return settledNow
	}
	if _, ok := order(e.seen, e.needs); e.seen != "" && !ok {
		e.problem = Incomparable
	}
	return stillOpen
}

// successor is a fresh entry for the same write with what is known of it by now.
func (e *entry) successor() *entry {
	return &entry{owner: e.owner, ref: e.ref, verb: e.verb, since: e.since, uid: e.uid, base: e.base, needs: e.needs}
}

// answer takes a live reading in; nil means that the object does not exist. Only an update whose version the reading does
// not reach stays outstanding: everything else is either shown or disproved by it.
func (e *entry) answer(live metav1.Object) bool {
	if live == nil || e.verb != Update || e.needs == "" {
		return true
	}
	e.noteSeen(live)
	if _, ok := order(live.GetResourceVersion(), e.needs); !ok {
		e.problem = Incomparable
		return false
	}
	return reached(live.GetResourceVersion(), e.needs)
}
