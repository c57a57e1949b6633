// SPDX-License-Identifier: Apache-2.0

package domainctrl

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/plan"
	"github.com/virtloom/virtloom/handoff"
)

// gatherer reads the snapshot of a VMI. It writes nothing.
type gatherer struct{ *Reconciler }

// gather reads the state of the VMI on this node. The progress of a migration is read before the
// state of the domain: so a migration that ends in between is seen as still active, never as one
// that did not migrate the guest.
func (r gatherer) gather(ctx context.Context, key types.NamespacedName, w observed) (plan.Snapshot, error) {
	s := plan.Snapshot{Node: r.NodeName, VMI: w.vmi}
	name := domain.Name(key.Namespace, key.Name)
	r.migrations.see(key, &s)
	s.Failures = r.failures.of(key)
	var err error
	if s.OrphanedUIDs, err = r.orphanedUIDs(key, w.vmi); err != nil {
		return s, err
	}
	if err = r.proofs(ctx, &s); err != nil {
		return s, err
	}
	if err = r.connect(ctx, w, &s); err == nil {
		s.Progress, err = r.progress(ctx, name)
	}
	if err == nil {
		s.MigrationActive = s.Progress != nil
		s.State, err = r.inspect(ctx, name)
	}
	if r.unheard(&s, err) {
		err = r.unseen(ctx, key, &s)
	}
	if err != nil {
		err = r.silent(w, &s, name, err)
	} else {
		r.silences.over(name)
	}
	s.Guest = r.agents.of(name, s.State)
	return s, err
}

// unheard reports whether an error means that the Pods are the only evidence of a domain: no
// hypervisor serves it, or, of one whose VMI is gone, its launcher is gone. A folder that a
// launcher has left behind is no evidence.
func (r gatherer) unheard(s *plan.Snapshot, err error) bool {
	if errors.Is(err, domain.ErrNoHypervisor) {
		return true
	}
	return r.Connector != nil && s.VMI == nil && (errors.Is(err, domain.ErrDisconnected) || errors.Is(err, domain.ErrNotReady))
}

// silent makes the error of an unresponsive hypervisor part of the snapshot of a VMI that this node
// owns: with the last known state of its domain, and since when that may be outdated. The state of
// others is unknown.
func (r gatherer) silent(w observed, s *plan.Snapshot, name string, err error) error {
	lies := errors.Is(err, domain.ErrInvalid) && r.Connector != nil
	if s.VMI == nil || !lies && !errors.Is(err, domain.ErrTimeout) && !errors.Is(err, domain.ErrDisconnected) {
		return err
	}
	if w.role(r.NodeName) == handoff.RoleNone {
		return errors.Join(err, w.leaseErr)
	}
	if lies { // its answer is no evidence of the guest's state
		s.PrepareError = err
	}
	since := r.Clock.Now()
	if c := r.Informer.Connection(); !c.Up && !c.Since.IsZero() {
		since = c.Since
	}
	if st, known := r.Informer.Get(name); known {
		s.State = &st
	}
	s.SilentSince = r.silences.note(name, since)
	return nil
}

// orphanedUIDs returns the UIDs of earlier VMIs of that name with files here.
func (r gatherer) orphanedUIDs(key types.NamespacedName, vmi *v1.VirtualMachineInstance) ([]types.UID, error) {
	owners, err := r.Workspace.Owners()
	if err != nil {
		return nil, err
	}
	var out []types.UID
	for uid, of := range owners {
		if of == key && (vmi == nil || vmi.UID != uid) {
			out = append(out, uid)
		}
	}
	slices.Sort(out)
	return out, nil
}

// inspect returns the domain, nil if there is none. Without a hypervisor the error wraps
// domain.ErrNoHypervisor.
func (r gatherer) inspect(ctx context.Context, name string) (*domain.State, error) {
	ctx, cancel := context.WithTimeout(ctx, r.CallTimeout)
	defer cancel()
	st, err := r.Hypervisor.Get(ctx, name)
	switch {
	case errors.Is(err, domain.ErrNotFound) && !errors.Is(err, domain.ErrNoHypervisor):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("domainctrl: inspect domain %s: %w", name, err)
	}
	return &st, nil
}

// progress returns the progress of the domain's migration; nil if it does not migrate.
func (r gatherer) progress(ctx context.Context, name string) (*domain.Progress, error) {
	m, able := r.Hypervisor.(domain.Migrator)
	if !able {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, r.CallTimeout)
	defer cancel()
	p, err := m.MigrationProgress(ctx, name)
	switch {
	case errors.Is(err, domain.ErrNotFound), errors.Is(err, domain.ErrUnsupported):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("domainctrl: inspect the migration of domain %s: %w", name, err)
	case !p.Active:
		return nil, nil
	}
	return &p, nil
}
