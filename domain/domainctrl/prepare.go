// SPDX-License-Identifier: Apache-2.0

package domainctrl

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/types"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/action"
	"github.com/virtloom/virtloom/domain/convert"
	"github.com/virtloom/virtloom/domain/plan"
	"github.com/virtloom/virtloom/domain/status"
	"github.com/virtloom/virtloom/handoff"
)

// preparer prepares the node for a VMI. What prevents that becomes part of the snapshot, and is
// not an error of the pass.
type preparer struct{ *Reconciler }

// prepare carries out what [plan.Preparations] asks for; the results become part of the snapshot.
func (r preparer) prepare(ctx context.Context, key types.NamespacedName, w observed, s *plan.Snapshot) error {
	var todo []action.Action
	todo, s.PrepareError = plan.Preparations(*s)
	for _, t := range todo {
		switch t.Verb {
		case action.Prepare:
			if err := r.files(ctx, key, w, s, t); err != nil {
				return err
			}
		case action.Listen:
			r.listen(ctx, key, s, t)
		default:
			return fmt.Errorf("domainctrl: unsupported preparation %q", t.Verb)
		}
		if t.Needed && s.PrepareError != nil {
			break
		}
	}
	return ctx.Err()
}

// step reports a step of a migration to this node that the source waits for.
func (r preparer) step(ctx context.Context, key types.NamespacedName, t action.Action, reached plan.MigrationStep) {
	if t.Needed {
		actor(r).step(ctx, key, reached)
	}
}

// files prepares the VMI's files, with the claims it has on this node, and converts the object to
// the desired domain, whose devices the guest may open from then on.
func (r preparer) files(ctx context.Context, key types.NamespacedName, w observed, s *plan.Snapshot, t action.Action) error {
	r.step(ctx, key, t, plan.TargetAsked)
	// Before the hypervisor is asked for KVM: it may not have been able to open the device.
	if s.PrepareError = r.Workspace.OwnDevices(ctx, s.VMI); s.PrepareError != nil {
		return nil //nolint:nilerr // part of the snapshot
	}
	host, err := r.host(ctx, domain.Name(key.Namespace, key.Name))
	if err != nil {
		return err
	}
	at, err := status.ClaimsAt(s.VMI, r.NodeName)
	if err != nil {
		return err
	}
	live := running(s)
	s.Facts, s.PrepareError = r.Workspace.Prepare(ctx, at, host)
	if w.lease.InMove() && w.lease.Holder == r.NodeName {
		s.Destinations = r.Workspace.Destinations(ctx, s.VMI)
	}
	if err := r.Workspace.Retain(ctx, s.VMI, live); err != nil {
		return err
	}
	s.Facts.Incoming = w.role(r.NodeName) == handoff.RoleTarget
	// Devices keep the addresses at which the guest has found them.
	s.Facts.Layout = convert.LayoutOf(live)
	if s.PrepareError == nil {
		s.Migrations, s.PrepareError = r.Workspace.Migrations(ctx)
	}
	if s.PrepareError == nil {
		s.Desired, s.PrepareError = convert.Convert(s.VMI, s.Facts)
	}
	if s.PrepareError == nil {
		s.PrepareError = r.Workspace.Allow(ctx, s.VMI, live, s.Desired)
	}
	if s.PrepareError != nil {
		return nil //nolint:nilerr // part of the snapshot
	}
	disks := s.Desired
	if live != nil { // it decides, not the changed spec
		disks = live
	}
	s.CopyDisks, s.CopyBytes = status.CopyDisks(s.VMI, disks, s.Facts), r.Workspace.Size(ctx, s.VMI, status.CopySources(s.VMI, disks, s.Facts))
	r.checksums.see(ctx, key, w, s, r.NodeName)
	r.step(ctx, key, t, plan.TargetPrepared)
	return nil
}

// host describes the hypervisor of a domain: that in its Pod, where each VMI has one.
func (r preparer) host(ctx context.Context, name string) (domain.Host, error) {
	ctx, cancel := context.WithTimeout(ctx, r.CallTimeout)
	defer cancel()
	ask := r.Hypervisor.Host
	if r.Connector != nil {
		of, able := r.Hypervisor.(domain.HostOfDomain)
		if !able {
			return domain.Host{}, errOneHost
		}
		ask = func(ctx context.Context) (domain.Host, error) { return of.HostOf(ctx, name) }
	}
	h, err := ask(ctx)
	if err != nil {
		return h, fmt.Errorf("domainctrl: describe the hypervisor: %w", err)
	}
	return h, nil
}

// errOneHost refuses a hypervisor that cannot describe the hypervisors of VMIs one by one.
var errOneHost = fmt.Errorf("domainctrl: Hypervisor: must implement domain.HostOfDomain where VMIs have a Connector: %w", domain.ErrUnsupported)

// listen opens the tunnel for the VMI's migration. A failure is the PrepareError only before
// anything has begun, when the action is Needed.
func (r preparer) listen(ctx context.Context, key types.NamespacedName, s *plan.Snapshot, t action.Action) {
	limited, cancel := context.WithTimeout(ctx, r.CallTimeout)
	defer cancel()
	p := t.Tunnel
	if !t.Needed {
		p = r.tunnels.opened(key, p)
	}
	l, err := r.Transport.Listen(limited, p)
	if err != nil {
		err = fmt.Errorf("domainctrl: listen for the migration of %s from node %s: %w", key, p.Peer, err)
		logger(ctx).Error(err, "Failed to accept a migration")
		if t.Needed {
			s.PrepareError = err
		}
		return
	}
	s.TargetEndpoint = l
	r.tunnels.note(key, p)
	r.step(ctx, key, t, plan.TargetListening)
}

// running returns the definition of a VMI's live domain on this node; nil if there is none.
func running(s *plan.Snapshot) *libvirtxml.Domain {
	if s.State == nil || !s.State.Alive() {
		return nil
	}
	return s.State.Domain
}
