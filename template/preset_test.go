// SPDX-License-Identifier: Apache-2.0

package template_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/template"
)

// preset returns the renderer of KubeVirt's own unit tests: sidecars from the annotation only, no overhead of networks, no
// generated annotations.
func preset(t testing.TB) *template.Renderer {
	t.Helper()
	r := template.Default()
	for _, change := range []func() (*template.Renderer, error){
		func() (*template.Renderer, error) {
			return r.Replace(template.StageHooks, template.HooksStage(template.HookAnnotation{}))
		},
		func() (*template.Renderer, error) {
			return r.Replace(template.StageResources, template.ResourcesStage())
		},
		func() (*template.Renderer, error) { return r.Remove(template.StageNetwork) },
		func() (*template.Renderer, error) { return r.Remove(template.StageMesh) },
		func() (*template.Renderer, error) { return r.Remove(template.StageStorage) },
	} {
		next, err := change()
		if err != nil {
			t.Fatal(err)
		}
		r = next
	}
	return r
}

// presetInput returns the input of KubeVirt's own unit tests.
func presetInput(vmi *v1.VirtualMachineInstance, changes ...func(*template.Input)) template.Input {
	in := template.Input{VMI: vmi, Config: template.Config{
		LauncherImage: "kubevirt/virt-launcher", ImagePullSecret: "pull-secret-1", ImagePullPolicy: corev1.PullAlways,
		DisableSerialConsoleLog: true, ClusterArchitecture: "amd64",
	}}
	for _, change := range changes {
		change(&in)
	}
	permit(&in)
	return in
}

func gates(names ...string) func(*template.Input) {
	return func(in *template.Input) { in.Config.FeatureGates = append(in.Config.FeatureGates, names...) }
}

func gatesOff(names ...string) func(*template.Input) {
	return func(in *template.Input) {
		in.Config.DisabledFeatureGates = append(in.Config.DisabledFeatureGates, names...)
	}
}

// presetLauncher renders a launcher as KubeVirt's own unit tests do.
func presetLauncher(t *testing.T, vmi *v1.VirtualMachineInstance, changes ...func(*template.Input)) *corev1.Pod {
	t.Helper()
	pod, err := preset(t).Launcher(presetInput(vmi, changes...))
	if err != nil {
		t.Fatal(err)
	}
	return pod
}

// TestSpecPreset is case 36: the pull secret of the operator.
func TestSpecPreset(t *testing.T) {
	pod := presetLauncher(t, newVMI(), gatesOff("ImageVolume"), gates("Root"))
	if got := pod.Spec.ImagePullSecrets; len(got) != 1 || got[0].Name != "pull-secret-1" {
		t.Errorf("36: pull secrets %v", got)
	}
}
