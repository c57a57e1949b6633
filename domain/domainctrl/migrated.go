// SPDX-License-Identifier: Apache-2.0

package domainctrl

import (
	"context"
	"path/filepath"
	"slices"

	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/convert"
	"github.com/virtloom/virtloom/domain/plan"
	"github.com/virtloom/virtloom/domain/status"
	"github.com/virtloom/virtloom/handoff"
)

// files prepares the VMI's files, with the claims it has on this node.
func (r gatherer) files(ctx context.Context, s *plan.Snapshot, host domain.Host) error {
	at, err := status.ClaimsAt(s.VMI, r.NodeName)
	if err != nil {
		return err
	}
	s.Facts, s.PrepareError = r.Workspace.Prepare(ctx, at, host)
	s.Destinations = r.destinations(ctx, s.VMI)
	return deviceAccess{r.Workspace}.retain(ctx, s.VMI, running(s))
}

// running returns the definition of a VMI's live domain on this node; nil if there is none.
func running(s *plan.Snapshot) *libvirtxml.Domain {
	if s.State == nil || !s.State.Alive() {
		return nil
	}
	return s.State.Domain
}

// destinations returns the paths of the volumes that a migration under way replaces at its target,
// by name: the content of claims has the same path on every node. A volume that cannot be located
// is left out, and the migration then does not begin.
func (r gatherer) destinations(ctx context.Context, vmi *v1.VirtualMachineInstance) map[string]convert.DiskSource {
	lease, err := handoff.Of(vmi)
	if err != nil || !lease.InMove() || lease.Holder != r.NodeName || len(vmi.Status.MigratedVolumes) == 0 || r.Workspace.Claims == nil {
		return nil
	}
	out := map[string]convert.DiskSource{}
	for _, m := range vmi.Status.MigratedVolumes {
		if m.DestinationPVCInfo == nil {
			continue
		}
		c, err := r.Workspace.Claims.Locate(ctx, vmi.Namespace, m.DestinationPVCInfo.ClaimName)
		if err != nil {
			logger(ctx).Info("Locating the replacement claim of a volume failed, skipping", "volume", m.VolumeName, "cause", err.Error())
			continue
		}
		src := convert.DiskSource{Path: c.Path, Format: "raw", Block: c.Block, Shared: c.Shared, Bytes: c.Bytes}
		if !c.Block {
			src.Path = filepath.Join(c.Path, diskImage)
		}
		out[m.VolumeName] = src
	}
	return out
}

// replacement reports whether the claim replaces another one in a migration, so that the guest has
// not run on it.
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
