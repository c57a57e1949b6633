// SPDX-License-Identifier: Apache-2.0

package domainctrl

import (
	"context"
	"path/filepath"
	"slices"

	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/handoff"
)

// files gets the guest's files in place, with the claims it has on this node.
func (r *Reconciler) files(ctx context.Context, s *domain.Sight, host domain.Host) error {
	at, err := domain.ClaimsAt(s.VMI, r.NodeName)
	if err != nil {
		return err
	}
	s.Facts, s.Obstacle = r.Workspace.Prepare(ctx, at, host)
	s.Destinations = r.destinations(ctx, s.VMI)
	return r.Workspace.retain(ctx, s.VMI, running(s))
}

// running is the domain of a guest that lives here; nil if none does.
func running(s *domain.Sight) *libvirtxml.Domain {
	if s.State == nil || !s.State.Alive() {
		return nil
	}
	return s.State.Domain
}

// destinations tells where the volumes that a migration under way replaces will lie at
// its target, by name: what claims contain has the same path on every node. One that
// cannot be found is left out, and the guest then does not begin to move.
func (r *Reconciler) destinations(ctx context.Context, vmi *v1.VirtualMachineInstance) map[string]domain.DiskSource {
	lease, err := handoff.Of(vmi)
	if err != nil || !lease.InMove() || lease.Holder != r.NodeName || len(vmi.Status.MigratedVolumes) == 0 || r.Workspace.Claims == nil {
		return nil
	}
	out := map[string]domain.DiskSource{}
	for _, m := range vmi.Status.MigratedVolumes {
		if m.DestinationPVCInfo == nil {
			continue
		}
		c, err := r.Workspace.Claims.Locate(ctx, vmi.Namespace, m.DestinationPVCInfo.ClaimName)
		if err != nil {
			logger(ctx).Info("Not finding the claim that shall replace a volume", "volume", m.VolumeName, "cause", err.Error())
			continue
		}
		src := domain.DiskSource{Path: c.Path, Format: "raw", Block: c.Block, Shared: c.Shared, Bytes: c.Bytes}
		if !c.Block {
			src.Path = filepath.Join(c.Path, diskImage)
		}
		out[m.VolumeName] = src
	}
	return out
}

// replacement tells whether the claim takes the place of another one in a migration, so
// that the guest has not run on it.
func (v volume) replacement() bool {
	name := ""
	switch {
	case v.PersistentVolumeClaim != nil:
		name = v.PersistentVolumeClaim.ClaimName
	case v.DataVolume != nil:
		name = v.DataVolume.Name
	}
	return slices.ContainsFunc(v.vmi.Status.MigratedVolumes, func(m v1.StorageMigratedVolumeInfo) bool {
		return m.VolumeName == v.Name && m.DestinationPVCInfo != nil && m.DestinationPVCInfo.ClaimName == name
	})
}
