// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/informer"
)

// member is a hypervisor of a fleet.
type member struct {
	domain.Hypervisor
	fleet  *Fleet
	name   string
	cancel context.CancelFunc // ends the goroutine that follows it

	up bool // its watch is open; guarded by roster.mu

	mu     sync.Mutex
	asked  uint64        // number of the last call
	known  *domain.State // the last answer; nil: there was no domain
	newest uint64        // number of the call that known answers; zero before the first
	silent time.Time     // since when an answer is outstanding; zero if none is
	owing  bool          // a call has exceeded the patience and is not answered yet
}

// errSilent is the error of a call to an unresponsive member.
var errSilent = fmt.Errorf("hypervisor is unresponsive: %w", domain.ErrTimeout)

// reconnectEvery is the interval at which a lost watch of a member is opened again.
const reconnectEvery = time.Second

// follow forwards the member's events until it leaves.
func (m *member) follow(ctx context.Context) {
	for {
		events, err := m.Watch(ctx)
		if err == nil {
			for e := range events {
				m.forward(e)
			}
			err = fmt.Errorf("watch of the hypervisor of %s has ended: %w", m.name, domain.ErrDisconnected)
		}
		if ctx.Err() != nil {
			return
		}
		m.setUp(false, err)
		t := m.clock().NewTimer(reconnectEvery)
		select {
		case <-t.C():
		case <-ctx.Done():
			t.Stop()
			return
		}
	}
}

// forward sends one event of a member to the watchers.
func (m *member) forward(e domain.Event) {
	switch e.Kind {
	case domain.Changed:
		if e.Domain == m.name {
			m.fleet.hints.Tell(e)
		}
	case domain.Resync:
		m.setUp(true, nil)
	case domain.Lost:
		m.setUp(false, e.Err)
	}
}

// setUp records whether the watch of a member is open, with the cause if it is not.
func (m *member) setUp(up bool, why error) {
	f := m.fleet
	f.roster.mu.Lock()
	defer f.roster.mu.Unlock()
	if f.roster.members[m.name] != m {
		return
	}
	m.up = up
	told := f.roster.lockedBalance(&f.hints, why)
	switch {
	case !up: // that the whole fleet is lost says nothing about each domain
		f.hints.Tell(domain.Event{Kind: domain.Changed, Domain: m.name, Why: "Lost"})
	case !told:
		f.hints.Tell(domain.Event{Kind: domain.Changed, Domain: m.name, Why: string(domain.Resync)})
	}
}

// List implements Hypervisor.
func (f *Fleet) List(ctx context.Context) ([]domain.State, error) {
	if err := spent(ctx, "list"); err != nil {
		return nil, err
	}
	all := f.roster.sorted()
	states, errs := make([]*domain.State, len(all)), make([]error, len(all))
	var asked sync.WaitGroup
	for i, m := range all {
		asked.Go(func() { states[i], errs[i] = m.list(ctx) })
	}
	asked.Wait()
	if err := spent(ctx, "list"); err != nil {
		return nil, err
	}
	if err := unanimous(errs); err != nil {
		return nil, err
	}
	var out []domain.State
	for _, st := range states {
		if st != nil {
			out = append(out, *st)
		}
	}
	return out, nil
}

// unanimous joins the errors if no member has answered; nil if one has, or there are none.
func unanimous(errs []error) error {
	if slices.Contains(errs, nil) {
		return nil
	}
	return errors.Join(errs...)
}

// list asks one member for its domain. With an error it returns the last known state.
func (m *member) list(ctx context.Context) (*domain.State, error) {
	m.mu.Lock()
	if m.owing {
		defer m.mu.Unlock()
		return m.lockedKnown(), errSilent
	}
	m.asked++
	n := m.asked
	m.mu.Unlock()
	answered := make(chan error, 1)
	// The call goes on when its caller has stopped waiting: a late answer ends the silence.
	question, cancel := context.WithTimeout(context.WithoutCancel(ctx), informer.DefaultDeadline)
	go func() {
		defer cancel()
		states, err := m.Hypervisor.List(question)
		if m.answer(n, states, err) {
			m.fleet.hints.Tell(domain.Event{Kind: domain.Changed, Domain: m.name, Why: "Answered"})
		}
		answered <- err
	}()
	err := m.await(ctx, answered)
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.lockedKnown(), err
}

// await waits for an answer for the patience of the fleet, then marks the member as owing.
func (m *member) await(ctx context.Context, answered <-chan error) error {
	patience := m.fleet.Patience
	if patience <= 0 {
		patience = DefaultPatience
	}
	t := m.clock().NewTimer(patience)
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
		m.silent = m.clock().Now()
	}
	return errSilent
}

// answer records the answer of a member, and reports whether it is late: no caller waits.
func (m *member) answer(n uint64, states []domain.State, err error) (late bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	late, m.owing = m.owing, false
	if err != nil {
		if m.silent.IsZero() {
			m.silent = m.clock().Now()
		}
		return late
	}
	if n < m.newest {
		return late
	}
	m.newest, m.known, m.silent = n, nil, time.Time{}
	for _, st := range states {
		if st.Name == m.name {
			m.known = &st // its own domain only
		}
	}
	return late
}

func (m *member) clock() clock.Clock {
	if m.fleet.Clock == nil {
		return clock.RealClock{}
	}
	return m.fleet.Clock
}

// lockedKnown returns the last known state of the member's domain; NoState if it has never
// answered, since there may be one. The caller holds m.mu.
func (m *member) lockedKnown() *domain.State {
	if m.newest == 0 {
		return &domain.State{Name: m.name, Status: domain.StatusNoState, Reason: domain.ReasonUnknown, Stale: m.silent}
	}
	if m.known == nil {
		return nil
	}
	st := *m.known
	st.Stale = m.silent
	return &st
}
