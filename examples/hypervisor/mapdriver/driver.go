// SPDX-License-Identifier: Apache-2.0

// Package mapdriver is a hypervisor that keeps its guests in a map: a complete
// driver, which passes the suite of domain/domaintest for all that it does not
// declare unsupported. One of your own talks to its daemon where this one looks into
// the map; all else may stay.
package mapdriver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
)

// Hypervisor is the hypervisor of one node. Make one with New.
type Hypervisor struct {
	node  string
	hints domain.Hints

	mu     sync.Mutex
	guests map[string]guest // guarded by mu
}

// NewHypervisor returns the hypervisor of that node, without guests.
func NewHypervisor(node string) *Hypervisor {
	return &Hypervisor{node: node, guests: map[string]guest{}}
}

// check is what every call begins with: a context that has ended is an error in the words of the contract.
func check(ctx context.Context) error {
	if err := ctx.Err(); !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return fmt.Errorf("%w: %w", domain.ErrTimeout, ctx.Err())
}

// Host implements domain.Hypervisor.
func (h *Hypervisor) Host(ctx context.Context) (domain.Host, error) {
	return domain.Host{Name: h.node, Arch: "x86_64", Hypervisor: "MAP", Version: "1", LibraryVersion: "1", KVMReason: "a map runs nothing"}, check(ctx)
}

// List implements domain.Hypervisor.
func (h *Hypervisor) List(ctx context.Context) (all []domain.State, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, g := range h.guests {
		all = append(all, g.State)
	}
	slices.SortFunc(all, func(a, b domain.State) int { return strings.Compare(a.Name, b.Name) })
	return all, check(ctx)
}

// Get implements domain.Hypervisor.
func (h *Hypervisor) Get(ctx context.Context, name string) (domain.State, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	g, found := h.guests[name]
	if err := check(ctx); err != nil || !found {
		return domain.State{}, errors.Join(err, domain.ErrNotFound)
	}
	g.Domain = &libvirtxml.Domain{}
	err := g.Domain.Unmarshal(g.definition)
	if err == nil {
		g.Metadata, _, err = domain.MetadataOf(g.Domain)
	}
	return g.State, err
}

// Watch implements domain.Hypervisor.
func (h *Hypervisor) Watch(ctx context.Context) (<-chan domain.Event, error) {
	return h.hints.Watch(ctx), check(ctx)
}

// Apply implements domain.Hypervisor.
func (h *Hypervisor) Apply(ctx context.Context, op domain.Operation) error {
	if err := errors.Join(op.Validate(), check(ctx)); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	g, found := h.guests[op.Domain]
	do, able := verbs[op.Verb]
	switch {
	case !found && (op.Verb == domain.Destroy || op.Verb == domain.Undefine):
		return nil
	case !found && op.Verb != domain.Start:
		return fmt.Errorf("%s: %w", op, domain.ErrNotFound)
	case !able:
		return fmt.Errorf("%s: %w", op, domain.ErrUnsupported)
	}
	if err := do(&g, op); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	if h.guests[op.Domain] = g; op.Verb == domain.Undefine {
		delete(h.guests, op.Domain)
	}
	h.hints.Tell(domain.Event{Kind: domain.Changed, Domain: op.Domain, Why: string(op.Verb)})
	return nil
}
