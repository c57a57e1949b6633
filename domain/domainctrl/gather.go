// SPDX-License-Identifier: Apache-2.0

package domainctrl

import (
	"context"
	"errors"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/handoff"
)

// look gathers what belongs to the object as given. What a migration does is
// asked before what state the domain is in: so a migration that ends in between
// is seen as still going on, never as one that did not move the guest.
func (r *Reconciler) look(ctx context.Context, key types.NamespacedName, vmi *v1.VirtualMachineInstance) (domain.Sight, error) {
	s := domain.Sight{Node: r.NodeName, Address: r.Address, Port: r.Port, VMI: vmi}
	name := domain.Name(key.Namespace, key.Name)
	s.Moving, s.MoveFailure, s.MoveEnded = r.moves.state(key)
	s.Trouble = r.troubles.of(key)
	var err error
	if s.Leftovers, err = r.leftovers(key, vmi); err != nil {
		return s, err
	}
	if s.MoveActive, err = r.moveActive(ctx, name); err != nil {
		return s, err
	}
	if s.State, err = r.inspect(ctx, name); err != nil {
		return s, err
	}
	return s, r.prepare(ctx, &s)
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
		if absent(err) {
			return nil, nil
		}
		return nil, fmt.Errorf("domainctrl: read VirtualMachineInstance %s: %w", key, err)
	}
	return vmi, nil
}

// absent tells whether the API server knows that there is no such object. It
// answers 404 as well when it does not serve the kind, as while the definition
// is being replaced: that says nothing about any guest.
func absent(err error) bool {
	return apierrors.IsNotFound(err) && !apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
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
	return r.decide(ctx, key, vmi)
}

// decide looks at the guest of the object as given, and decides.
func (r *Reconciler) decide(ctx context.Context, key types.NamespacedName, vmi *v1.VirtualMachineInstance) (domain.Sight, domain.Plan, error) {
	s, err := r.look(ctx, key, vmi)
	if err != nil {
		return s, domain.Plan{}, err
	}
	plan, err := domain.Decide(s, r.Clock.Now())
	return s, plan, err
}

// touchesGuest tells whether the plan does anything to a guest or its files:
// everything but what is noted in its metadata.
func touchesGuest(plan domain.Plan) bool {
	for _, t := range plan.Tasks {
		if t.Verb != domain.TaskApply || t.Operation.Verb != domain.SetMetadata {
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
		// What runs decides, not what the object asks for by now.
		disks := s.Desired
		if s.State != nil && s.State.Alive() && s.State.Domain != nil {
			disks = s.State.Domain
		}
		s.CopyDisks = domain.CopyDisks(disks, s.Facts)
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
