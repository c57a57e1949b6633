// SPDX-License-Identifier: Apache-2.0

package domaintest_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/domaintest"
)

// skeleton is the minimal driver. Where it keeps domains in a map, another one calls its daemon;
// the rest may stay. Abilities beyond the five methods are added one by one, as methods of the
// interfaces of package domain.
type skeleton struct {
	hints domain.Hints

	mu     sync.Mutex
	guests map[string]skeletonGuest
}

// skeletonGuest is one domain: its definition and metadata as XML, so that they are not shared.
type skeletonGuest struct {
	domain.State
	xml, metadata string
}

var _ domain.Hypervisor = (*skeleton)(nil)

// begin fails if the context has ended, with the contract's error.
func begin(ctx context.Context, call string) error {
	err := ctx.Err()
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("%w: %w", domain.ErrTimeout, err)
	}
	if err != nil {
		return fmt.Errorf("skeleton: %s: %w", call, err)
	}
	return nil
}

// Host implements domain.Hypervisor.
func (k *skeleton) Host(ctx context.Context) (domain.Host, error) {
	return domain.Host{
		Name: "node", Arch: "x86_64", Hypervisor: "SKELETON", Version: "0.1.0", LibraryVersion: "0.1.0",
		KVMReason: "a skeleton runs nothing",
	}, begin(ctx, "host")
}

// List implements domain.Hypervisor.
func (k *skeleton) List(ctx context.Context) ([]domain.State, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	var out []domain.State
	for _, g := range k.guests {
		out = append(out, domain.State{Name: g.Name, UUID: g.UUID, Status: g.Status, Reason: g.Reason})
	}
	slices.SortFunc(out, func(a, b domain.State) int { return strings.Compare(a.Name, b.Name) })
	return out, begin(ctx, "list")
}

// Get implements domain.Hypervisor.
func (k *skeleton) Get(ctx context.Context, name string) (domain.State, error) {
	if err := begin(ctx, "get "+name); err != nil {
		return domain.State{}, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	g, ok := k.guests[name]
	if !ok {
		return domain.State{}, fmt.Errorf("skeleton: get %s: %w", name, domain.ErrNotFound)
	}
	s := g.State
	s.Domain = &libvirtxml.Domain{}
	err := s.Domain.Unmarshal(g.xml)
	if err == nil {
		s.Metadata, _, err = domain.ParseMetadataElement(g.metadata)
	}
	return s, err
}

// Watch implements domain.Hypervisor.
func (k *skeleton) Watch(ctx context.Context) (<-chan domain.Event, error) {
	return k.hints.Watch(ctx), begin(ctx, "watch")
}

// Apply implements domain.Hypervisor.
func (k *skeleton) Apply(ctx context.Context, op domain.Operation) error {
	if err := op.Validate(); err != nil {
		return err
	}
	if err := begin(ctx, op.String()); err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	g, exists := k.guests[op.Domain]
	if !exists && op.Verb != domain.Start {
		if op.Verb == domain.Destroy || op.Verb == domain.Undefine {
			return nil
		}
		return fmt.Errorf("skeleton: %s: %w", op, domain.ErrNotFound)
	}
	change, ok := changes[op.Verb]
	if !ok {
		return fmt.Errorf("skeleton: %s: %w", op, domain.ErrUnsupported)
	}
	before := g
	if err := change(&g, op); err != nil {
		return fmt.Errorf("skeleton: %s: %w", op, err)
	}
	if op.Verb == domain.Undefine {
		delete(k.guests, op.Domain)
	} else {
		k.guests[op.Domain] = g
	}
	if !exists || op.Verb == domain.Undefine || op.Verb == domain.SetMetadata || before.Status != g.Status {
		k.hints.Tell(domain.Event{Kind: domain.Changed, Domain: op.Domain, Why: string(op.Verb)})
	}
	return nil
}

// changes are the effects of the verbs; a missing verb is not supported.
var changes = map[domain.Verb]func(*skeletonGuest, domain.Operation) error{
	domain.Start: start,
	domain.Shutdown: func(g *skeletonGuest, _ domain.Operation) error {
		if g.Status == domain.StatusPaused {
			return domain.ErrInvalidState
		}
		return g.stop(domain.ReasonShutdown)
	},
	domain.Destroy: func(g *skeletonGuest, _ domain.Operation) error { return g.stop(domain.ReasonDestroyed) },
	domain.Undefine: func(g *skeletonGuest, _ domain.Operation) error {
		if g.Alive() {
			return domain.ErrInvalidState
		}
		return nil
	},
	domain.Suspend: func(g *skeletonGuest, _ domain.Operation) error {
		return g.turn(domain.StatusPaused, domain.ReasonUser)
	},
	domain.Resume: func(g *skeletonGuest, _ domain.Operation) error {
		return g.turn(domain.StatusRunning, domain.ReasonUnknown)
	},
	domain.SetMetadata: func(g *skeletonGuest, op domain.Operation) error {
		metadata, err := op.Metadata.XML()
		if err == nil {
			g.metadata = metadata
		}
		return err
	},
}

func start(g *skeletonGuest, op domain.Operation) error {
	switch {
	case g.Alive():
		return nil
	case op.Paused:
		return domain.ErrUnsupported
	case op.Definition.Type != "qemu":
		return fmt.Errorf("domain type %q: %w", op.Definition.Type, domain.ErrInvalid)
	}
	xml, err := op.Definition.Marshal()
	if err != nil {
		return fmt.Errorf("%w: %w", domain.ErrInvalid, err)
	}
	*g = skeletonGuest{xml: xml, State: domain.State{
		Name: op.Domain, UUID: op.Definition.UUID, Status: domain.StatusRunning, Reason: domain.ReasonUnknown,
	}}
	m, ours, err := domain.MetadataOf(op.Definition)
	if ours && err == nil {
		g.metadata, err = m.XML()
	}
	return err
}

func (g *skeletonGuest) stop(why domain.Reason) error {
	if g.Alive() {
		g.Status, g.Reason = domain.StatusShutoff, why
	}
	return nil
}

func (g *skeletonGuest) turn(to domain.Status, why domain.Reason) error {
	if !g.Alive() {
		return domain.ErrInvalidState
	}
	if g.Status != to {
		g.Status, g.Reason = to, why
	}
	return nil
}

// TestSkeleton_PassesCore is how to test a driver of your own: Core at first, and Conformance when
// it has abilities.
func TestSkeleton_PassesCore(t *testing.T) {
	domaintest.Core(t, func(testing.TB) domaintest.Driver {
		return domaintest.Driver{
			Hypervisor:  &skeleton{guests: map[string]skeletonGuest{}},
			Definition:  domaintest.Definition,
			Unsupported: map[domaintest.Ability]string{domaintest.StartPaused: "a skeleton knows no such thing"},
		}
	})
}
