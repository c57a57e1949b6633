// SPDX-License-Identifier: Apache-2.0

package template_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/virtloom/virtloom/template"
	"github.com/virtloom/virtloom/template/render"
)

// after renders the bare VMI with one more stage at the end.
func after(t *testing.T, apply func(*render.Draft), overrides ...string) (*corev1.Pod, error) {
	t.Helper()
	r, err := template.Default().After(template.StageScheduling, render.Stage{Name: "own", Overrides: overrides, Apply: func(d *render.Draft) error {
		apply(d)
		return nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	return r.Launcher(input(newVMI(guest("1Gi"), virtio)))
}

func TestSet_WritesOutsidePath(t *testing.T) {
	set := func(path string, write func(*corev1.Pod)) func(*render.Draft) {
		return func(d *render.Draft) { d.Set(path, write) }
	}
	for name, tt := range map[string]struct {
		apply func(*render.Draft)
		other string
	}{
		"another field": {set("spec.runtimeClassName", func(p *corev1.Pod) { p.Spec.RuntimeClassName, p.Spec.HostNetwork = new(string), true }), "spec.hostNetwork"},
		"a sibling":     {set("spec.securityContext.supplementalGroups", func(p *corev1.Pod) { p.Spec.SecurityContext.RunAsUser = new(int64(4711)) }), "spec.securityContext.runAsUser"},
		"its container": {set("spec.containers[compute].workingDir", func(p *corev1.Pod) { p.Spec.Containers[0].SecurityContext = nil }), "spec.containers"},
		"a new container": {set("spec.containers[compute].workingDir", func(p *corev1.Pod) {
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "spy", Image: "x"})
		}), "spec.containers"},
		"an environment variable": {set("spec.containers[compute].env[MINE]", func(p *corev1.Pod) {
			p.Spec.Containers[0].Env = append(p.Spec.Containers[0].Env, corev1.EnvVar{Name: "MINE"}, corev1.EnvVar{Name: "LD_PRELOAD", Value: "x"})
		}), "spec.containers"},
		"another label": {set("metadata.labels[mine]", func(p *corev1.Pod) { p.Labels["mine"], p.Labels["kubevirt.io"] = "x", "y" }), "metadata.labels.kubevirt.io"},
		"the metadata":  {set("spec.runtimeClassName", func(p *corev1.Pod) { p.OwnerReferences = nil }), "metadata.ownerReferences"},
		"all of it":     {set("spec.runtimeClassName", func(p *corev1.Pod) { *p = corev1.Pod{} }), ""},
	} {
		_, err := after(t, tt.apply)
		var refusal *render.Error
		if !errors.As(err, &refusal) || refusal.Stage != "own" || !strings.Contains(err.Error(), "changed it by Set of") || tt.other != "" && refusal.Field != tt.other {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestSet_UnknownPaths(t *testing.T) {
	for _, path := range []string{"spec.nonsense", "nonsense", "spec.runtimeClassName.x", "spec.containers[compute].nonsense", "metadata.nonsense[a]", "spec.securityContext.runAsUser.x"} {
		called := false
		_, err := after(t, func(d *render.Draft) { d.Set(path, func(*corev1.Pod) { called = true }) })
		if !errors.Is(err, render.ErrInvalid) || !strings.Contains(err.Error(), path) || called {
			t.Errorf("%s: %v, called: %t", path, err, called)
		}
	}
}

func TestSet_WritesPath(t *testing.T) {
	var kept *corev1.Pod
	pod, err := after(t, func(d *render.Draft) {
		d.Set("spec.runtimeClassName", func(p *corev1.Pod) { kept, p.Spec.RuntimeClassName = p, new(string) })
		d.Set("spec.dnsConfig.searches", func(p *corev1.Pod) { p.Spec.DNSConfig = &corev1.PodDNSConfig{Searches: []string{"a"}} })
		d.Set("spec.containers[compute].env[MINE]", func(p *corev1.Pod) {
			p.Spec.Containers[0].Env = append(p.Spec.Containers[0].Env, corev1.EnvVar{Name: "MINE"})
		})
		d.Set("metadata.labels[mine]", func(p *corev1.Pod) { p.Labels["mine"] = "x" })
		kept.Spec.HostNetwork, *kept.Spec.RuntimeClassName = true, "changed later"
		d.Pod().Spec.HostPID = true
	})
	if err != nil {
		t.Fatal(err)
	}
	if pod.Spec.HostNetwork || pod.Spec.HostPID || *pod.Spec.RuntimeClassName != "" {
		t.Error("a pointer that a stage has kept still refers to the Pod")
	}
	env := pod.Spec.Containers[0].Env
	if pod.Labels["mine"] != "x" || env[len(env)-1].Name != "MINE" || pod.Spec.DNSConfig.Searches[0] != "a" {
		t.Errorf("not written: %+v", pod)
	}
}

// TestSet_StockStages renders the corpus with audited stock stages.
func TestSet_StockStages(t *testing.T) {
	audited, err := template.Distrusted()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range corpus(t) {
		want, err := p.render()
		if err != nil {
			continue // the corpus has its own test
		}
		got, err := audited.Render(p.kind, p.in)
		if err != nil {
			t.Errorf("%s: %v", p.name, err)
			continue
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: -want +got\n%s", p.name, diff)
		}
	}
}
