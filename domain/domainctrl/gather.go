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
	"github.com/virtloom/virtloom/domain/convert"
	"github.com/virtloom/virtloom/domain/plan"
	"github.com/virtloom/virtloom/domain/status"
	"github.com/virtloom/virtloom/handoff"
)

// gatherer reads the snapshot of a VMI and prepares the node for it.
type gatherer struct{ *Reconciler }

// look gathers the snapshot of the observed object, and prepares the VMI's files where they may be
// needed.
func (r gatherer) look(ctx context.Context, key types.NamespacedName, vmi *v1.VirtualMachineInstance) (plan.Snapshot, error) {
	s, err := r.see(ctx, key, vmi)
	if err != nil || !s.SilentSince.IsZero() {
		return s, err
	}
	return s, r.prepare(ctx, key, &s)
}

// see gathers the state of the VMI on this node. The progress of a migration is read before the
// state of the domain: so a migration that ends in between is seen as still active, never as one
// that did not migrate the guest.
func (r gatherer) see(ctx context.Context, key types.NamespacedName, vmi *v1.VirtualMachineInstance) (plan.Snapshot, error) {
	s := plan.Snapshot{Node: r.NodeName, VMI: vmi}
	name := domain.Name(key.Namespace, key.Name)
	r.migrations.see(key, &s)
	s.Failures = r.failures.of(key)
	var err error
	if s.OrphanedUIDs, err = r.orphanedUIDs(key, vmi); err != nil {
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
func (r gatherer) silent(s *plan.Snapshot, name string, err error) error {
	lies := errors.Is(err, domain.ErrInvalid) && r.Connector != nil
	if s.VMI == nil || !lies && !errors.Is(err, domain.ErrTimeout) && !errors.Is(err, domain.ErrDisconnected) {
		return err
	}
	lease, leaseErr := handoff.Of(s.VMI)
	if leaseErr != nil || domain.RoleOf(lease, r.NodeName) == domain.RoleNone {
		return errors.Join(err, leaseErr)
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

// prepare prepares the VMI's files and converts the object, when this node is to start, receive or
// run it. An obstacle becomes part of the snapshot, not an error of the pass.
func (r gatherer) prepare(ctx context.Context, key types.NamespacedName, s *plan.Snapshot) error {
	role, err := r.needsFiles(s.VMI)
	if err != nil || role == domain.RoleNone || s.PrepareError != nil {
		return err
	}
	if !here(s) {
		// Nothing is made for a VMI whose only evidence is its own object.
		if _, s.PrepareError = s.Proof(); s.PrepareError != nil {
			return nil //nolint:nilerr // part of the snapshot
		}
	}
	host, err := r.host(ctx)
	if err != nil {
		return err
	}
	asked := role == domain.RoleTarget && preparing(s.VMI)
	if asked {
		actor(r).step(ctx, key, plan.TargetAsked)
	}
	if err := r.files(ctx, s, host); err != nil {
		return err
	}
	s.Facts.Incoming = role == domain.RoleTarget
	// Devices keep the addresses at which the guest has found them.
	s.Facts.Layout = convert.LayoutOf(running(s))
	r.convert(ctx, s)
	if role == domain.RoleTarget {
		r.welcome(ctx, key, s, asked)
	}
	travels(s)
	return ctx.Err()
}

// here reports whether the VMI's domain, and not that of an earlier VMI of its name, runs on this
// node. A domain that has lost its metadata may be the VMI's.
func here(s *plan.Snapshot) bool {
	return s.State != nil && s.State.Alive() && (!s.State.Ours() || s.State.Metadata.UID == s.VMI.UID)
}

// convert fills in the cluster's migration settings, and the desired domain, whose devices the
// guest may open from then on.
func (r gatherer) convert(ctx context.Context, s *plan.Snapshot) {
	if s.PrepareError == nil {
		s.Migrations, s.PrepareError = nodeFacts{r.Workspace}.migrations(ctx)
	}
	if s.PrepareError == nil {
		s.Desired, s.PrepareError = convert.Convert(s.VMI, s.Facts)
	}
	if s.PrepareError == nil {
		s.PrepareError = deviceAccess{r.Workspace}.allow(ctx, s.VMI, running(s), s.Desired)
	}
}

// travels fills in which disks a migration has to copy, and their size.
func travels(s *plan.Snapshot) {
	if s.PrepareError != nil {
		return
	}
	// The live definition decides, not the changed spec.
	disks := s.Desired
	if live := running(s); live != nil {
		disks = live
	}
	s.CopyDisks, s.CopyBytes = status.CopyDisks(s.VMI, disks, s.Facts), size(status.CopySources(s.VMI, disks, s.Facts))
}

// welcome opens the passage for an arriving guest, once its files are ready: asked reports whether
// this node has yet to report that it is ready.
func (r gatherer) welcome(ctx context.Context, key types.NamespacedName, s *plan.Snapshot, asked bool) {
	if !asked {
		r.listen(ctx, key, s, false)
		return
	}
	if s.PrepareError != nil {
		return
	}
	actor(r).step(ctx, key, plan.TargetPrepared)
	r.listen(ctx, key, s, true)
	if s.PrepareError == nil {
		actor(r).step(ctx, key, plan.TargetListening)
	}
}

// preparing reports whether a migration has been requested and its target is not reported ready
// yet.
func preparing(vmi *v1.VirtualMachineInstance) bool {
	l, err := handoff.Of(vmi)
	return err == nil && l.State == handoff.Preparing
}

// needsFiles returns the role in which this node may need the VMI's files; RoleNone if it does not.
// Where only an answer is requested, nothing may delay it.
func (r gatherer) needsFiles(vmi *v1.VirtualMachineInstance) (domain.Role, error) {
	if vmi == nil || vmi.DeletionTimestamp != nil || vmi.IsFinal() {
		return domain.RoleNone, nil
	}
	lease, err := handoff.Of(vmi)
	if err != nil || lease.State == handoff.Lost || lease.State == handoff.Fenced || lease.State == handoff.Releasing {
		return domain.RoleNone, err
	}
	return domain.RoleOf(lease, r.NodeName), nil
}

func (r gatherer) host(ctx context.Context) (domain.Host, error) {
	ctx, cancel := context.WithTimeout(ctx, r.CallTimeout)
	defer cancel()
	h, err := r.Hypervisor.Host(ctx)
	if err != nil {
		return h, fmt.Errorf("domainctrl: describe the hypervisor: %w", err)
	}
	return h, nil
}
