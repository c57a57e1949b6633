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

// state is the knowledge about a write.
type state struct {
	problem Problem
	exists  bool // create: refused, because an object of that name exists
	removed bool // the last event seen was the removal of seenUID
	older   bool // a live read showed a version older than the write
	told    bool // Overdue was reported to the observer

	uid     types.UID // create, update: known once answered; delete: the target
	base    string    // update: version before the write; delete: newest version known of the target
	needs   string    // version that must be seen; "" until the server's answer is known
	seen    string    // newest version that the cache has shown, or vouched for, since the write was noted
	seenUID types.UID // UID of the last object observed under the name
}

// compareVersions compares two versions. ok is false if either is missing or malformed, unless they are identical, as the API
// conventions allow any versions to be tested for equality.
func compareVersions(a, b string) (cmp int, ok bool) {
	if a == b {
		return 0, a != "" && a != "0"
	}
	c, err := resourceversion.CompareResourceVersion(a, b)
	return c, err == nil
}

func versionReached(have, need string) bool {
	c, ok := compareVersions(have, need)
	return ok && c >= 0
}

func isOlder(have, need string) bool {
	c, ok := compareVersions(have, need)
	return ok && c < 0
}

// observe applies a watch event and reports whether it settles the entry.
func (e *entry) observe(obj metav1.Object, kind EventKind) bool {
	if kind == DeletedUnknown {
		// The object in a tombstone may be stale, and the removal itself is unconfirmed: a list from an API server that
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

// shows reports whether an object in the cache, or its removal from it, shows the write. ordered is false if that
// is undecidable because its version has no order against the one needed.
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
		// The removal may be that of a predecessor; Confirm decides. If the name was taken, it is free now.
		return !removal || e.exists, true
	case same:
		return true, true
	default:
		return passes(obj.GetResourceVersion(), e.needs) // the created object may be deleted again already
	}
}

func (e *entry) showsDelete(obj metav1.Object, same, removal bool) (settled, ordered bool) {
	if same {
		return removal || obj.GetDeletionTimestamp() != nil, true
	}
	// A name belongs to one object at a time. Another object at a version newer than a known version of the target means
	// that the target is gone; at an older version it is a predecessor in a late event. Without a known version it may
	// be either.
	version := obj.GetResourceVersion()
	if version == e.base {
		return false, true
	}
	return passes(version, e.base)
}

// passes reports whether a version has reached the one needed. No version reaches an unknown one.
func passes(version, needs string) (settled, ordered bool) {
	if needs == "" {
		return false, true
	}
	c, ok := compareVersions(version, needs)
	return ok && c >= 0, ok
}

// noteSeen records the UID and version that an event showed. For a deletion, base is the newest known version of the
// target.
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

// read applies a reading of the cache and reports whether it settles the entry. Unlike an event it raises no problem and
// replaces none, as it may be older than the objects that the events have shown.
func (e *entry) read(cached metav1.Object) bool {
	settled, _ := e.shows(cached, false)
	if version := cached.GetResourceVersion(); e.seen == "" || isOlder(e.seen, version) {
		e.seen = version
	}
	return settled
}

// taken records that a creation was refused because an object of that name exists, and reports whether the removal of an
// object of that name was seen since.
func (e *entry) taken() bool {
	if e.verb != Create || e.uid != "" {
		return false
	}
	e.exists = true
	return e.removed
}

// bookmark records that the cache is complete up to a version and reports whether the cache must have seen the write.
func (e *entry) bookmark(version string) bool {
	if e.verb == Delete {
		return false
	}
	if e.needs == "" && (e.seen == "" || isOlder(e.seen, version)) {
		e.seen = version
	}
	return versionReached(version, e.needs)
}

// confirmation is the effect of the server's answer on an entry.
type confirmation int

const (
	stillOpen  confirmation = iota // evidence is yet to come
	alarming                       // the evidence seen before cannot be compared
	settledNow                     // evidence was seen before the answer, or none is needed
)

// confirm applies the server's answer.
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
	if (e.uid != "" && e.seenUID == e.uid) || versionReached(e.seen, e.needs) {
		return settledNow
	}
	return stillOpen
}

func (e *entry) confirmUpdate(obj metav1.Object) confirmation {
	e.uid, e.needs = obj.GetUID(), obj.GetResourceVersion()
	unchanged := e.needs != "" && e.needs == e.base
	gone := e.removed && e.uid != "" && e.seenUID == e.uid
	if unchanged || gone || versionReached(e.seen, e.needs) {
		return settledNow
	}
	if _, ok := compareVersions(e.seen, e.needs); e.seen != "" && !ok && e.problem != Incomparable {
		e.problem = Incomparable
		return alarming
	}
	return stillOpen
}
