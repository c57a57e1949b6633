// SPDX-License-Identifier: Apache-2.0

package expectations

import "time"

// Observer records the life of every write, for metrics, traces or logs. Its methods are called without any lock
// held, on the goroutine that calls the Tracker, and before Options.Wake; they may call the Tracker, must not block and
// must be safe for concurrent use. For one write, Noted comes first and exactly one of Settled and Dropped ends it, so
// that noted less settled less dropped is the number outstanding. Calls about one write made on several goroutines, such
// as a problem and the event that settles it, may otherwise arrive in any order.
//
// A creation that Confirm finds to have been settled by another object of its name is outstanding again: Noted is called
// a second time for it, with the Since of the first.
type Observer interface {
	// Noted reports a new write; it is called before any evidence of the write can be found.
	Noted(w Write)
	// Settled reports a write that is no longer outstanding because of evidence, and its age at that time.
	Settled(w Write, by Evidence, age time.Duration)
	// Dropped reports a write that is no longer outstanding although no evidence came.
	Dropped(w Write, why DropReason)
	// Troubled reports a write that needs a live read. Overdue is reported by the first Check that finds it, once per
	// write; the other problems each time that they arise.
	Troubled(w Write, p Problem)
}

// Write is a noted write as an Observer sees it.
type Write struct {
	// Owner is the owner on whose behalf the write is made.
	Owner Owner
	// Ref is the object written to.
	Ref Ref
	// Verb is the kind of write.
	Verb Verb
	// Since is when the write was noted.
	Since time.Time
}

// Evidence is the kind of evidence that settled a write. The values serve as metric labels.
type Evidence string

// The kinds of evidence.
const (
	// ByEvent is an event of the watch.
	ByEvent Evidence = "event"
	// ByReply is the server's reply to the write, together with an object that the cache had shown before or because the
	// write changed nothing.
	ByReply Evidence = "reply"
	// ByBookmark is a bookmark of the watch.
	ByBookmark Evidence = "bookmark"
	// ByCache is a reading of the cache, given to Seen.
	ByCache Evidence = "cache"
	// ByLiveRead is a live read that found the write.
	ByLiveRead Evidence = "live_read"
	// ByDisproof is a live read that found the write not to be in effect.
	ByDisproof Evidence = "disproof"
)

// DropReason is the reason why a write is no longer outstanding although no evidence came. The values serve as metric labels.
type DropReason string

// The reasons of dropping a write.
const (
	// Cancelled means that Cancel was called.
	Cancelled DropReason = "cancelled"
	// Forgotten means that Forget or ForgetKey was called.
	Forgotten DropReason = "forgotten"
	// Succeeded means that another owner took over the key of this one, and that the write was overdue.
	Succeeded DropReason = "succeeded"
)

func (t *Tracker) reportNoted(e *entry) {
	if t.observer != nil {
		t.observer.Noted(e.write())
	}
}

func (t *Tracker) reportSettled(e *entry, by Evidence) {
	if t.observer != nil {
		t.observer.Settled(e.write(), by, t.now().Sub(e.since))
	}
}

func (t *Tracker) reportDropped(e *entry, why DropReason) {
	if t.observer != nil {
		t.observer.Dropped(e.write(), why)
	}
}

// reportTroubled takes a copy, as the entry is still open to others.
func (t *Tracker) reportTroubled(w Write, p Problem) {
	if t.observer != nil {
		t.observer.Troubled(w, p)
	}
}

// write reads only fields that never change, so that it needs no lock.
func (e *entry) write() Write {
	return Write{Owner: e.owner, Ref: e.ref, Verb: e.verb, Since: e.since}
}
