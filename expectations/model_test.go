// SPDX-License-Identifier: Apache-2.0

package expectations_test

import (
	"fmt"
	"math/big"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/virtloom/virtloom/expectations"
)

// model implements the documented promises in the simplest form: one list of writes, looked through from end to end.
type model struct {
	now      time.Time
	ttl      time.Duration
	writes   []*modelWrite // every write ever noted, oldest first
	woken    []expectations.Owner
	reported []report
}

// report is one call to an Observer.
type report struct {
	what, detail string
	write        expectations.Write
	age          time.Duration
}

func (r report) String() string {
	return fmt.Sprintf("%s %s %s of %s by %s since %s, age %s",
		r.what, r.detail, r.write.Verb, r.write.Ref, show(r.write.Owner), r.write.Since.Format("05.0"), r.age)
}

type modelWrite struct {
	expectations.Write
	open    bool
	due     time.Time
	problem expectations.Problem

	uid, base, needs    string // the knowledge about the write
	seenUID, seen       string // the newest object that the cache has shown
	seenGone            bool
	exists, older       bool
	overdueTold         bool
	earlyUID, earlySeen string // what settled a creation before its answer
}

// view is an object as an event or a read shows it.
type view struct {
	uid, version string
	terminating  bool
}

// compare orders versions as the API conventions allow: identical ones are equal, otherwise both must be numbers.
func compare(a, b string) (int, bool) {
	number := func(s string) (*big.Int, bool) {
		if s == "" || s[0] == '0' || strings.Trim(s, "0123456789") != "" {
			return nil, false
		}
		return new(big.Int).SetString(s, 10)
	}
	if a == b && a != "" && a != "0" {
		return 0, true
	}
	x, okX := number(a)
	y, okY := number(b)
	if !okX || !okY {
		return 0, false
	}
	return x.Cmp(y), true
}

func atLeast(a, b string) bool { c, ok := compare(a, b); return ok && c >= 0 }
func less(a, b string) bool    { c, ok := compare(a, b); return ok && c < 0 }

func (m *model) note(w *modelWrite) *modelWrite {
	w.open, w.due = true, m.now.Add(m.ttl)
	w.Since = m.now
	m.writes = append(m.writes, w)
	m.emit("noted", "", w)
	return w
}

func (m *model) emit(what, detail string, w *modelWrite) {
	m.reported = append(m.reported, report{what: what, detail: detail, write: w.Write})
}

func (m *model) settle(w *modelWrite, by expectations.Evidence) {
	w.open = false
	m.reported = append(m.reported, report{what: "settled", detail: string(by), write: w.Write, age: m.now.Sub(w.Since)})
}

func (m *model) drop(w *modelWrite, why expectations.DropReason) {
	w.open = false
	m.emit("dropped", string(why), w)
}

func (m *model) trouble(w *modelWrite, p expectations.Problem) { m.emit("troubled", string(p), w) }

func (m *model) wake(o expectations.Owner) { m.woken = append(m.woken, o) }

// wakeIfIdle wakes the owner of a write just settled by the watch if it waits for nothing else.
func (m *model) wakeIfIdle(o expectations.Owner) {
	if !slices.ContainsFunc(m.writes, func(w *modelWrite) bool { return w.open && w.Owner == o }) {
		m.wake(o)
	}
}

func (m *model) confirm(w *modelWrite, reply *view) bool {
	switch {
	case !w.open && w.earlyUID != "" && reply != nil:
		early := w.earlyUID == reply.uid || atLeast(w.earlySeen, reply.version)
		w.earlyUID, w.earlySeen = "", ""
		if early {
			return true
		}
		*w = modelWrite{Write: w.Write, open: true, due: w.Since.Add(m.ttl), uid: reply.uid, needs: reply.version}
		// Among writes of one age it is the newest now.
		m.writes = append(slices.DeleteFunc(m.writes, func(other *modelWrite) bool { return other == w }), w)
		m.emit("noted", "", w)
		return false
	case !w.open:
		return true
	case reply == nil || w.Verb == expectations.Delete:
		return false
	}
	w.uid, w.needs = reply.uid, reply.version
	shown := atLeast(w.seen, w.needs)
	if w.seenUID == w.uid && w.uid != "" && (w.Verb == expectations.Create || w.seenGone) {
		shown = true
	}
	if w.Verb == expectations.Update && w.needs != "" && w.needs == w.base {
		shown = true
	}
	if shown {
		m.settle(w, expectations.ByReply)
		return true
	}
	_, ordered := compare(w.seen, w.needs)
	if w.Verb == expectations.Update && w.seen != "" && !ordered && w.problem != expectations.Incomparable {
		w.problem = expectations.Incomparable
		m.trouble(w, expectations.Incomparable)
		m.wake(w.Owner)
	}
	return false
}

func (m *model) exists(w *modelWrite) bool {
	if w.open && w.Verb == expectations.Create && w.uid == "" {
		w.exists = true
		if w.seenGone {
			m.settle(w, expectations.ByReply)
		}
	}
	return !w.open
}

// shows reports whether the cache shows the write by an object, or by its removal; maybe that this is undecidable.
func (w *modelWrite) shows(v view, removal bool) (shown, maybe bool) {
	ours := w.uid != "" && v.uid == w.uid
	needs := w.needs
	switch {
	case w.Verb == expectations.Delete && ours:
		return removal || v.terminating, false
	case w.Verb == expectations.Delete:
		if needs = w.base; needs == v.version {
			return false, false
		}
	case w.Verb == expectations.Create && w.uid == "" && w.needs == "":
		return !removal || w.exists, false
	case ours && (removal || w.Verb == expectations.Create):
		return true, false
	}
	if needs == "" {
		return false, false
	}
	_, ordered := compare(v.version, needs)
	return atLeast(v.version, needs), !ordered
}

func (m *model) seen(w *modelWrite, v *view) bool {
	if !w.open || v == nil {
		return !w.open
	}
	shown, _ := w.shows(*v, false)
	if w.seen == "" || less(w.seen, v.version) {
		w.seen = v.version
	}
	if shown {
		w.seenUID, w.seenGone = v.uid, false
		w.rememberEarly(*v)
		m.settle(w, expectations.ByCache)
	}
	return shown
}

func (w *modelWrite) rememberEarly(v view) {
	if w.Verb == expectations.Create && w.uid == "" {
		w.earlyUID, w.earlySeen = v.uid, v.version
	}
}

func (m *model) observe(ref expectations.Ref, v view, kind expectations.EventKind) {
	var owners []expectations.Owner
	for _, w := range m.writes {
		if !w.open || w.Ref != ref {
			continue
		}
		before := w.problem
		shown, maybe := false, false
		if kind == expectations.DeletedUnknown {
			w.problem = expectations.Tombstone
		} else {
			w.look(v, kind == expectations.Deleted)
			shown, maybe = w.shows(v, kind == expectations.Deleted)
		}
		if maybe {
			w.problem = expectations.Incomparable
		}
		switch {
		case shown:
			w.rememberEarly(v)
			m.settle(w, expectations.ByEvent)
			owners = append(owners, w.Owner)
		case w.problem != before:
			m.trouble(w, w.problem)
			m.wake(w.Owner)
		}
	}
	m.wakeIdle(owners)
}

// look records the object that an event showed.
func (w *modelWrite) look(v view, removal bool) {
	w.seenUID, w.seenGone = v.uid, removal
	if !less(v.version, w.seen) {
		w.seen = v.version
	}
	if w.Verb == expectations.Delete && v.uid == w.uid && !less(v.version, w.base) {
		w.base = v.version
	}
}

func (m *model) wakeIdle(owners []expectations.Owner) {
	for i, o := range owners {
		if !slices.Contains(owners[:i], o) {
			m.wakeIfIdle(o)
		}
	}
}

func (m *model) bookmark(gk schema.GroupKind, namespace, version string) {
	var owners []expectations.Owner
	for _, w := range m.writes {
		if !w.open || w.Ref.Kind != gk || (namespace != "" && w.Ref.Namespace != namespace) || w.Verb == expectations.Delete {
			continue
		}
		switch {
		case w.needs == "" && (w.seen == "" || less(w.seen, version)):
			w.seen = version
		case atLeast(version, w.needs):
			m.settle(w, expectations.ByBookmark)
			owners = append(owners, w.Owner)
		}
	}
	m.wakeIdle(owners)
}

func (m *model) cancel(w *modelWrite) {
	if w.open {
		m.drop(w, expectations.Cancelled)
	}
}

func (m *model) forget(matches func(expectations.Owner) bool) {
	for _, w := range m.writes {
		if w.open && matches(w.Owner) {
			m.drop(w, expectations.Forgotten)
		}
	}
}

func (m *model) outstanding() int {
	n := 0
	for _, w := range m.writes {
		if w.open {
			n++
		}
	}
	return n
}

// outlook is a pending write as a verdict reports it.
type outlook struct {
	ref         expectations.Ref
	verb        expectations.Verb
	since       time.Time
	needs, seen string
	problem     expectations.Problem
}

func (m *model) check(o expectations.Owner) (state expectations.State, deadline time.Time, pending []outlook, asked []*modelWrite) {
	for _, w := range m.byAge(o.Key) {
		if w.Owner.UID != o.UID {
			if !m.now.Before(w.Since.Add(m.ttl)) {
				m.drop(w, expectations.Succeeded)
			}
			continue
		}
		problem := w.problem
		if problem == expectations.NoProblem && !m.now.Before(w.due) {
			problem = expectations.Overdue
			if !w.overdueTold {
				w.overdueTold = true
				m.trouble(w, problem)
			}
		}
		needs := w.needs
		if w.Verb == expectations.Delete {
			needs = w.uid
		}
		asked = append(asked, w)
		pending = append(pending, outlook{w.Ref, w.Verb, w.Since, needs, w.seen, problem})
		if problem != expectations.NoProblem {
			state = expectations.Expired
		} else if state == expectations.Satisfied {
			state = expectations.Waiting
		}
		if deadline.IsZero() || w.due.Before(deadline) {
			deadline = w.due
		}
	}
	if state != expectations.Waiting {
		deadline = time.Time{}
	}
	return state, deadline, pending, asked
}

// byAge returns the open writes of a key, oldest first; of one age, in the order in which they were noted.
func (m *model) byAge(key types.NamespacedName) []*modelWrite {
	var out []*modelWrite
	for _, w := range m.writes {
		if w.open && w.Owner.Key == key {
			out = append(out, w)
		}
	}
	slices.SortStableFunc(out, func(a, b *modelWrite) int { return a.Since.Compare(b.Since) })
	return out
}
