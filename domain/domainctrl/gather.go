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
	"github.com/virtloom/virtloom/handoff"
)

// look gathers what belongs to the object as given, and gets the guest's files in
// place where they may be needed.
func (r *Reconciler) look(ctx context.Context, key types.NamespacedName, vmi *v1.VirtualMachineInstance) (domain.Sight, error) {
	s, err := r.see(ctx, key, vmi)
	if err != nil || !s.SilentSince.IsZero() {
		return s, err
	}
	return s, r.prepare(ctx, &s)
}

// see gathers what there is to see of the guest. What a migration does is
// asked before what state the domain is in: so a migration that ends in between
// is seen as still going on, never as one that did not move the guest.
func (r *Reconciler) see(ctx context.Context, key types.NamespacedName, vmi *v1.VirtualMachineInstance) (domain.Sight, error) {
	s := domain.Sight{Node: r.NodeName, Address: r.Address, Port: r.Port, VMI: vmi}
	name := domain.Name(key.Namespace, key.Name)
	s.Moving, s.MoveFailure, s.MoveEnded = r.moves.state(key)
	s.Troubles = r.troubles.of(key)
	var err error
	if s.Leftovers, err = r.leftovers(key, vmi); err != nil {
		return s, err
	}
	if s.MoveActive, err = r.moveActive(ctx, name); err == nil {
		s.State, err = r.inspect(ctx, name)
	}
	if err != nil {
		err = r.silent(&s, name, err)
	} else {
		r.silences.over(name)
	}
	s.Guest = r.agents.of(name, s.State)
	return s, err
}

// silent makes an error of a hypervisor that does not answer part of what is seen of
// a guest that is this node's: with what was known of its domain, and since when that
// may be wrong. Of others nothing can be said.
func (r *Reconciler) silent(s *domain.Sight, name string, err error) error {
	if s.VMI == nil || !errors.Is(err, domain.ErrTimeout) && !errors.Is(err, domain.ErrDisconnected) {
		return err
	}
	lease, leaseErr := handoff.Of(s.VMI)
	if leaseErr != nil || domain.RoleOf(lease, r.NodeName) == domain.RoleNone {
		return errors.Join(err, leaseErr)
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

// leftovers are the guests of earlier objects of that name with files here.
func (r *Reconciler) leftovers(key types.NamespacedName, vmi *v1.VirtualMachineInstance) ([]types.UID, error) {
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

// inspect returns the domain, nil if there is none.
func (r *Reconciler) inspect(ctx context.Context, name string) (*domain.State, error) {
	ctx, cancel := context.WithTimeout(ctx, r.CallTimeout)
	defer cancel()
	st, err := r.Hypervisor.Get(ctx, name)
	switch {
	case errors.Is(err, domain.ErrNotFound):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("domainctrl: look at domain %s: %w", name, err)
	}
	return &st, nil
}

// moveActive asks the hypervisor whether it is migrating the guest.
func (r *Reconciler) moveActive(ctx context.Context, name string) (bool, error) {
	m, able := r.Hypervisor.(domain.Migrator)
	if !able {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, r.CallTimeout)
	defer cancel()
	p, err := m.MigrationProgress(ctx, name)
	switch {
	case errors.Is(err, domain.ErrNotFound), errors.Is(err, domain.ErrUnsupported):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("domainctrl: look at the migration of domain %s: %w", name, err)
	}
	return p.Active, nil
}

// prepare gets the guest's files in place and converts the object, when this
// node is to start or receive the guest, or runs it. What stands in the way is
// part of what is seen, not an error of the pass.
func (r *Reconciler) prepare(ctx context.Context, s *domain.Sight) error {
	role, err := r.needsFiles(s.VMI)
	if err != nil || role == domain.RoleNone {
		return err
	}
	host, err := r.host(ctx)
	if err != nil {
		return err
	}
	s.Facts, s.Obstacle = r.Workspace.Prepare(ctx, s.VMI, host)
	s.Facts.Incoming = role == domain.RoleTarget
	if s.State != nil && s.State.Alive() {
		// Devices stay where the guest has found them.
		s.Facts.Layout = domain.LayoutOf(s.State.Domain)
	}
	if s.Obstacle == nil {
		s.Desired, s.Obstacle = domain.Convert(s.VMI, s.Facts)
	}
	if s.Obstacle == nil {
		// What runs decides, not what the object asks for by now.
		disks := s.Desired
		if s.State != nil && s.State.Alive() && s.State.Domain != nil {
			disks = s.State.Domain
		}
		s.CopyDisks, s.CopyBytes = domain.CopyDisks(disks, s.Facts), size(domain.CopySources(disks, s.Facts))
	}
	return ctx.Err()
}

// needsFiles tells as what this node may need the guest's files for what comes next;
// RoleNone if it does not. Where only a word about the guest is asked for, nothing shall
// delay it.
func (r *Reconciler) needsFiles(vmi *v1.VirtualMachineInstance) (domain.Role, error) {
	if vmi == nil || vmi.DeletionTimestamp != nil || vmi.IsFinal() {
		return domain.RoleNone, nil
	}
	lease, err := handoff.Of(vmi)
	if err != nil || lease.State == handoff.Lost || lease.State == handoff.Fenced || lease.State == handoff.Releasing {
		return domain.RoleNone, err
	}
	return domain.RoleOf(lease, r.NodeName), nil
}

func (r *Reconciler) host(ctx context.Context) (domain.Host, error) {
	ctx, cancel := context.WithTimeout(ctx, r.CallTimeout)
	defer cancel()
	h, err := r.Hypervisor.Host(ctx)
	if err != nil {
		return h, fmt.Errorf("domainctrl: describe the hypervisor: %w", err)
	}
	return h, nil
}
