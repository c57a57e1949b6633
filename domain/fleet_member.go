// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// member is a hypervisor of a fleet.
type member struct {
	Hypervisor
	name   string
	cancel context.CancelFunc // ends what follows it

	up bool // its watch goes on; needs Fleet.mu

	mu     sync.Mutex
	asked  uint64    // number of the last question
	known  *State    // the last answer; nil: there was no domain
	newest uint64    // number of the question that known answers; zero before the first
	silent time.Time // since when it owes an answer; zero if it does not
	owing  bool      // it took longer than patience and has not answered since
}

// errSilent is why nothing new is known of a member.
var errSilent = fmt.Errorf("no answer yet: %w", ErrTimeout)

// follow passes the member's hints on until it leaves.
func (f *Fleet) follow(ctx context.Context, m *member) {
	for {
		events, err := m.Watch(ctx)
		if err == nil {
			for e := range events {
				f.heard(m, e)
			}
			err = fmt.Errorf("the hypervisor of %s tells nothing any more: %w", m.name, ErrDisconnected)
		}
		if ctx.Err() != nil {
			return
		}
		f.turn(m, false, err)
		t := f.clock().NewTimer(retry)
		select {
		case <-t.C():
		case <-ctx.Done():
			t.Stop()
			return
		}
	}
}

// heard passes one hint on.
func (f *Fleet) heard(m *member, e Event) {
	switch e.Kind {
	case Changed:
		if e.Domain == m.name {
			f.hints.Tell(e)
		}
	case Resync:
		f.turn(m, true, nil)
	case Lost:
		f.turn(m, false, e.Err)
	}
}

// turn notes whether a member can be heard.
func (f *Fleet) turn(m *member, up bool, why error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.members[m.name] != m {
		return
	}
	m.up = up
	if !f.lockedBalance(why) {
		cause := "Lost"
		if up {
			cause = string(Resync)
		}
		f.hints.Tell(Event{Kind: Changed, Domain: m.name, Why: cause})
	}
}

// lockedBalance tells watchers when the last member was lost, or one is back. It needs
// f.mu.
func (f *Fleet) lockedBalance(why error) bool {
	up := 0
	for _, m := range f.members {
		if m.up {
			up++
		}
	}
	lost := up == 0 && len(f.members) > 0 && (f.lost || why != nil)
	if lost == f.lost {
		return false
	}
	f.lost = lost
	if lost {
		f.hints.Tell(Event{Kind: Lost, Err: why})
	} else {
		f.hints.Tell(Event{Kind: Resync})
	}
	return true
}

// List implements Hypervisor.
func (f *Fleet) List(ctx context.Context) ([]State, error) {
	if err := spent(ctx, "list"); err != nil {
		return nil, err
	}
	all := f.sorted()
	states, errs := make([]*State, len(all)), make([]error, len(all))
	var asked sync.WaitGroup
	for i, m := range all {
		asked.Go(func() { states[i], errs[i] = f.list(ctx, m) })
	}
	asked.Wait()
	if err := spent(ctx, "list"); err != nil {
		return nil, err
	}
	if err := unanimous(errs); err != nil {
		return nil, err
	}
	var out []State
	for _, st := range states {
		if st != nil {
			out = append(out, *st)
		}
	}
	return out, nil
}

// unanimous is why nobody has answered; nil if somebody has, or nobody was asked.
func unanimous(errs []error) error {
	if slices.Contains(errs, nil) {
		return nil
	}
	return errors.Join(errs...)
}

// list asks one member for its domain. What was known is returned with the error.
func (f *Fleet) list(ctx context.Context, m *member) (*State, error) {
	m.mu.Lock()
	if m.owing {
		defer m.mu.Unlock()
		return m.lockedKnown(), errSilent
	}
	m.asked++
	n := m.asked
	m.mu.Unlock()
	answered := make(chan error, 1)
	// The question goes on when nobody waits for it any more: its answer ends the
	// silence.
	question, cancel := context.WithTimeout(context.WithoutCancel(ctx), DefaultDeadline)
	go func() {
		defer cancel()
		states, err := m.Hypervisor.List(question)
		if f.answer(m, n, states, err) {
			f.hints.Tell(Event{Kind: Changed, Domain: m.name, Why: "Answered"})
		}
		answered <- err
	}()
	err := f.await(ctx, m, answered)
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.lockedKnown(), err
}

// await waits for an answer, but not for ever.
func (f *Fleet) await(ctx context.Context, m *member, answered <-chan error) error {
	patience := f.Patience
	if patience <= 0 {
		patience = DefaultPatience
	}
	t := f.clock().NewTimer(patience)
	defer t.Stop()
	select {
	case err := <-answered:
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C():
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	select {
	case err := <-answered: // at the last moment
		return err
	default:
	}
	m.owing = true
	if m.silent.IsZero() {
		m.silent = f.clock().Now()
	}
	return errSilent
}

// answer notes what a member has said, and tells whether it comes unexpectedly.
func (f *Fleet) answer(m *member, n uint64, states []State, err error) (late bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	late, m.owing = m.owing, false
	if err != nil {
		if m.silent.IsZero() {
			m.silent = f.clock().Now()
		}
		return late
	}
	if n < m.newest {
		return late
	}
	m.newest, m.known, m.silent = n, nil, time.Time{}
	for _, st := range states {
		if st.Name == m.name {
			m.known = &st // and not what else it was told with
		}
	}
	return late
}

// lockedKnown is what is known of the member's domain: of one that has never answered,
// that there may be one. It needs m.mu.
func (m *member) lockedKnown() *State {
	if m.newest == 0 {
		return &State{Name: m.name, Status: StatusNoState, Reason: ReasonUnknown, Stale: m.silent}
	}
	if m.known == nil {
		return nil
	}
	st := *m.known
	st.Stale = m.silent
	return &st
}
