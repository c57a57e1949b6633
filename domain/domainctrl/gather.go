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
	return s, r.prepare(ctx, key, &s)
}

// see gathers what there is to see of the guest. What a migration does is
// asked before what state the domain is in: so a migration that ends in between
// is seen as still going on, never as one that did not move the guest.
func (r *Reconciler) see(ctx context.Context, key types.NamespacedName, vmi *v1.VirtualMachineInstance) (domain.Sight, error) {
	s := domain.Sight{Node: r.NodeName, VMI: vmi}
	name := domain.Name(key.Namespace, key.Name)
	r.moves.see(key, &s)
	s.Troubles = r.troubles.of(key)
	var err error
	if s.Leftovers, err = r.leftovers(key, vmi); err != nil {
		return s, err
	}
	if err = r.proofs(ctx, &s); err != nil {
		return s, err
	}
	if err = r.connect(ctx, &s); err == nil {
		s.Progress, err = r.progress(ctx, name)
	}
	if err == nil {
		s.MoveActive = s.Progress != nil
		s.State, err = r.inspect(ctx, name)
	}
	if r.unheard(&s, err) {
		err = r.unseen(ctx, key, &s)
	}
	if err != nil {
		err = r.silent(&s, name, err)
	} else {
		r.silences.over(name)
	}
	s.Guest = r.agents.of(name, s.State)
	return s, err
}

// unheard reports whether an error means that its Pods have to tell what has become of a guest: no hypervisor serves it,
// or, of one whose object is gone, its launcher is not there any more. A folder that a launcher has left behind says nothing.
func (r *Reconciler) unheard(s *domain.Sight, err error) bool {
	if errors.Is(err, domain.ErrNoHypervisor) {
		return true
	}
	return r.Connector != nil && s.VMI == nil && (errors.Is(err, domain.ErrDisconnected) || errors.Is(err, domain.ErrNotReady))
}

// silent makes an error of a hypervisor that does not answer part of what is seen of
// a guest that is this node's: with what was known of its domain, and since when that
// may be wrong. Of others nothing can be said.
func (r *Reconciler) silent(s *domain.Sight, name string, err error) error {
	lies := errors.Is(err, domain.ErrInvalid) && r.Connector != nil
	if s.VMI == nil || !lies && !errors.Is(err, domain.ErrTimeout) && !errors.Is(err, domain.ErrDisconnected) {
		return err
	}
	lease, leaseErr := handoff.Of(s.VMI)
	if leaseErr != nil || domain.RoleOf(lease, r.NodeName) == domain.RoleNone {
		return errors.Join(err, leaseErr)
	}
	if lies { // what it says of the guest is no word about it
		s.Obstacle = err
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

// inspect returns the domain, nil if there is none. Where nobody could be asked the error
// wraps domain.ErrNoHypervisor.
func (r *Reconciler) inspect(ctx context.Context, name string) (*domain.State, error) {
	ctx, cancel := context.WithTimeout(ctx, r.CallTimeout)
	defer cancel()
	st, err := r.Hypervisor.Get(ctx, name)
	switch {
	case errors.Is(err, domain.ErrNotFound) && !errors.Is(err, domain.ErrNoHypervisor):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("domainctrl: look at domain %s: %w", name, err)
	}
	return &st, nil
}

// progress asks the hypervisor how far it has come migrating the guest; nil if it does
// not.
func (r *Reconciler) progress(ctx context.Context, name string) (*domain.Progress, error) {
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
		return nil, fmt.Errorf("domainctrl: look at the migration of domain %s: %w", name, err)
	case !p.Active:
		return nil, nil
	}
	return &p, nil
}

// prepare gets the guest's files in place and converts the object, when this
// node is to start or receive the guest, or runs it. What stands in the way is
// part of what is seen, not an error of the pass.
func (r *Reconciler) prepare(ctx context.Context, key types.NamespacedName, s *domain.Sight) error {
	role, err := r.needsFiles(s.VMI)
	if err != nil || role == domain.RoleNone || s.Obstacle != nil {
		return err
	}
	if !here(s) {
		// Nothing is made for a guest of which nothing but its object says that it is to come.
		if _, s.Obstacle = s.Proof(); s.Obstacle != nil {
			return nil //nolint:nilerr // it is part of what is seen
		}
	}
	host, err := r.host(ctx)
	if err != nil {
		return err
	}
	asked := role == domain.RoleTarget && preparing(s.VMI)
	if asked {
		r.step(ctx, key, domain.TargetAsked)
	}
	if err := r.files(ctx, s, host); err != nil {
		return err
	}
	s.Facts.Incoming = role == domain.RoleTarget
	// Devices stay where the guest has found them.
	s.Facts.Layout = domain.LayoutOf(running(s))
	r.convert(ctx, s)
	if role == domain.RoleTarget {
		r.welcome(ctx, key, s, asked)
	}
	travels(s)
	return ctx.Err()
}

// here tells whether the guest, and not an earlier one of its name, runs on this node. A
// domain that has lost its metadata may be the guest's.
func here(s *domain.Sight) bool {
	return s.State != nil && s.State.Alive() && (!s.State.Ours() || s.State.Metadata.UID == s.VMI.UID)
}

// convert fills in what the cluster says of migrations, and the domain to be, whose
// devices the guest may open from then on.
func (r *Reconciler) convert(ctx context.Context, s *domain.Sight) {
	if s.Obstacle == nil {
		s.Migrations, s.Obstacle = r.Workspace.migrations(ctx)
	}
	if s.Obstacle == nil {
		s.Desired, s.Obstacle = domain.Convert(s.VMI, s.Facts)
	}
	if s.Obstacle == nil {
		s.Obstacle = r.Workspace.allow(ctx, s.VMI, running(s), s.Desired)
	}
}

// travels fills in which disks have to travel with the guest, and how much they hold.
func travels(s *domain.Sight) {
	if s.Obstacle != nil {
		return
	}
	// What runs decides, not what the object asks for by now.
	disks := s.Desired
	if live := running(s); live != nil {
		disks = live
	}
	s.CopyDisks, s.CopyBytes = domain.CopyDisks(s.VMI, disks, s.Facts), size(domain.CopySources(s.VMI, disks, s.Facts))
}

// welcome opens the way for a guest that comes, once its files are in place: asked is
// whether this node has not said yet that it is ready.
func (r *Reconciler) welcome(ctx context.Context, key types.NamespacedName, s *domain.Sight, asked bool) {
	if !asked {
		r.listen(ctx, key, s, false)
		return
	}
	if s.Obstacle != nil {
		return
	}
	r.step(ctx, key, domain.TargetPrepared)
	r.listen(ctx, key, s, true)
	if s.Obstacle == nil {
		r.step(ctx, key, domain.TargetListening)
	}
}

// preparing tells whether the guest's migration has been asked for and its target has
// not said yet that it is ready.
func preparing(vmi *v1.VirtualMachineInstance) bool {
	l, err := handoff.Of(vmi)
	return err == nil && l.State == handoff.Preparing
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
