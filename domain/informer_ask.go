// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"context"
	"errors"
	"reflect"
)

// record is what an informer knows of one domain, and what it has yet to find out.
type record struct {
	state *State // nil: there is none
	fresh uint64 // number of the question that state is the answer to

	listed  *State // what the last listing said; nil: it was not in it
	listing uint64 // number of that listing

	asking bool   // a question is under way, or waits for a slot
	asked  uint64 // its number; zero while it waits
	hung   bool   // it takes long
	slow   bool   // the last one took long
	again  bool   // what it answers may be out of date
	owed   bool   // the last one was not answered
	hinted bool   // the answer is to be told even if it is what was known
	why    string // the last hint
	first  bool   // of the first listing, and not settled yet
}

// differs tells whether a listing says something else than what is known.
func differs(known, listed *State) bool {
	if known == nil || listed == nil {
		return known != listed
	}
	return known.UUID != listed.UUID || known.Status != listed.Status || known.Reason != listed.Reason
}

// hint asks about a domain that an event was about.
func (r *informing) hint(name, why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	rec := r.records[name]
	if rec == nil {
		rec = &record{}
		r.records[name] = rec
	}
	rec.hinted, rec.why = true, why
	r.lockedWant(name, rec)
}

// lockedCompare takes a listing in. It needs r.mu.
func (r *informing) lockedCompare(l listing) {
	for n := range l.states {
		rec := r.records[l.states[n].Name]
		if rec == nil {
			rec = &record{}
			r.records[l.states[n].Name] = rec
		}
		rec.listed, rec.listing = &l.states[n], l.seq
	}
	for name, rec := range r.records {
		if rec.listing != l.seq {
			rec.listed, rec.listing = nil, l.seq
		}
		if !r.listed && rec.fresh == 0 {
			rec.first = true
			r.unasked++
		}
		if rec.fresh <= l.seq { // what was asked after the listing knows better
			r.lockedDoubt(name, rec, l.whole)
		}
	}
	r.listed = true
}

// lockedDoubt asks about a domain of which the last listing says something else than
// what is known, or which is to be asked about anyway. It needs r.mu.
func (r *informing) lockedDoubt(name string, rec *record, anyway bool) {
	if anyway {
		rec.hinted, rec.why = true, string(Resync)
	}
	switch {
	case rec.hung:
		rec.again = rec.again || anyway
		r.lockedBelieve(name, rec)
	case anyway, !rec.asking && (rec.owed || differs(rec.state, rec.listed)):
		r.lockedWant(name, rec)
	case !rec.asking:
		r.lockedSettle(rec)
	}
}

// lockedWant sees to it that a question is asked from now on. It needs r.mu.
func (r *informing) lockedWant(name string, rec *record) {
	if rec.asking {
		rec.again = rec.asked != 0
		return
	}
	if r.ctx.Err() != nil {
		return
	}
	rec.asking, rec.again, rec.asked = true, false, 0
	// One that hung last time must not keep a slot from the others.
	free := rec.slow
	r.all.Go(func() { r.ask(name, rec, free) })
}

// ask asks about one domain.
func (r *informing) ask(name string, rec *record, free bool) {
	release := func() {}
	if !free {
		select {
		case r.slots <- struct{}{}:
			release = func() { <-r.slots }
		case <-r.ctx.Done():
			return
		}
	}
	r.mu.Lock()
	r.seq++
	rec.asked = r.seq
	r.mu.Unlock()

	answered := make(chan answer, 1)
	r.all.Go(func() {
		ctx, cancel := context.WithTimeout(r.ctx, r.Deadline)
		defer cancel()
		st, err := r.Hypervisor.Get(ctx, name)
		answered <- answer{st, err}
	})
	slow := r.Clock.NewTimer(patience)
	defer slow.Stop()
	select {
	case a := <-answered:
		release()
		r.answer(name, rec, a, false)
	case <-slow.C():
		release()
		r.mu.Lock()
		rec.hung = true
		r.lockedBelieve(name, rec)
		r.mu.Unlock()
		r.answer(name, rec, <-answered, true)
	}
}

// answer is what a hypervisor said of one domain.
type answer struct {
	state State
	err   error
}

// answer takes an answer in.
func (r *informing) answer(name string, rec *record, a answer, late bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ctx.Err() != nil {
		return
	}
	asked := rec.asked
	rec.asking, rec.hung, rec.slow, rec.owed = false, false, late, false
	switch {
	case a.err == nil:
		rec.fresh = asked
		r.lockedPublish(name, rec, &a.state)
	case errors.Is(a.err, ErrNotFound):
		rec.fresh = asked
		r.lockedPublish(name, rec, nil)
	case errors.Is(a.err, ErrDisconnected):
		// It says nothing about the domain, and all are asked about when the
		// connection is back.
		rec.owed = true
	default:
		rec.owed = true
		r.lockedBelieve(name, rec)
	}
	r.lockedSettle(rec)
	switch {
	case rec.again, rec.fresh == asked && rec.listing > asked && differs(rec.state, rec.listed):
		r.lockedWant(name, rec)
	case rec.state == nil && !rec.owed:
		delete(r.records, name)
	}
}

// lockedBelieve takes over what the last listing said of a domain that does not
// answer, unless what is known was asked for later. It needs r.mu.
func (r *informing) lockedBelieve(name string, rec *record) {
	defer r.lockedSettle(rec)
	listed := rec.listed
	if rec.listing <= rec.fresh {
		listed = rec.state
	}
	if listed == nil {
		if rec.state != nil {
			r.lockedPublish(name, rec, nil)
		}
		return
	}
	st := *listed
	if rec.state != nil && rec.state.UUID == listed.UUID {
		st = *rec.state
		st.Status, st.Reason = listed.Status, listed.Reason
	}
	if st.Stale.IsZero() {
		st.Stale = r.Clock.Now()
	}
	r.lockedPublish(name, rec, &st)
}

// lockedSettle notes that a domain of the first listing has been asked about. It
// needs r.mu.
func (r *informing) lockedSettle(rec *record) {
	if rec.first {
		rec.first = false
		r.unasked--
	}
}

// lockedPublish tells what is known from now on. It needs r.mu.
func (r *informing) lockedPublish(name string, rec *record, st *State) {
	if !rec.hinted && (st == rec.state || st != nil && rec.state != nil && reflect.DeepEqual(st, rec.state)) {
		return
	}
	c := Change{Name: name, Old: rec.state, New: st, Why: rec.why}
	rec.state, rec.hinted, rec.why = st, false, ""
	for w := range r.watchers {
		w.add(c)
	}
}
