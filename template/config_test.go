// SPDX-License-Identifier: Apache-2.0

package template_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/template"
)

func TestConfigFrom_KubeVirt(t *testing.T) {
	ratio, no := "1.5", false
	verbosity := uint(6)
	limit := quantity("1000")
	profile := &v1.CustomProfile{RuntimeDefaultProfile: true}
	kv := &v1.KubeVirt{
		ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"kubevirt.io/skip-backup-hooks": "T"}},
		Spec: v1.KubeVirtSpec{Configuration: v1.KubeVirtConfiguration{
			ImagePullPolicy: "Always", SELinuxLauncherType: "type", DefaultRuntimeClass: "kata", OVMFPath: "/o",
			AdditionalGuestMemoryOverheadRatio: &ratio,
			SeccompConfiguration: &v1.SeccompConfiguration{
				VirtualMachineInstanceProfile: &v1.VirtualMachineInstanceProfile{CustomProfile: profile},
			},
			MigrationConfiguration: &v1.MigrationConfiguration{MatchSELinuxLevelOnMigration: &no},
			VirtualMachineOptions:  &v1.VirtualMachineOptions{DisableSerialConsoleLog: &v1.DisableSerialConsoleLog{}},
			DeveloperConfiguration: &v1.DeveloperConfiguration{
				UseEmulation: true, CPUAllocationRatio: 5, MemoryOvercommit: 120, NodeSelectors: map[string]string{"a": "b"},
				FeatureGates: []string{"X"}, DisabledFeatureGates: []string{"Y"},
				LogVerbosity:     &v1.LogVerbosity{VirtLauncher: verbosity},
				DiskVerification: &v1.DiskVerification{MemoryLimit: limit},
			},
		}},
	}
	want := template.Config{
		LauncherImage: "l", ImagePullPolicy: "Always", SELinuxLauncherType: "type", DefaultRuntimeClass: "kata", OVMFPath: "/o",
		AdditionalGuestMemoryOverheadRatio: "1.5", Seccomp: profile, IgnoreSELinuxLevel: true, DisableSerialConsoleLog: true,
		AllowEmulation: true, CPUAllocationRatio: 5, MemoryOvercommit: 120, NodeSelectors: map[string]string{"a": "b"},
		FeatureGates: []string{"X"}, DisabledFeatureGates: []string{"Y"}, LauncherVerbosity: &verbosity,
		DiskMemoryLimit: 1000, SkipBackupHooks: true,
	}
	if diff := cmp.Diff(want, template.ConfigFrom(kv, "l")); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(template.Config{LauncherImage: "l", Seccomp: profile}, template.ConfigFrom(nil, "l")); diff != "" {
		t.Error(diff)
	}
}

func TestConfigFrom_SeccompProfile(t *testing.T) {
	yes, file := true, "p.json"
	ofRuntime := &v1.CustomProfile{RuntimeDefaultProfile: true}
	for name, tc := range map[string]struct {
		is   v1.KubeVirtConfiguration
		want *v1.CustomProfile
	}{
		"without a choice": {want: ofRuntime},
		"post-copy":        {is: v1.KubeVirtConfiguration{MigrationConfiguration: &v1.MigrationConfiguration{AllowPostCopy: &yes}}},
		"no post-copy":     {is: v1.KubeVirtConfiguration{MigrationConfiguration: &v1.MigrationConfiguration{}}, want: ofRuntime},
		"none":             {is: v1.KubeVirtConfiguration{SeccompConfiguration: &v1.SeccompConfiguration{}}},
		"none for VMIs":    {is: v1.KubeVirtConfiguration{SeccompConfiguration: &v1.SeccompConfiguration{VirtualMachineInstanceProfile: &v1.VirtualMachineInstanceProfile{}}}},
		"post-copy with a profile": {
			is: v1.KubeVirtConfiguration{
				MigrationConfiguration: &v1.MigrationConfiguration{AllowPostCopy: &yes},
				SeccompConfiguration: &v1.SeccompConfiguration{VirtualMachineInstanceProfile: &v1.VirtualMachineInstanceProfile{
					CustomProfile: &v1.CustomProfile{LocalhostProfile: &file},
				}},
			},
			want: &v1.CustomProfile{LocalhostProfile: &file},
		},
	} {
		kv := &v1.KubeVirt{Spec: v1.KubeVirtSpec{Configuration: tc.is}}
		if diff := cmp.Diff(tc.want, template.ConfigFrom(kv, "l").Seccomp); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// The shim is of the launcher's release: KubeVirt's operator names all images alike.
func TestConfigFrom_SidecarShimImage(t *testing.T) {
	for launcher, want := range map[string]string{
		"quay.io/kubevirt/virt-launcher:v1.9.0":         "quay.io/kubevirt/sidecar-shim:v1.9.0",
		"registry:5000/kubevirt/virt-launcher":          "registry:5000/kubevirt/sidecar-shim",
		"registry:5000/x/my-virt-launcher:devel":        "registry:5000/x/my-sidecar-shim:devel",
		"virt-launcher:v1":                              "sidecar-shim:v1",
		"quay.io/kubevirt/launcher:v1":                  "",
		"quay.io/virt-launcher/other:v1":                "",
		"quay.io/kubevirt/virt-launcher@sha256:0123":    "",
		"quay.io/kubevirt/virt-launcher:v1@sha256:0123": "",
		"": "",
	} {
		for _, kv := range []*v1.KubeVirt{nil, {}} {
			if got := template.ConfigFrom(kv, launcher).SidecarShimImage; got != want {
				t.Errorf("beside %q: %q, want %q", launcher, got, want)
			}
		}
	}
}
