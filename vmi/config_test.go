// SPDX-License-Identifier: Apache-2.0

package vmi_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/vmi"
)

func TestConfig_With(t *testing.T) {
	ratio, hertz, own := "1.5", int64(2_000_000_000), int64(1)
	base := vmi.Config{LauncherImage: "launcher:1", StateClass: "own", MinimumTSC: &own, ContainerPaths: true}
	for name, tt := range map[string]struct {
		kv   *v1.KubeVirtConfiguration
		want vmi.Config
	}{
		"no KubeVirt object":    {nil, base},
		"one that says nothing": {&v1.KubeVirtConfiguration{}, base},
		"all": {&v1.KubeVirtConfiguration{
			VMStateStorageClass: "fast", AdditionalGuestMemoryOverheadRatio: &ratio,
			DeveloperConfiguration: &v1.DeveloperConfiguration{MinimumClusterTSCFrequency: &hertz, FeatureGates: []string{"VmiMemoryOverheadReport"}},
		}, vmi.Config{LauncherImage: "launcher:1", StateClass: "fast", MemoryRatio: "1.5", MinimumTSC: &hertz, ReportOverhead: true, ContainerPaths: true,
			FeatureGates: []string{"VmiMemoryOverheadReport"}}},
		"a gate that is disabled is off": {&v1.KubeVirtConfiguration{DeveloperConfiguration: &v1.DeveloperConfiguration{
			FeatureGates: []string{"ContainerPathVolumes"}, DisabledFeatureGates: []string{"ContainerPathVolumes"}}},
			vmi.Config{LauncherImage: "launcher:1", StateClass: "own", MinimumTSC: &own,
				FeatureGates: []string{"ContainerPathVolumes"}, DisabledFeatureGates: []string{"ContainerPathVolumes"}}},
	} {
		t.Run(name, func(t *testing.T) {
			var kv *v1.KubeVirt
			if tt.kv != nil {
				kv = &v1.KubeVirt{Spec: v1.KubeVirtSpec{Configuration: *tt.kv}}
			}
			if diff := cmp.Diff(tt.want, base.With(kv)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
