// SPDX-License-Identifier: Apache-2.0

package expectations

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// entry is one noted write. Its mutable part is guarded by the shard of its object, except its links in the list of its
// owner, which the shard of the owner guards.
type entry struct {
	owner Owner
	ref   Ref
	verb  Verb
	since time.Time
	due   time.Duration // age from which a live read is needed
	state

	handle *handle
	hash   [2]uint32 // by side
	links  [2]links  // by side
}

// state is what is known of a write.
type state struct {
	problem Problem
	exists  bool // create: refused, because something of that name is there
	removed bool // the last event seen was the removal of seenUID
	older   bool // a live read showed a version older than the write
	told    bool // the observer knows that it is overdue

	uid     types.UID // create, update: known once answered; delete: the target
	base    string    // update: version before the write; delete: newest version known of the target
	needs   string    // version that must be seen; "" until the server's answer is known
	seen    string    // newest version that the cache has shown, or vouched for, since the write was noted
	seenUID types.UID // UID of the last object observed under the name
}

// order compares two versions. ok is false if either is missing or not well formed, unless they are identical, which
// the API conventions allow to be tested for any version.
func order(a, b string) (cmp int, ok bool) {
	if a == b {
		return 0, a != "" && a != "0"
	}
	c, err := resourceversion.CompareResourceVersion(a, b)
	return c, err == nil
}

func reached(have, need string) bool {
	c, ok := order(have, need)
	return ok && c >= 0
}

func isOlder(have, need string) bool {
	c, ok := order(have, need)
	return ok && c < 0
}

// observe takes a watch event in and reports whether it settles the entry.
func (e *entry) observe(obj metav1.Object, kind EventKind) bool {
	if kind == DeletedUnknown {
		// What a tombstone carries may be old, and that the object is gone is hearsay: a list from an API server that
		// lags behind looks the same.
		e.problem = Tombstone
		return false
	}
	e.noteSeen(obj, kind == Deleted)
	settled, ordered := e.shows(obj, kind == Deleted)
	if !settled && !ordered {
		e.problem = Incomparable
	}
	return settled
}

// shows reports whether an object in the cache, or its removal from it, shows the write. ordered is false if that cannot
// be told because its version has no order against the one needed.
func (e *entry) shows(obj metav1.Object, removal bool) (settled, ordered bool) {
	same := e.uid != "" && obj.GetUID() == e.uid
	switch e.verb {
	case Create:
		return e.showsCreate(obj, same, removal)
	case Update:
		if same && removal {
			return true, true // nothing more of it will come
		}
		return passes(obj.GetResourceVersion(), e.needs)
	default:
		return e.showsDelete(obj, same, removal)
	}
}

func (e *entry) showsCreate(obj metav1.Object, same, removal bool) (settled, ordered bool) {
	switch {
	case e.uid == "" && e.needs == "":
		// A removal is perhaps that of a predecessor; Confirm can tell. If the name was taken, it is free now.
		return !removal || e.exists, true
	case same:
		return true, true
	default:
		return passes(obj.GetResourceVersion(), e.needs) // perhaps ours is gone again already
	}
}

func (e *entry) showsDelete(obj metav1.Object, same, removal bool) (settled, ordered bool) {
	if same {
		return removal || obj.GetDeletionTimestamp() != nil, true
	}
	// A name belongs to one object at a time. Another one at a version newer than one known of ours means that ours is
	// gone; at an older one it is a predecessor in a late event. Without a version known it may be either.
	version := obj.GetResourceVersion()
	if version == e.base {
		return false, true
	}
	return passes(version, e.base)
}

// passes reports whether a version has reached the one needed. Nothing reaches one that is not known.
func passes(version, needs string) (settled, ordered bool) {
	if needs == "" {
		return false, true
	}
	c, ok := order(version, needs)
	return ok && c >= 0, ok
}

// noteSeen remembers what an event showed. For a deletion, base is the newest that is known of the target.
func (e *entry) noteSeen(obj metav1.Object, removal bool) {
	uid, version := obj.GetUID(), obj.GetResourceVersion()
	e.seenUID, e.removed = uid, removal
	if !isOlder(version, e.seen) {
		e.seen = version
	}
	if e.verb == Delete && uid == e.uid && !isOlder(version, e.base) {
		e.base = version
	}
}

// read takes a reading of the cache in and reports whether it settles the entry. Unlike an event it raises no problem and
// never takes the place of one, as it may be older than what the events have shown.
func (e *entry) read(cached metav1.Object) bool {
	settled, _ := e.shows(cached, false)
	if version := cached.GetResourceVersion(); e.seen == "" || isOlder(e.seen, version) {
		e.seen = version
	}
	return settled
}

// taken notes that a creation was refused because something of that name is there, and reports whether the removal of
// something of that name was seen since.
func (e *entry) taken() bool {
	if e.verb != Create || e.uid != "" {
		return false
	}
	e.exists = true
	return e.removed
}

// bookmark takes in that the cache is complete up to a version and reports whether it must have seen the write.
func (e *entry) bookmark(version string) bool {
	if e.verb == Delete {
		return false
	}
	if e.needs == "" && (e.seen == "" || isOlder(e.seen, version)) {
		e.seen = version
	}
	return reached(version, e.needs)
}

// confirmation is what the server's answer does to an entry.
type confirmation int

const (
	stillOpen  confirmation = iota // evidence is yet to come
	alarming                       // the evidence that had come cannot be compared
	settledNow                     // evidence had come before the answer, or none is needed
)

// confirm takes the server's answer in.
func (e *entry) confirm(obj metav1.Object) confirmation {
	switch {
	case obj == nil || e.verb == Delete:
		return stillOpen
	case e.verb == Create:
		return e.confirmCreate(obj)
	default:
		return e.confirmUpdate(obj)
	}
}

func (e *entry) confirmCreate(obj metav1.Object) confirmation {
	e.uid, e.needs = obj.GetUID(), obj.GetResourceVersion()
	if (e.uid != "" && e.seenUID == e.uid) || reached(e.seen, e.needs) {
		return settledNow
	}
	return stillOpen
}

func (e *entry) confirmUpdate(obj metav1.Object) confirmation {
	e.uid, e.needs = obj.GetUID(), obj.GetResourceVersion()
	unchanged := e.needs != "" && e.needs == e.base
	gone := e.removed && e.uid != "" && e.seenUID == e.uid
	if unchanged || gone || reached(e.seen, e.needs) {
		return settledNow
	}
	if _, ok := order(e.seen, e.needs); e.seen != "" && !ok && e.problem != Incomparable {
		e.problem = Incomparable
		return alarming
	}
	return stillOpen
}
