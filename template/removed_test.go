// SPDX-License-Identifier: Apache-2.0

package template_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/virtloom/virtloom/template"
	"github.com/virtloom/virtloom/template/render"
)

// TestRenderer_RemovedStage renders each Pod of the corpus without each of the stages: a missing stage may cause an error
// of another one, never a panic.
func TestRenderer_RemovedStage(t *testing.T) {
	pods := corpus(t)
	for _, name := range template.Default().Stages() {
		t.Run(name, func(t *testing.T) {
			r, err := template.Default().Remove(name)
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range pods {
				renderWithout(t, r, p)
			}
		})
	}
}

func renderWithout(t *testing.T, r *template.Renderer, p corpusPod) {
	t.Helper()
	defer func() {
		if fault := recover(); fault != nil {
			t.Errorf("%s: panic: %v", p.name, fault)
		}
	}()
	if pod, err := r.Render(p.kind, p.in); (pod == nil) == (err == nil) {
		t.Errorf("%s: Pod %v with error %v", p.name, pod, err)
	}
}

// TestRenderer_PrependedContainer inserts a container before that of the stock stages, which must still find their own.
func TestRenderer_PrependedContainer(t *testing.T) {
	for name, tc := range map[string]struct {
		before, own string
		kind        render.PodKind
		in          template.Input
		ready       bool
	}{
		"attachment": {template.StageHotplugPod, "hotplug-disk", render.AttachmentPod, plugInput(t, "v1"), false},
		"trigger":    {template.StageHotplugPod, "hotplug-disk", render.TriggerPod, plugInput(t, "v1"), false},
		"exporter":   {template.StageExporter, "exporter", render.ExporterPod, exportInput(serving()), true},
	} {
		t.Run(name, func(t *testing.T) {
			tc.in.Config.SELinuxLauncherType = "own_t"
			first := render.Stage{Name: "first", Pods: render.AllPods, Apply: func(d *render.Draft) error {
				d.AddContainer(corev1.Container{Name: "first", Image: "example.com/first:v1"})
				return nil
			}}
			r, err := template.Default().Before(tc.before, first)
			if err != nil {
				t.Fatal(err)
			}
			pod, err := r.Render(tc.kind, tc.in)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(corev1.Container{Name: "first", Image: "example.com/first:v1"}, pod.Spec.Containers[0]); diff != "" {
				t.Errorf("the container of another stage was changed:\n%s", diff)
			}
			own := container(t, pod, tc.own)
			if level := own.SecurityContext.SELinuxOptions; (level == nil) != tc.ready || (own.ReadinessProbe != nil) != tc.ready {
				t.Errorf("SELinux options %v, readiness %v", level, own.ReadinessProbe)
			}
		})
	}
}
