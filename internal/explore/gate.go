// SPDX-License-Identifier: Apache-2.0

package explore

import (
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/virtloom/virtloom/expectations"
)

// noteKind says what a controller's expectations are told.
type noteKind uint8

const (
	noteExpect noteKind = iota
	noteConfirm
	noteRefuse
	noteExists
	noteSeen
	noteAnswer
	noteObserve
)

// note is one thing that a controller's expectations were told. The memory of a
// process holds notes instead of a Tracker, because a Tracker cannot be copied; a
// Tracker that is told them again, at the times at which they were told, is the
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
}

// gate is what a controller asks before it acts. There is at most one write
// outstanding, for the controllers here do one thing at a time.
type gate interface {
	// reset forgets everything.
	reset()
	// take is told one thing.
	take(n note)
	// check tells whether the cache shows the write.
	check(now time.Time) expectations.State
}

var owner = expectations.Owner{Key: types.NamespacedName{Namespace: namespace, Name: slotVMI.String()}, UID: "vmi-1"}

// trackerGate is the real Tracker.
type trackerGate struct {
	tracker *expectations.Tracker
	token   expectations.Token
	now     time.Time
	// credulous makes a tombstone a deletion: the planted bug.
	credulous bool
}

func newTrackerGate(credulous bool) (*trackerGate, error) {
	g := &trackerGate{credulous: credulous}
	t, err := expectations.New(expectations.Options{Now: func() time.Time { return g.now }, TTL: tick})
	if err != nil {
		return nil, fmt.Errorf("explore: %w", err)
	}
	g.tracker = t
	return g, nil
}

func (g *trackerGate) reset() {
	g.tracker.ForgetKey(owner.Key)
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
	case noteRefuse:
		g.tracker.Cancel(g.token)
	case noteExists:
		g.tracker.Exists(g.token)
	case noteSeen:
		g.tracker.Seen(g.token, n.obj.meta())
	case noteAnswer:
		g.answer(n.obj)
	case noteObserve:
		event := n.event
		if g.credulous && event == expectations.DeletedUnknown {
			event = expectations.Deleted
		}
		g.tracker.Observe(n.obj.slot.kind(), n.obj.meta(), event)
	}
}

func (g *trackerGate) expect(n note) {
	switch n.verb {
	case create:
		g.token = g.tracker.ExpectCreate(owner, n.slot.ref())
	case update:
		g.token = g.tracker.ExpectUpdate(owner, n.slot.ref(), version(n.base), "")
	case remove:
		g.token = g.tracker.ExpectDelete(owner, n.slot.ref(), fullUID(n.slot, n.uid), version(n.base))
	}
}

func (g *trackerGate) check(now time.Time) expectations.State {
	g.now = now
	return g.tracker.Check(owner).State
}

// answer feeds a live reading back.
func (g *trackerGate) answer(live *object) {
	for _, p := range g.tracker.Check(owner).Pending {
		if live == nil {
			g.tracker.Answer(p, nil)
		} else {
			g.tracker.Answer(p, live.meta())
		}
	}
}

// note tells a controller's expectations something.
func (m *machine) note(w *world, p int, n note) {
	pr := &w.procs[p]
	if n.kind == noteExpect {
		pr.notes = nil
	} else if len(pr.notes) == 0 || n.kind == noteObserve && n.obj.slot != pr.notes[0].slot {
		return // nothing is outstanding that this could be about
	}
	n.at = w.now
	pr.notes = append(slices.Clip(pr.notes), n)
	if pr.doing.stage != asking && n.kind != noteExpect && m.check(w, p) == expectations.Satisfied {
		pr.notes = nil
	}
}

// check asks a controller's expectations.
func (m *machine) check(w *world, p int) expectations.State {
	notes := w.procs[p].notes
	if len(notes) == 0 {
		return expectations.Satisfied
	}
	m.gate.reset()
	for _, n := range notes {
		m.gate.take(n)
	}
	return m.gate.check(clockAt(w.now))
}

// readLive reads what a controller waits for from the API server.
func (m *machine) readLive(w *world, p int) {
	m.note(w, p, note{kind: noteAnswer, obj: w.api[w.procs[p].notes[0].slot]})
}

// seen feeds what the cache has of the object that was written, as after a write
// that may have caused no event.
func (m *machine) seen(w *world, p int) {
	pr := &w.procs[p]
	if len(pr.notes) == 0 {
		return
	}
	if o := pr.sees[pr.notes[0].slot]; o != nil {
		m.note(w, p, note{kind: noteSeen, obj: o})
	}
}

// taken is for a creation that was refused because of an object in its place: that
// is what the cache has to show. If it is gone by now there is nothing to wait for.
func (m *machine) taken(w *world, p int, s slot) {
	m.note(w, p, note{kind: noteExists})
	if live := w.api[s]; live != nil {
		m.note(w, p, note{kind: noteConfirm, obj: live})
		m.seen(w, p)
		return
	}
	m.note(w, p, note{kind: noteRefuse})
}
