// SPDX-License-Identifier: Apache-2.0

package workspace

import (
	"context"
	"slices"

	"github.com/go-logr/logr"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain/convert"
	"github.com/virtloom/virtloom/internal/volumeclaim"
)

// Destinations returns the paths of the volumes that the VMI's migration replaces at its target, by
// name: the content of claims has the same path on every node. A volume that cannot be located is
// left out, and the migration then does not begin.
func (w *Workspace) Destinations(ctx context.Context, vmi *v1.VirtualMachineInstance) map[string]convert.DiskSource {
	if w.Claims == nil || len(vmi.Status.MigratedVolumes) == 0 {
		return nil
	}
	out := map[string]convert.DiskSource{}
	for _, m := range vmi.Status.MigratedVolumes {
		if m.DestinationPVCInfo == nil {
			continue
		}
		c, err := w.Claims.Locate(ctx, vmi.Namespace, m.DestinationPVCInfo.ClaimName)
		if err != nil {
			logr.FromContextOrDiscard(ctx).Info("Locating the replacement claim of a volume failed, skipping", "volume", m.VolumeName, "cause", err.Error())
			continue
		}
		src := volume{Volume: &v1.Volume{Name: m.VolumeName}, pods: w.Pods}.claimAt(c, diskImage)
		src.Bytes = c.Bytes
		out[m.VolumeName] = src
	}
	return out
}

// replacement reports whether the claim replaces another one in a migration, so that the guest has
// not run on it.
func (v volume) replacement() bool {
	name := volumeclaim.Of(v.Volume)
	return slices.ContainsFunc(v.vmi.Status.MigratedVolumes, func(m v1.StorageMigratedVolumeInfo) bool {
		return m.VolumeName == v.Name && m.DestinationPVCInfo != nil && m.DestinationPVCInfo.ClaimName == name
	})
}
