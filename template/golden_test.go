// SPDX-License-Identifier: Apache-2.0

package template_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/virtloom/virtloom/template"
	"github.com/virtloom/virtloom/template/render"
)

func richInput(t testing.TB) template.Input {
	in := input(read(t, "rich.vmi.yaml"),
		claim("shared", corev1.PersistentVolumeFilesystem, corev1.ReadWriteMany),
		claim("block", corev1.PersistentVolumeBlock, corev1.ReadWriteMany),
	)
	in.Config.ImagePullSecret = "launcher-pull"
	in.Config.SELinuxLauncherType = "virt_launcher.process"
	in.Config.DefaultRuntimeClass = "kata"
	in.Config.NodeSelectors = map[string]string{"zone": "b", "pool": "vm"}
	return in
}

func targetInput(t testing.TB) template.Input {
	in := input(read(t, "r1.vmi.yaml"))
	in.Config.SELinuxLauncherType = "virt_launcher.process"
	in.Migration = &render.Migration{
		UID: "m-1", Name: "move", AddedNodeSelector: map[string]string{"rack": "2", "kubevirt.io/schedulable": "no"},
		SourcePod: &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "virt-launcher-testvmi-x"},
			Status: corev1.PodStatus{InitContainerStatuses: []corev1.ContainerStatus{{
				Name: "volumeroot", ImageID: "docker://sha256:abcd1234567890",
			}}},
		},
		SourceNode: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{
			"host-model-cpu.node.kubevirt.io/Skylake":         "true",
			"host-model-required-features.node.kubevirt.io/x": "true",
			"cpu-vendor.node.kubevirt.io/Intel":               "true",
		}}},
	}
	return in
}

func TestGoldens(t *testing.T) {
	for name, renderPod := range map[string]func() (*corev1.Pod, error){
		"r0": func() (*corev1.Pod, error) { return template.Default().Launcher(input(newVMI())) },
		"r1": func() (*corev1.Pod, error) { return template.Default().Launcher(input(read(t, "r1.vmi.yaml"))) },
		"r2": func() (*corev1.Pod, error) {
			return template.Default().Launcher(input(read(t, "r1.vmi.yaml"), gatesOff("ImageVolume")))
		},
		"rich": func() (*corev1.Pod, error) { return template.Default().Launcher(richInput(t)) },
		"r1-migration-target": func() (*corev1.Pod, error) {
			return template.Default().MigrationTarget(targetInput(t))
		},
	} {
		t.Run(name, func(t *testing.T) {
			pod, err := renderPod()
			if err != nil {
				t.Fatal(err)
			}
			golden(t, name, pod)
		})
	}
}
