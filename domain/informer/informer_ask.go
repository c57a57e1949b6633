// SPDX-License-Identifier: Apache-2.0

package informer

import (
	"context"
	"errors"
	"reflect"

	"github.com/virtloom/virtloom/domain"
)

// record is the cache entry of one domain, with the state of the calls about it.
type record struct {
	state *domain.State // nil: there is none
	fresh uint64        // number of the call that returned state

	listed  *domain.State // the domain in the last listing; nil: it was absent
	listing uint64        // number of that listing

	asking bool   // a call is in progress, or waits for a slot
	asked  uint64 // its number; zero while it waits
	hung   bool   // it has exceeded the patience
	slow   bool   // the last one did
	again  bool   // its answer may be out of date
	owed   bool   // the last one failed
	hinted bool   // the answer is published even if it equals state
	why    string // the last hint
	first  bool   // of the first listing, and not settled yet
}

// differs reports whether a listing contradicts the cached state.
func differs(known, listed *domain.State) bool {
	if known == nil || listed == nil {
		return known != listed
	}
	return known.UUID != listed.UUID || known.Status != listed.Status || known.Reason != listed.Reason
}

// hint reads a domain again because of an event.
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

// lockedCompare compares a listing with the cache. The caller holds r.mu.
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
		if rec.fresh <= l.seq { // an answer from after the listing is newer
			r.lockedDoubt(name, rec, l.whole)
		}
	}
	r.listed = true
}

// lockedDoubt reads a domain whose cached state the last listing contradicts, or in any
// case if anyway is set. The caller holds r.mu.
func (r *informing) lockedDoubt(name string, rec *record, anyway bool) {
	if anyway {
		rec.hinted, rec.why = true, string(domain.Resync)
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

// lockedWant ensures that a call about the domain is made from now on. The caller holds
// r.mu.
func (r *informing) lockedWant(name string, rec *record) {
	if rec.asking {
		rec.again = rec.asked != 0
		return
	}
	if r.ctx.Err() != nil {
		return
	}
	rec.asking, rec.again, rec.asked = true, false, 0
	// A domain that was slow last time must not occupy a slot.
	free := rec.slow
	r.all.Go(func() { r.ask(name, rec, free) })
}

// ask reads one domain. With free it needs no slot.
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

// answer is the result of a call about one domain.
type answer struct {
	state domain.State
	err   error
}

// answer processes an answer.
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
	case errors.Is(a.err, domain.ErrNotFound):
		rec.fresh = asked
		r.lockedPublish(name, rec, nil)
	case errors.Is(a.err, domain.ErrDisconnected):
		// No evidence about the domain; all are read when the connection is back. That a hint is not answered is published.
		rec.owed = true
		if rec.hinted {
			r.lockedBelieve(name, rec)
		}
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

// lockedBelieve takes the status of an unresponsive domain from the last listing, unless the
// cached state is newer, and marks it as stale. The caller holds r.mu.
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

// lockedSettle records that a domain of the first listing has been read. The caller holds
// r.mu.
func (r *informing) lockedSettle(rec *record) {
	if rec.first {
		rec.first = false
		r.unasked--
	}
}

// lockedPublish stores a state and notifies the watchers of the change. The caller holds
// r.mu.
func (r *informing) lockedPublish(name string, rec *record, st *domain.State) {
	if !rec.hinted && (st == rec.state || st != nil && rec.state != nil && reflect.DeepEqual(st, rec.state)) {
		return
	}
	c := Change{Name: name, Old: rec.state, New: st, Why: rec.why}
	rec.state, rec.hinted, rec.why = st, false, ""
	for w := range r.watchers {
		w.add(c)
	}
}
