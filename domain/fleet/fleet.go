// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/utils/clock"

	"github.com/virtloom/virtloom/domain"
)

// DefaultPatience is how long a [Fleet] waits for each member in a call to all of them.
const DefaultPatience = 2 * time.Second

// Fleet presents many hypervisors, each of which runs one domain, as one
// [domain.Hypervisor] with all abilities. Calls about a domain go to its member, found by the
// domain's name; an ability that a member lacks is [domain.ErrUnsupported]. Without a member,
// Start is [domain.ErrNotReady] and other calls are [domain.ErrNotFound]; since no hypervisor
// was asked, that error wraps [domain.ErrNoHypervisor] and is no evidence that the domain does
// not run.
//
// A member is trusted about its own domain only: other domains in its answers are dropped.
//
// Members join and leave at any time. An unresponsive member does not mean that its domain is
// gone: List still returns the last known state, with [domain.State].Stale set, or an error
// once no member answers. Only [Fleet.Leave] removes a domain. Watchers receive Changed when a
// single member is lost or back, so that its domain is read again, Lost when the last one is
// lost, and Resync when the first one is back.
//
// Fields are set before the first call and not changed afterwards. Methods are safe for
// concurrent use. Close ends it.
type Fleet struct {
	// Node answers the calls that are about no domain: Host and MemoryModel. Its domains
	// are not part of the fleet. Default: any member answers them.
	Node domain.Hypervisor
	// Patience is how long List and Stats wait for one member; DefaultPatience if zero.
	// List does not wait for a member whose last answer is still outstanding.
	Patience time.Duration
	// Clock measures; the real one if nil.
	Clock clock.Clock

	hints  domain.Hints
	roster roster
}

var (
	_ domain.Hypervisor       = (*Fleet)(nil)
	_ domain.Migrator         = (*Fleet)(nil)
	_ domain.PostCopier       = (*Fleet)(nil)
	_ domain.MigrationTuner   = (*Fleet)(nil)
	_ domain.SocketMigrator   = (*Fleet)(nil)
	_ domain.GuestAgent       = (*Fleet)(nil)
	_ domain.StatsReader      = (*Fleet)(nil)
	_ domain.Snapshotter      = (*Fleet)(nil)
	_ domain.ConsoleOpener    = (*Fleet)(nil)
	_ domain.MemoryHotplugger = (*Fleet)(nil)
	_ domain.HostOfDomain     = (*Fleet)(nil)
)

// Join makes h the hypervisor of the domain of that name, instead of an earlier one. The
// member keeps the values of the context, but not its end.
func (f *Fleet) Join(ctx context.Context, name string, h domain.Hypervisor) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	m := &member{fleet: f, name: name, Hypervisor: h, cancel: cancel}
	if !f.roster.add(ctx, m) {
		cancel()
		return
	}
	f.hints.Tell(domain.Event{Kind: domain.Changed, Domain: name, Why: "Joined"})
}

// Leave removes the member of the domain of that name, which is [domain.ErrNoHypervisor] from
// then on. Without a member it does nothing.
func (f *Fleet) Leave(name string) {
	m := f.roster.remove(name)
	if m == nil {
		return
	}
	m.cancel()
	f.hints.Tell(domain.Event{Kind: domain.Changed, Domain: name, Why: "Left"})
	f.roster.mu.Lock()
	defer f.roster.mu.Unlock()
	f.roster.lockedBalance(&f.hints, nil)
}

// Member returns the hypervisor of the domain of that name; false if there is none.
func (f *Fleet) Member(name string) (domain.Hypervisor, bool) {
	m := f.roster.get(name)
	if m == nil {
		return nil, false
	}
	return m.Hypervisor, true
}

// Close ends all watches. It does not close the members.
func (f *Fleet) Close() error {
	f.roster.close()
	f.hints.Close()
	return nil
}

// Host implements Hypervisor. Without Node it returns the answer of the first member that
// answers; without members it is ErrNotReady.
func (f *Fleet) Host(ctx context.Context) (domain.Host, error) {
	return first(ctx, f, "host", func(h domain.Hypervisor) (domain.Host, error) { return h.Host(ctx) })
}

// HostOf implements HostOfDomain: the answer is the member's, never that of Node.
func (f *Fleet) HostOf(ctx context.Context, name string) (domain.Host, error) {
	h, err := reach[domain.Hypervisor](ctx, f, "host of", name)
	if err != nil {
		return domain.Host{}, err
	}
	return h.Host(ctx)
}

// MemoryModel implements MemoryHotplugger, like Host.
func (f *Fleet) MemoryModel(ctx context.Context, arch string) (domain.MemoryModel, error) {
	return first(ctx, f, "memory model", func(h domain.Hypervisor) (domain.MemoryModel, error) {
		m, able := h.(domain.MemoryHotplugger)
		if !able {
			return "", fmt.Errorf("memory model: %w", domain.ErrUnsupported)
		}
		return m.MemoryModel(ctx, arch)
	})
}

// first returns the answer of Node, or of the first member that answers.
func first[T any](ctx context.Context, f *Fleet, what string, ask func(domain.Hypervisor) (T, error)) (T, error) {
	var none T
	if err := spent(ctx, what); err != nil {
		return none, err
	}
	if f.Node != nil {
		return ask(f.Node)
	}
	var errs []error
	for _, m := range f.roster.sorted() {
		out, err := ask(m)
		if err == nil {
			return out, nil
		}
		errs = append(errs, err)
	}
	if errs == nil {
		return none, fmt.Errorf("%s: no hypervisor has joined: %w", what, domain.ErrNotReady)
	}
	return none, errors.Join(errs...)
}

// Get implements Hypervisor.
func (f *Fleet) Get(ctx context.Context, name string) (domain.State, error) {
	h, err := reach[domain.Hypervisor](ctx, f, "get", name)
	if err != nil {
		return domain.State{}, err
	}
	st, err := h.Get(ctx, name)
	if err == nil && st.Name != name {
		return domain.State{}, fmt.Errorf("get %s: hypervisor returned domain %q", name, st.Name)
	}
	return st, err
}

// Apply implements Hypervisor.
func (f *Fleet) Apply(ctx context.Context, op domain.Operation) error {
	if err := op.Validate(); err != nil {
		return err
	}
	h, err := reach[domain.Hypervisor](ctx, f, string(op.Verb), op.Domain)
	switch {
	case err == nil:
		return h.Apply(ctx, op)
	case !errors.Is(err, domain.ErrNotFound):
		return err
	case op.Verb == domain.Start:
		return fmt.Errorf("%s: its hypervisor has not joined: %w", op, domain.ErrNotReady)
	case op.Verb == domain.Destroy, op.Verb == domain.Undefine:
		return nil
	}
	return err
}

// Watch implements Hypervisor.
func (f *Fleet) Watch(ctx context.Context) (<-chan domain.Event, error) {
	if err := spent(ctx, "watch"); err != nil {
		return nil, err
	}
	return f.hints.Watch(ctx), nil
}

// reach returns an ability of the member for a domain.
func reach[A any](ctx context.Context, f *Fleet, what, name string) (A, error) {
	var none A
	if err := spent(ctx, what+" "+name); err != nil {
		return none, err
	}
	h, found := f.Member(name)
	if !found {
		return none, fmt.Errorf("%s %s: %w: %w", what, name, domain.ErrNoHypervisor, domain.ErrNotFound)
	}
	a, able := h.(A)
	if !able {
		return none, fmt.Errorf("%s %s: its hypervisor lacks the ability: %w", what, name, domain.ErrUnsupported)
	}
	return a, nil
}

// spent returns the error of a call whose context has ended; nil while it has not.
func spent(ctx context.Context, what string) error {
	err := ctx.Err()
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("%w: %w", domain.ErrTimeout, err)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}
