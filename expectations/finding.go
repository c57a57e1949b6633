// SPDX-License-Identifier: Apache-2.0

package expectations

import (
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Finding is the result of a live read for a pending write.
type Finding int

// The findings of Answer. The first two settle the write, the others leave it outstanding.
const (
	// Shown means that the server has the write, or a later one.
	Shown Finding = iota
	// Disproved means that the write is not in effect: it was never made, was undone by others or by a restore of the
	// server's store from a backup, or its object was replaced.
	Disproved
	// CacheBehind means that the server has the write but the cache does not show it and still has time to: an event
	// that shows the write settles it, and so does a live read that finds it again once it is overdue.
	CacheBehind
	// ServerBehind means that the reading is older than the write: it was not answered from the server's current state,
	// or the server's store was reset. The write waits for a further TTL; if the live read requested then is older too,
	// the write is disproved.
	ServerBehind
	// Unordered means that the version read cannot be compared with the one written. The write stays expired until an
	// event or a reading that can be compared settles it. The caller must decide: once it knows its cache to be
	// current, it abandons the write with Cancel(pending.Token()) or the owner's writes with Forget.
	Unordered
)

// Settled reports whether the write is no longer outstanding.
func (f Finding) Settled() bool { return f == Shown || f == Disproved }

// String returns the name of the finding in lower case.
func (f Finding) String() string {
	switch f {
	case Shown:
		return "shown"
	case Disproved:
		return "disproved"
	case CacheBehind:
		return "cache behind"
	case ServerBehind:
		return "server behind"
	case Unordered:
		return "unordered"
	default:
		return fmt.Sprintf("finding(%d)", int(f))
	}
}

// at is when a live read is evaluated: the age of the entry then, and the time that it has to become visible.
type at struct{ age, ttl time.Duration }

// answer evaluates a live read; nil means that the object does not exist.
func (e *entry) answer(live metav1.Object, now at) Finding {
	switch {
	case live == nil && e.verb == Delete:
		return Shown
	case live == nil:
		return Disproved
	case e.verb == Create:
		return e.answerCreate(live, now)
	case e.verb == Update:
		return e.answerUpdate(live, now)
	default:
		return e.answerDelete(live, now)
	}
}

func (e *entry) answerCreate(live metav1.Object, now at) Finding {
	switch {
	case e.exists:
		return Shown // the creation itself was refused; the object of that name is known now
	case e.uid == "" && e.needs == "":
		return e.learn(live, now)
	case live.GetUID() == e.uid:
		return e.inEffect(now)
	case isOlder(live.GetResourceVersion(), e.needs):
		return e.serverBehind(now)
	default:
		return Disproved // deleted again, and its name taken by another object
	}
}

func (e *entry) answerUpdate(live metav1.Object, now at) Finding {
	version := live.GetResourceVersion()
	if e.needs == "" {
		switch {
		case version != "" && version == e.base:
			return Disproved
		case isOlder(version, e.base):
			return e.serverBehind(now)
		default:
			return e.learn(live, now)
		}
	}
	c, ordered := compareVersions(version, e.needs)
	switch {
	case ordered && c < 0:
		return e.serverBehind(now)
	case ordered:
		return e.inEffect(now)
	case e.uid != "" && live.GetUID() != e.uid:
		return Disproved
	default:
		e.problem = Incomparable
		return Unordered
	}
}

func (e *entry) answerDelete(live metav1.Object, now at) Finding {
	same := live.GetUID() == e.uid
	switch {
	case isOlder(live.GetResourceVersion(), e.base):
		return e.serverBehind(now)
	case same && live.GetDeletionTimestamp() == nil:
		return Disproved
	default:
		return Shown
	}
}

// learn records the first knowledge about a write whose outcome was unknown. The object read has the write or does not
// have it; either way the cache must show that version.
func (e *entry) learn(live metav1.Object, now at) Finding {
	e.uid, e.needs, e.older, e.problem = live.GetUID(), live.GetResourceVersion(), false, NoProblem
	if e.needs == "" || versionReached(e.seen, e.needs) {
		return Shown
	}
	e.due = now.age + now.ttl
	return CacheBehind
}

// inEffect returns the finding for a write that the server has. A cache that has just lost the object, by a relist that
// may have been answered from stale state, has the rest of the TTL to show it again.
func (e *entry) inEffect(now at) Finding {
	if e.problem == Tombstone && now.age < e.due {
		e.problem = NoProblem
		return CacheBehind
	}
	return Shown
}

// serverBehind returns the finding for a live read older than the write: it is repeated one TTL later, then trusted.
func (e *entry) serverBehind(now at) Finding {
	if e.older && now.age >= e.due {
		return Disproved
	}
	if !e.older {
		e.older, e.due = true, now.age+now.ttl
	}
	e.problem = NoProblem
	return ServerBehind
}
