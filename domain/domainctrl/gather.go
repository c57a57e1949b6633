// SPDX-License-Identifier: Apache-2.0

package domainctrl

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/handoff"
)

// gather looks at one guest. What a migration does is asked before what state
// the domain is in: so a migration that ends in between is seen as still going
// on, never as one that did not move the guest.
func (r *Reconciler) gather(ctx context.Context, key types.NamespacedName) (domain.Sight, error) {
	vmi, err := r.cached(ctx, key)
	if err != nil {
		return domain.Sight{}, err
	}
	return r.look(ctx, key, vmi)
}

// look gathers what belongs to the object as given.
func (r *Reconciler) look(ctx context.Context, key types.NamespacedName, vmi *v1.VirtualMachineInstance) (domain.Sight, error) {
	s := domain.Sight{Node: r.NodeName, Address: r.Address, Port: r.Port, VMI: vmi}
	name := domain.Name(key.Namespace, key.Name)
	s.Moving, s.MoveFailure = r.moves.state(key)
	var err error
	if s.MoveActive, err = r.moveActive(ctx, name); err != nil {
		return s, err
	}
	if s.State, err = r.inspect(ctx, name); err != nil {
		return s, err
	}
	return s, r.prepare(ctx, &s)
}

// cached reads the object from the node's caches. A miss proves nothing, so it
// is followed by a live read; nil then means that the object does not exist.
func (r *Reconciler) cached(ctx context.Context, key types.NamespacedName) (*v1.VirtualMachineInstance, error) {
	for _, c := range []client.Reader{r.Caches.Owned, r.Caches.Incoming} {
		vmi := &v1.VirtualMachineInstance{}
		err := c.Get(ctx, key, vmi)
		if err == nil {
			return vmi, nil
		}
		if !apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("domainctrl: read %s from the cache: %w", key, err)
		}
	}
	return r.live(ctx, key)
}

func (r *Reconciler) live(ctx context.Context, key types.NamespacedName) (*v1.VirtualMachineInstance, error) {
	vmi := &v1.VirtualMachineInstance{}
	if err := r.APIReader.Get(ctx, key, vmi); err != nil {
		if apierrors.IsNotFound(err) {
			return nil, nil
		}
		return nil, fmt.Errorf("domainctrl: read %s: %w", key, err)
	}
	return vmi, nil
}

// confirm repeats, on the object read live, a decision that would touch a
// guest without a write of the object that proves it to be current.
func (r *Reconciler) confirm(ctx context.Context, key types.NamespacedName, s domain.Sight, plan domain.Plan) (domain.Sight, domain.Plan, error) {
	if s.VMI == nil || !touchesGuest(plan) || changed(s.VMI, plan.VMI) {
		return s, plan, nil
	}
	vmi, err := r.live(ctx, key)
	if err != nil {
		return s, plan, err
	}
	if vmi != nil && vmi.UID == s.VMI.UID && vmi.ResourceVersion == s.VMI.ResourceVersion {
		return s, plan, nil
	}
	if s, err = r.look(ctx, key, vmi); err != nil {
		return s, plan, err
	}
	plan, err = domain.Decide(s, r.Clock.Now())
	return s, plan, err
}

// touchesGuest tells whether the plan starts, ends or moves a guest.
func touchesGuest(plan domain.Plan) bool {
	for _, t := range plan.Tasks {
		if t.Verb == domain.TaskMigrate {
			return true
		}
		if t.Verb != domain.TaskApply {
			continue
		}
		switch t.Operation.Verb {
		case domain.Start, domain.Destroy, domain.Undefine, domain.Shutdown:
			return true
		}
	}
	return false
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
	if s.VMI == nil || s.VMI.DeletionTimestamp != nil || s.VMI.IsFinal() {
		return nil
	}
	lease, err := handoff.Of(s.VMI)
	if err != nil {
		return err
	}
	if domain.RoleOf(lease, r.NodeName) == domain.RoleNone {
		return nil
	}
	host, err := r.host(ctx)
	if err != nil {
		return err
	}
	s.Facts, s.Obstacle = r.Workspace.Prepare(ctx, s.VMI, host)
	if s.Obstacle == nil {
		s.Desired, s.Obstacle = domain.Convert(s.VMI, s.Facts)
	}
	if s.Obstacle == nil {
		s.CopyDisks = domain.CopyDisks(s.Desired, s.Facts)
	}
	return ctx.Err()
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
