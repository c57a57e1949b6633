// SPDX-License-Identifier: Apache-2.0

package volumeclaim_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/internal/volumeclaim"
)

func TestClaims_EachSource(t *testing.T) {
	named := v1.PersistentVolumeClaimVolumeSource{PersistentVolumeClaimVolumeSource: corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}
	for name, tt := range map[string]struct {
		source            v1.VolumeSource
		of, written, read string
	}{
		"claim":                      {v1.VolumeSource{PersistentVolumeClaim: &named}, "c", "c", "c"},
		"DataVolume":                 {v1.VolumeSource{DataVolume: &v1.DataVolumeSource{Name: "c"}}, "c", "c", "c"},
		"memory dump":                {v1.VolumeSource{MemoryDump: &v1.MemoryDumpVolumeSource{PersistentVolumeClaimVolumeSource: named}}, "", "c", "c"},
		"ephemeral":                  {v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{PersistentVolumeClaim: &named.PersistentVolumeClaimVolumeSource}}, "", "", "c"},
		"ephemeral without a source": {v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{}}, "", "", ""},
		"another":                    {v1.VolumeSource{EmptyDisk: &v1.EmptyDiskSource{}}, "", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			v := &v1.Volume{VolumeSource: tt.source}
			if of, written, read := volumeclaim.Of(v), volumeclaim.Written(v), volumeclaim.Read(v); of != tt.of || written != tt.written || read != tt.read {
				t.Errorf("of %q, written %q, read %q; want %q, %q, %q", of, written, read, tt.of, tt.written, tt.read)
			}
		})
	}
}
