// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	utilclock "k8s.io/utils/clock"
)

// DefaultPatience is how long a [Fleet] waits for one of its members where it asks all.
const DefaultPatience = 2 * time.Second

// Fleet is many hypervisors, each of which runs one guest, as one [Hypervisor] with all
// abilities. What is about a guest goes to its member, found by the domain's name; an
// ability that a member lacks is [ErrUnsupported]. Without a member, a guest cannot be
// started yet ([ErrNotReady]) and is not found ([ErrNotFound]); as nobody was asked, that is
// no evidence that it does not run ([ErrNoHypervisor]).
//
// A member speaks for its guest only: what it says of others is left out.
//
// Members come and go at any time. One that does not answer is not one whose guest is
// gone: List goes on to return what was known of it, as [State].Stale says, or an error
// once nobody answers. Only [Fleet.Leave] makes a guest disappear. Watchers are told of
// Changed when a single member is lost or back, so that its guest is looked at, and of
// Lost and Resync when the last one was lost and the first is back.
//
// Fields are set before the first call and not changed afterwards. Close ends it.
type Fleet struct {
	// Node describes the node where no guest is meant: Host and MemoryModel. Guests
	// that it runs are not the fleet's. Default: any member does.
	Node Hypervisor
	// Patience is how long List and Stats wait for one member; DefaultPatience if
	// zero. They do not wait at all for one that owes them an answer already.
	Patience time.Duration
	// Clock measures; the real one if nil.
	Clock utilclock.Clock

	hints Hints

	mu      sync.Mutex
	members map[string]*member
	lost    bool // watchers were told that nobody answers
	closed  bool
	all     sync.WaitGroup // what follows members
}

var (
	_ Hypervisor       = (*Fleet)(nil)
	_ Migrator         = (*Fleet)(nil)
	_ PostCopier       = (*Fleet)(nil)
	_ MigrationTuner   = (*Fleet)(nil)
	_ SocketMigrator   = (*Fleet)(nil)
	_ GuestAgent       = (*Fleet)(nil)
	_ StatsReader      = (*Fleet)(nil)
	_ Snapshotter      = (*Fleet)(nil)
	_ ConsoleOpener    = (*Fleet)(nil)
	_ MemoryHotplugger = (*Fleet)(nil)
)

// Join makes h the hypervisor of the domain of that name, instead of the one that was.
// Values of the context are kept, its end does not count.
func (f *Fleet) Join(ctx context.Context, name string, h Hypervisor) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	m := &member{name: name, Hypervisor: h, cancel: cancel}
	f.mu.Lock()
	if f.closed {
		f.mu.Unlock()
		cancel()
		return
	}
	if old := f.members[name]; old != nil {
		old.cancel()
	}
	if f.members == nil {
		f.members = map[string]*member{}
	}
	f.members[name] = m
	m.silent = f.clock().Now()
	f.all.Go(func() { f.follow(ctx, m) })
	f.mu.Unlock()
	f.hints.Tell(Event{Kind: Changed, Domain: name, Why: "Joined"})
}

// Leave makes the guest of that name one of which nothing is known ([ErrNoHypervisor]).
// Unknown: nothing happens.
func (f *Fleet) Leave(name string) {
	f.mu.Lock()
	m := f.members[name]
	delete(f.members, name)
	f.mu.Unlock()
	if m == nil {
		return
	}
	m.cancel()
	f.hints.Tell(Event{Kind: Changed, Domain: name, Why: "Left"})
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lockedBalance(nil)
}

// Member returns the hypervisor of the domain of that name; false if there is none.
func (f *Fleet) Member(name string) (Hypervisor, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	m := f.members[name]
	if m == nil {
		return nil, false
	}
	return m.Hypervisor, true
}

// Close ends all watches. Members stay what they are.
func (f *Fleet) Close() error {
	f.mu.Lock()
	f.closed = true
	for _, m := range f.members {
		m.cancel()
	}
	f.mu.Unlock()
	f.all.Wait()
	f.hints.Close()
	return nil
}

func (f *Fleet) clock() utilclock.Clock {
	if f.Clock == nil {
		return utilclock.RealClock{}
	}
	return f.Clock
}

// sorted returns the members by name.
func (f *Fleet) sorted() []*member {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.SortedFunc(maps.Values(f.members), func(a, b *member) int { return cmp.Compare(a.name, b.name) })
}

// Host implements Hypervisor. Without Node it is what the first member that answers
// says; without any it is ErrNotReady.
func (f *Fleet) Host(ctx context.Context) (Host, error) {
	return first(ctx, f, "host", func(h Hypervisor) (Host, error) { return h.Host(ctx) })
}

// MemoryModel implements MemoryHotplugger, like Host.
func (f *Fleet) MemoryModel(ctx context.Context, arch string) (MemoryModel, error) {
	return first(ctx, f, "memory model", func(h Hypervisor) (MemoryModel, error) {
		m, able := h.(MemoryHotplugger)
		if !able {
			return "", fmt.Errorf("memory model: %w", ErrUnsupported)
		}
		return m.MemoryModel(ctx, arch)
	})
}

// first is what Node says, or the first member that says anything.
func first[T any](ctx context.Context, f *Fleet, what string, ask func(Hypervisor) (T, error)) (T, error) {
	var none T
	if err := spent(ctx, what); err != nil {
		return none, err
	}
	if f.Node != nil {
		return ask(f.Node)
	}
	var errs []error
	for _, m := range f.sorted() {
		out, err := ask(m)
		if err == nil {
			return out, nil
		}
		errs = append(errs, err)
	}
	if errs == nil {
		return none, fmt.Errorf("%s: no guest has a hypervisor here: %w", what, ErrNotReady)
	}
	return none, errors.Join(errs...)
}

// Get implements Hypervisor.
func (f *Fleet) Get(ctx context.Context, name string) (State, error) {
	h, err := reach[Hypervisor](ctx, f, "get", name)
	if err != nil {
		return State{}, err
	}
	st, err := h.Get(ctx, name)
	if err == nil && st.Name != name {
		return State{}, fmt.Errorf("get %s: its hypervisor answers about %q", name, st.Name)
	}
	return st, err
}

// Apply implements Hypervisor.
func (f *Fleet) Apply(ctx context.Context, op Operation) error {
	if err := op.Validate(); err != nil {
		return err
	}
	h, err := reach[Hypervisor](ctx, f, string(op.Verb), op.Domain)
	switch {
	case err == nil:
		return h.Apply(ctx, op)
	case !errors.Is(err, ErrNotFound):
		return err
	case op.Verb == Start:
		return fmt.Errorf("%s: its hypervisor is not there yet: %w", op, ErrNotReady)
	case op.Verb == Destroy, op.Verb == Undefine:
		return nil
	}
	return err
}

// Watch implements Hypervisor.
func (f *Fleet) Watch(ctx context.Context) (<-chan Event, error) {
	if err := spent(ctx, "watch"); err != nil {
		return nil, err
	}
	return f.hints.Watch(ctx), nil
}

// reach finds an ability of the member for a domain.
func reach[A any](ctx context.Context, f *Fleet, what, name string) (A, error) {
	var none A
	if err := spent(ctx, what+" "+name); err != nil {
		return none, err
	}
	h, found := f.Member(name)
	if !found {
		return none, fmt.Errorf("%s %s: %w: %w", what, name, ErrNoHypervisor, ErrNotFound)
	}
	a, able := h.(A)
	if !able {
		return none, fmt.Errorf("%s %s: its hypervisor cannot do it: %w", what, name, ErrUnsupported)
	}
	return a, nil
}

// spent is the error of a call whose context has ended; nil while it has not.
func spent(ctx context.Context, what string) error {
	err := ctx.Err()
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("%w: %w", ErrTimeout, err)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}
