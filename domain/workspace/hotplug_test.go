// SPDX-License-Identifier: Apache-2.0

package workspace_test

import (
	"os"
	"path/filepath"
	"testing"

	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain/status"
	"github.com/virtloom/virtloom/domain/workspace"
)

// TestHotplug_VolumesArrive maps each phase that the controller reports of a volume to the node's
// next one.
func TestHotplug_VolumesArrive(t *testing.T) {
	carried := func(p v1.VolumePhase) v1.VolumeStatus {
		return v1.VolumeStatus{Phase: p, HotplugVolume: &v1.HotplugVolumeStatus{AttachPodName: "hp", AttachPodUID: "hp"}}
	}
	waiting := func(p v1.VolumePhase) v1.VolumeStatus {
		return v1.VolumeStatus{Phase: p, HotplugVolume: &v1.HotplugVolumeStatus{}}
	}
	for name, tt := range map[string]struct {
		status v1.VolumeStatus
		data   bool
		known  bool
		want   v1.VolumePhase
	}{
		"H2: a new one that cannot be read is skipped":    {carried(v1.HotplugVolumeAttachedToNode), false, true, v1.HotplugVolumeAttachedToNode},
		"H2: as is one whose claim is not on the node":    {carried(v1.HotplugVolumeAttachedToNode), true, false, v1.HotplugVolumeAttachedToNode},
		"what a Pod has carried to the node has arrived":  {carried(v1.HotplugVolumeAttachedToNode), true, true, v1.HotplugVolumeMounted},
		"so it has if the controller is behind":           {carried(v1.VolumeBound), true, true, v1.HotplugVolumeMounted},
		"what no Pod carries yet may still be filled":     {waiting(v1.VolumeBound), true, true, v1.VolumeBound},
		"and is not missing":                              {waiting(v1.VolumeBound), false, true, v1.VolumeBound},
		"what the guest has is still there for the guest": {carried(v1.VolumeReady), true, true, v1.VolumeReady},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if tt.data {
				if err := os.WriteFile(filepath.Join(dir, "disk.img"), make([]byte, 1<<20), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			w := newWorkspace(t)
			if w.Claims = (claims{}); tt.known {
				w.Claims = claims{"c": workspace.Claim{Path: dir, Bytes: 1 << 20}}
			}
			vmi := guest("uid-1", claimed("c"))
			tt.status.Name = "data"
			vmi.Status = v1.VirtualMachineInstanceStatus{Phase: v1.Running, VolumeStatus: []v1.VolumeStatus{tt.status}}
			f := prepare(t, w, vmi)
			// The kubelet mounts volumes before their Pod runs.
			if missing, want := f.Missing["data"] != "", tt.want == v1.HotplugVolumeAttachedToNode; missing != want {
				t.Errorf("missing are %v, want one: %t", f.Missing, want)
			}
			if got := status.VolumeStatus(vmi, status.Observation{Facts: f})[0].Phase; got != tt.want {
				t.Errorf("phase %s, want %s; disks %+v", got, tt.want, f.Disks)
			}
			if left, err := os.ReadDir(dir); err != nil || !tt.data && len(left) > 0 {
				t.Errorf("files %v, %v", left, err)
			}
		})
	}
}
