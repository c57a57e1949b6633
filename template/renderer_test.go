// SPDX-License-Identifier: Apache-2.0

package template_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/virtloom/virtloom/template"
	"github.com/virtloom/virtloom/template/render"
)

func TestRender_InputUnchanged(t *testing.T) {
	for name, tc := range map[string]struct {
		in     func() template.Input
		render func(template.Input) (*corev1.Pod, error)
	}{
		"launcher": {func() template.Input { return richInput(t) }, template.Default().Launcher},
		"target":   {func() template.Input { return targetInput(t) }, template.Default().MigrationTarget},
	} {
		t.Run(name, func(t *testing.T) {
			in, pristine := tc.in(), tc.in()
			first, err := tc.render(in)
			if err != nil {
				t.Fatal(err)
			}
			want, err := yaml.Marshal(first)
			if err != nil {
				t.Fatal(err)
			}
			for range 50 { // many more, of more VMIs: TestRender_Deterministic
				pod, err := tc.render(in)
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(first, pod); diff != "" {
					t.Fatalf("another rendering differs:\n%s", diff)
				}
			}
			// Modifying a rendered Pod must not modify the input either.
			for i := range first.Spec.Tolerations {
				first.Spec.Tolerations[i].Key = "changed"
			}
			for i := range first.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
				first.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[i].MatchExpressions[0].Key = "changed"
			}
			if diff := cmp.Diff(pristine, in, cmp.Comparer(func(a, b resource.Quantity) bool { return a.Cmp(b) == 0 })); diff != "" {
				t.Errorf("the input was changed:\n%s", diff)
			}
			again, err := tc.render(in)
			if err != nil {
				t.Fatal(err)
			}
			got, err := yaml.Marshal(again)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), string(got)); diff != "" {
				t.Errorf("bytes differ:\n%s", diff)
			}
		})
	}
}

func stage(name string, apply func(*render.Draft)) render.Stage {
	return render.Stage{Name: name, Apply: func(d *render.Draft) error { apply(d); return nil }}
}

func TestRenderer_Derived(t *testing.T) {
	nothing := stage("extra", func(*render.Draft) {})
	base, err := render.NewRenderer(stage("a", func(*render.Draft) {}), stage("b", func(*render.Draft) {}))
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		derive func() (*template.Renderer, error)
		want   string
	}{
		"before":         {func() (*template.Renderer, error) { return base.Before("b", nothing) }, "a extra b"},
		"after":          {func() (*template.Renderer, error) { return base.After("b", nothing) }, "a b extra"},
		"replace":        {func() (*template.Renderer, error) { return base.Replace("a", nothing) }, "extra b"},
		"remove":         {func() (*template.Renderer, error) { return base.Remove("a") }, "b"},
		"unknown":        {func() (*template.Renderer, error) { return base.After("c", nothing) }, ""},
		"repeated name":  {func() (*template.Renderer, error) { return base.After("a", stage("b", func(*render.Draft) {})) }, ""},
		"without a name": {func() (*template.Renderer, error) { return base.After("a", stage("", func(*render.Draft) {})) }, ""},
		"without a step": {func() (*template.Renderer, error) { return base.After("a", render.Stage{Name: "x"}) }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := tc.derive()
			if tc.want == "" {
				if !errors.Is(err, render.ErrStage) {
					t.Errorf("got %v, want ErrStage", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(r.Stages(), " "); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
			if got := strings.Join(base.Stages(), " "); got != "a b" {
				t.Errorf("the base renderer became %q", got)
			}
		})
	}
}

func TestStage_FieldOfAnotherStage(t *testing.T) {
	for name, tc := range map[string]struct {
		apply func(*render.Draft)
		field string
		check func(*corev1.Pod) bool
	}{
		"scalar": {func(d *render.Draft) {
			d.Set("spec.hostname", func(p *corev1.Pod) { p.Spec.Hostname = "mine" })
		}, "spec.hostname", func(p *corev1.Pod) bool { return p.Spec.Hostname == "mine" }},
		"label": {func(d *render.Draft) { d.Label("kubevirt.io", "mine") },
			"metadata.labels[kubevirt.io]", func(p *corev1.Pod) bool { return p.Labels["kubevirt.io"] == "mine" }},
		"environment": {func(d *render.Draft) { d.Container("compute").Env(corev1.EnvVar{Name: "POD_NAME", Value: "mine"}) },
			"spec.containers[compute].env[POD_NAME]", func(p *corev1.Pod) bool { return p.Spec.Containers[0].Env[0].Value == "mine" }},
		"request": {func(d *render.Draft) { d.Container("compute").Request("cpu", resource.MustParse("7")) },
			"spec.containers[compute].resources.requests[cpu]", func(p *corev1.Pod) bool { return p.Spec.Containers[0].Resources.Requests.Cpu().Value() == 7 }},
		"volume": {func(d *render.Draft) {
			d.Volume(corev1.Volume{Name: "private", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/mine"}}})
		}, "spec.volumes[private]", func(p *corev1.Pod) bool { return p.Spec.Volumes[0].HostPath != nil }},
		"image": {func(d *render.Draft) {
			d.Set("spec.containers[compute].image", func(p *corev1.Pod) { p.Spec.Containers[0].Image = "mine" })
		}, "spec.containers[compute].image", func(p *corev1.Pod) bool { return p.Spec.Containers[0].Image == "mine" }},
	} {
		t.Run(name, func(t *testing.T) {
			own := stage("mine", tc.apply)
			r, err := template.Default().After(template.StageMigration, own)
			if err != nil {
				t.Fatal(err)
			}
			_, err = r.Launcher(input(newVMI()))
			wantError(t, err, tc.field, render.ErrFieldOwned)
			if !strings.Contains(err.Error(), `"mine"`) {
				t.Errorf("%q does not name the stage", err)
			}
			own.Overrides = []string{tc.field}
			if r, err = template.Default().After(template.StageMigration, own); err != nil {
				t.Fatal(err)
			}
			e, err := r.Explain(render.LauncherPod, input(newVMI()))
			if err != nil {
				t.Fatal(err)
			}
			if got := originAt(t, e, tc.field); !tc.check(e.Pod) || got.Stage != "mine" || got.Overrode == "" {
				t.Errorf("%v; changed: %v", got, tc.check(e.Pod))
			}
		})
	}
}

func TestStage_MissingContainer(t *testing.T) {
	r, err := render.NewRenderer(stage("env", func(d *render.Draft) { d.Container("nobody").Env(corev1.EnvVar{Name: "A"}) }))
	if err != nil {
		t.Fatal(err)
	}
	_, err = r.Launcher(input(newVMI()))
	wantError(t, err, "spec.containers[nobody]", render.ErrInvalid)
}

func TestStage_ErrorCause(t *testing.T) {
	cause := errors.New("cause")
	r, err := render.NewRenderer(render.Stage{Name: "x", Apply: func(*render.Draft) error { return cause }})
	if err != nil {
		t.Fatal(err)
	}
	_, err = r.Launcher(input(newVMI()))
	var e *render.Error
	if !errors.As(err, &e) || e.Stage != "x" || !errors.Is(err, cause) {
		t.Errorf("got %v", err)
	}
}

func TestExplain_EveryField(t *testing.T) {
	e, err := template.Default().Explain(render.TargetPod, targetInput(t))
	if err != nil {
		t.Fatal(err)
	}
	for field, want := range map[string]string{
		"metadata.name": template.StageMigration,
		"metadata.labels[kubevirt.io/created-by]":                            template.StageMetadata,
		"metadata.annotations[kubevirt.io/memory-overhead-bytes]":            template.StageResources,
		"spec.containers[compute].args[--uid]":                               template.StageCompute,
		"spec.containers[compute].resources.requests[memory]":                template.StageResources,
		"spec.containers[compute].resources.limits[devices.kubevirt.io/kvm]": template.StageDevices,
		"spec.volumes[root]":      template.StageImages,
		"spec.nodeSelector[rack]": template.StageMigration,
	} {
		if got := originAt(t, e, field); got.Stage != want {
			t.Errorf("%s is owned by %q, want %q", field, got.Stage, want)
		}
	}
}

// originAt returns the origin of exactly one field.
func originAt(t *testing.T, e *render.Explanation, field string) render.Origin {
	t.Helper()
	origins, err := e.At(field)
	if err != nil {
		t.Fatal(err)
	}
	if len(origins) != 1 {
		t.Fatalf("%s has %d origins: %v", field, len(origins), origins)
	}
	return origins[0]
}

func TestPodNames_Intent(t *testing.T) {
	a, b := newVMI(), newVMI(func(vmi *v1.VirtualMachineInstance) { vmi.UID = "other" })
	if template.LauncherName(a) != template.LauncherName(a.DeepCopy()) {
		t.Error("one guest, two names")
	}
	names := map[string]bool{
		template.LauncherName(a): true, template.LauncherName(b): true,
		template.TargetName(a, "m1"): true, template.TargetName(a, "m2"): true, template.TargetName(b, "m1"): true,
	}
	if len(names) != 5 {
		t.Errorf("intents share a name: %v", names)
	}
}

func FuzzNamesAndLabels(f *testing.F) {
	f.Add("testvmi", "1234", "m", "")
	f.Add(strings.Repeat("a", 250), "u", "m", "host")
	f.Add("a-very-very-long-virtual-machine-instance-name-used-for-testing-this-logic", "x", "", "")
	f.Add(strings.Repeat("x", 62)+"-b", "u", "m", "")
	f.Add("..", "-", "-", "-")
	f.Fuzz(func(t *testing.T, name, uid, migration, host string) {
		vmi := newVMI(func(vmi *v1.VirtualMachineInstance) {
			vmi.Name, vmi.UID, vmi.Spec.Hostname = name, types.UID(uid), host
		})
		for _, got := range []string{template.LauncherName(vmi), template.TargetName(vmi, types.UID(migration))} {
			if problems := validation.IsDNS1123Label(got); len(problems) > 0 {
				t.Errorf("name %q: %v", got, problems)
			}
		}
		if len(validation.IsDNS1123Subdomain(name)) > 0 || len(validation.IsValidLabelValue(uid)) > 0 {
			return // the API server rejects such an object
		}
		pod, err := template.Default().Launcher(input(vmi))
		if err != nil {
			var e *render.Error
			if !errors.As(err, &e) {
				t.Fatalf("untyped error %v", err)
			}
			return
		}
		for key, value := range pod.Labels {
			if problems := validation.IsValidLabelValue(value); len(problems) > 0 {
				t.Errorf("label %s=%q: %v", key, value, problems)
			}
		}
		if problems := validation.IsDNS1123Label(pod.Spec.Hostname); len(problems) > 0 {
			t.Errorf("hostname %q: %v", pod.Spec.Hostname, problems)
		}
	})
}
