// SPDX-License-Identifier: Apache-2.0

package template_test

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"
)

func annotate(key, value string) change {
	return func(vmi *v1.VirtualMachineInstance) {
		if vmi.Annotations == nil {
			vmi.Annotations = map[string]string{}
		}
		vmi.Annotations[key] = value
	}
}

func TestConsoleLogContainer(t *testing.T) {
	yes, no := true, false
	for name, tc := range map[string]struct {
		attach, log *bool
		disabled    bool
		want        bool
	}{
		"default": {nil, nil, false, true}, "disabled in cluster": {nil, nil, true, false},
		"asked for": {nil, &yes, true, true}, "declined": {nil, &no, false, false},
		"120 TT": {&yes, &yes, false, true}, "120 TF": {&yes, &no, false, false},
		"120 FT": {&no, &yes, false, false}, "120 FF": {&no, &no, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			in := input(newVMI(func(vmi *v1.VirtualMachineInstance) {
				vmi.Spec.Domain.Devices.AutoattachSerialConsole, vmi.Spec.Domain.Devices.LogSerialConsole = tc.attach, tc.log
			}))
			in.Config.DisableSerialConsoleLog = tc.disabled
			if got := len(launcher(t, in).Spec.InitContainers) == 1; got != tc.want {
				t.Errorf("rendered %v, want %v", got, tc.want)
			}
		})
	}
}

func TestVolumes_NotInLauncher(t *testing.T) {
	vmi := newVMI(
		volume("inline", v1.VolumeSource{CloudInitNoCloud: &v1.CloudInitNoCloudSource{UserData: "x"}}),
		volume("empty", v1.VolumeSource{EmptyDisk: &v1.EmptyDiskSource{Capacity: *quantity("1Gi")}}),
		volume("late", v1.VolumeSource{DataVolume: &v1.DataVolumeSource{Name: "dv", Hotpluggable: true}}),
		volume("plugged", pvc("c")),
		volume("dump", v1.VolumeSource{MemoryDump: &v1.MemoryDumpVolumeSource{}}),
		func(vmi *v1.VirtualMachineInstance) {
			vmi.Status.VolumeStatus = []v1.VolumeStatus{{Name: "plugged", HotplugVolume: &v1.HotplugVolumeStatus{}}}
		},
	)
	for _, v := range launcher(t, input(vmi)).Spec.Volumes {
		if slices.Contains([]string{"inline", "empty", "late", "plugged", "dump"}, v.Name) {
			t.Errorf("volume %s is in the launcher", v.Name)
		}
	}
}

func TestImages_WithoutDigestContainers(t *testing.T) {
	vmi := newVMI(volume("r0", image("someImage")), annotate("kubevirt.io/image-volume-skip-digest-resolution", "true"))
	pod := launcher(t, input(vmi))
	if len(pod.Spec.InitContainers) != 1 {
		t.Errorf("%d init containers, want the console log alone", len(pod.Spec.InitContainers))
	}
	for _, v := range pod.Spec.Volumes {
		if v.Name == "launcher-volume" {
			t.Error("the launcher's image is mounted without need")
		}
	}
}

func TestEphemeralStorage_LauncherFilesAdded(t *testing.T) {
	vmi := newVMI(requests("ephemeral-storage", "30M"), limits("ephemeral-storage", "70M"))
	got := container(t, launcher(t, input(vmi)), "compute").Resources
	if r, l := got.Requests[corev1.ResourceEphemeralStorage], got.Limits[corev1.ResourceEphemeralStorage]; r.String() != "80M" || l.String() != "120M" {
		t.Errorf("request %s, limit %s; want 80M, 120M", r.String(), l.String())
	}
}
