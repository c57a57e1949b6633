// SPDX-License-Identifier: Apache-2.0

package explore

import (
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/virtloom/virtloom/expectations"
)

// noteKind is the kind of a note to a controller's expectations.
type noteKind uint8

const (
	noteExpect noteKind = iota
	noteConfirm
	noteRefuse
	noteExists
	noteSeen
	noteAnswer
	noteLook
	noteObserve
)

// note is one call of a controller's expectations. The memory of a
// process holds notes instead of a Tracker, because a Tracker cannot be copied; a
// Tracker that gets the same calls again, at the same times, is the
// same. Notes are dropped when nothing is outstanding, for then it is as good as
// new.
type note struct {
	kind  noteKind
	verb  verb
	event expectations.EventKind
	slot  slot
	uid   uint8
	base  uint16
	obj   *object
	at    int8
	// of is the number of the owner among the objects that had its name.
	of uint8
}

// outlook is what a controller's expectations say of an object.
type outlook struct {
	// open says that something is not seen yet, outdated that this is a change of the
	// owner of which more is known than that it was sent.
	open, outdated bool
	// creates and removes say that this is the creation, or the removal, of the guest.
	creates, removes bool
	// problems are the objects that must be read live, unseen all that are waited for, as
	// far as that is known.
	problems, unseen []slot
}

// gate is what a controller asks before it acts.
type gate interface {
	// reset forgets everything and turns to the writes made for the object.
	reset(owner slot)
	// take applies one note.
	take(n note)
	// check reports whether the cache has observed the writes.
	check(now time.Time) outlook
}

func ownerOf(s slot) expectations.Owner {
	return expectations.Owner{Key: types.NamespacedName{Namespace: namespace, Name: s.String()}, UID: fullUID(s, 1)}
}

// trackerGate is the real Tracker.
type trackerGate struct {
	tracker *expectations.Tracker
	token   expectations.Token
	now     time.Time
	owner   expectations.Owner
	kind    schema.GroupKind
}

func newTrackerGate() (*trackerGate, error) {
	g := &trackerGate{}
	t, err := expectations.New(expectations.Options{Now: func() time.Time { return g.now }, TTL: tick})
	if err != nil {
		return nil, fmt.Errorf("explore: %w", err)
	}
	g.tracker = t
	return g, nil
}

func (g *trackerGate) reset(owner slot) {
	g.owner, g.kind = ownerOf(owner), owner.kind()
	g.tracker.ForgetKey(g.owner.Key)
	g.token = expectations.Token{}
}

func (g *trackerGate) take(n note) {
	g.now = clockAt(n.at)
	switch n.kind {
	case noteExpect:
		g.expect(n)
	case noteConfirm:
		if n.obj == nil {
			g.tracker.Confirm(g.token, nil)
			return
		}
		g.tracker.Confirm(g.token, n.obj.meta())
	case noteExists:
		g.tracker.Exists(g.token)
	case noteSeen:
		g.tracker.Seen(g.token, n.obj.meta())
	case noteAnswer, noteLook:
		g.answer(n)
	case noteObserve:
		g.tracker.Observe(n.obj.slot.kind(), n.obj.meta(), n.event)
	}
}

func (g *trackerGate) expect(n note) {
	switch n.verb {
	case create:
		g.token = g.tracker.ExpectCreate(g.owner, n.slot.ref())
	case update:
		g.token = g.tracker.ExpectUpdate(g.owner, n.slot.ref(), version(n.base), "")
	case remove:
		g.token = g.tracker.ExpectDelete(g.owner, n.slot.ref(), fullUID(n.slot, n.uid), version(n.base))
	}
}

func (g *trackerGate) check(now time.Time) outlook {
	g.now = now
	v := g.tracker.Check(g.owner)
	out := outlook{open: !v.Satisfied()}
	for _, p := range v.Pending {
		out.unseen = append(out.unseen, slotOf(p.Name))
		out.creates = out.creates || p.Kind == vmiKind && p.Verb == expectations.Create
		out.removes = out.removes || p.Kind == vmiKind && p.Verb == expectations.Delete
		if p.Problem != expectations.NoProblem {
			out.problems = append(out.problems, slotOf(p.Name))
		} else if p.Kind == g.kind && p.Needs != "" {
			out.outdated = true
		}
	}
	return out
}

// answer feeds a live reading of an object back, or, after that, what the cache has.
func (g *trackerGate) answer(n note) {
	for _, p := range g.tracker.Check(g.owner).Pending {
		switch {
		case p.Ref != n.slot.ref():
		case n.kind == noteLook:
			g.tracker.Seen(p.Token(), n.obj.meta())
		case p.Problem == expectations.NoProblem:
		case n.obj == nil:
			g.tracker.Answer(p, nil)
		default:
			g.tracker.Answer(p, n.obj.meta())
		}
	}
}

// note adds a note about a write for the object to a controller's expectations.
func (m notebook) note(w *world, p int, owner slot, n note) {
	notes := &w.procs[p].notes[owner.owner()]
	if len(*notes) == 0 && n.kind != noteExpect {
		return // nothing is outstanding that this could be about
	}
	n.at = w.now
	if n.kind == noteRefuse {
		*notes = withoutLast(*notes, n.slot) // it is as if it had never been sent
	} else {
		*notes = append(slices.Clip(*notes), n)
	}
	if n.kind != noteExpect {
		m.settle(w, p, owner)
	}
}

// observe adds an event.
func (m notebook) observe(w *world, p int, n note) {
	for _, owner := range owners {
		about := slices.ContainsFunc(w.procs[p].notes[owner.owner()], func(e note) bool { return e.kind == noteExpect && e.slot == n.slot })
		if about {
			m.note(w, p, owner, n)
		}
	}
}

// turn drops the notes about what was written for an earlier object of the owner's name.
func (m notebook) turn(w *world, p int, owner slot) {
	notes, seen := &w.procs[p].notes[owner.owner()], w.procs[p].sees[owner]
	if seen != nil && len(*notes) > 0 && (*notes)[0].of != seen.uid {
		*notes = nil
	}
}

// check asks a controller's expectations.
func (m notebook) check(w *world, p int, owner slot) outlook {
	notes := w.procs[p].notes[owner.owner()]
	if len(notes) == 0 {
		return outlook{}
	}
	m.gate.reset(owner)
	for _, n := range notes {
		m.gate.take(n)
	}
	return m.gate.check(clockAt(w.now))
}

// settle drops notes about writes that the cache shows by now, unless an answer is
// awaited that may show more.
func (m notebook) settle(w *world, p int, owner slot) {
	pr := &w.procs[p]
	if d := &pr.doing; d.stage == asking && d.pass != nil && d.pass.owner == owner {
		return
	}
	switch o := m.check(w, p, owner); {
	case !o.open:
		pr.notes[owner.owner()] = nil
	case o.unseen != nil:
		pr.notes[owner.owner()] = slices.DeleteFunc(slices.Clone(pr.notes[owner.owner()]), func(n note) bool { return !slices.Contains(o.unseen, n.slot) })
	}
}

// withoutLast leaves out the last write to the object that was noted.
func withoutLast(notes []note, s slot) []note {
	for i, n := range slices.Backward(notes) {
		if n.kind == noteExpect && n.slot == s {
			return slices.Concat(notes[:i], notes[i+1:])
		}
	}
	return notes
}

// readLive reads what a controller waits for from the API server, and then from its cache.
func (m notebook) readLive(w *world, p int, owner slot, of []slot) {
	for _, s := range of {
		m.note(w, p, owner, note{kind: noteAnswer, slot: s, obj: w.api[s]})
		if seen := w.procs[p].sees[s]; seen != nil {
			m.note(w, p, owner, note{kind: noteLook, slot: s, obj: seen})
		}
	}
}

// seen feeds what the cache has of the object that was written, as after a write
// that may have caused no event.
func (m notebook) seen(w *world, p int, owner, s slot) {
	if o := w.procs[p].sees[s]; o != nil {
		m.note(w, p, owner, note{kind: noteSeen, slot: s, obj: o})
	}
}

// taken is for a creation that was refused because of an object in its place: that
// is what the cache has to show. If it is gone by now there is nothing to wait for.
func (m notebook) taken(w *world, p int, owner, s slot) {
	m.note(w, p, owner, note{kind: noteExists, slot: s})
	if live := w.api[s]; live != nil {
		m.note(w, p, owner, note{kind: noteConfirm, slot: s, obj: live})
		m.seen(w, p, owner, s)
		return
	}
	m.note(w, p, owner, note{kind: noteRefuse, slot: s})
}
