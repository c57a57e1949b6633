// SPDX-License-Identifier: Apache-2.0

package render_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/virtloom/virtloom/template/render"
)

// confusable returns a Pod with names that are similar to each other.
func confusable(t *testing.T) *render.Explanation {
	t.Helper()
	return mustDraw(t, []string{"spec.securityContext.runAsUser"},
		func(d *render.Draft) {
			d.Label("a", "1")
			d.Label("kubevirt.io", "1")
			d.Label("kubevirt.io.more", "1")
			d.EmptyDir("1")
			d.EmptyDir("2fast")
			d.EmptyDir("data")
			d.AddContainer(corev1.Container{Name: "box", Image: "i", SecurityContext: &corev1.SecurityContext{}})
			d.AddInitContainer(corev1.Container{Name: "init", Image: "j"})
			d.Container("box").Mount(corev1.VolumeMount{Name: "data", MountPath: "/a"})
			d.Set("spec.securityContext", nothing)
		},
		func(d *render.Draft) {
			d.Label("a.b", "1")
			d.Container("box").Mount(corev1.VolumeMount{Name: "data", MountPath: "/a.b"})
			d.From("spec.domain.memory").Terms(
				render.Term{Name: "guest", Amount: resource.MustParse("1Gi"), From: "spec.domain.memory.guest"},
				render.Term{Name: "overhead", Amount: resource.MustParse("288Mi")},
			).Container("box").Request("memory", resource.MustParse("1312Mi"))
			d.Container("box").Limit("devices.kubevirt.io/kvm", resource.MustParse("1"))
			d.Set("spec.containers[box].livenessProbe", nothing)
			d.Container("box").Env(corev1.EnvVar{Name: "A"})
			d.Set("spec.securityContext.runAsUser", nothing)
		})
}

func TestExplanationAt_PathForms(t *testing.T) {
	e := confusable(t)
	const (
		memory = "spec.containers[box].resources.requests[memory]"
		kvm    = "spec.containers[box].resources.limits[devices.kubevirt.io/kvm]"
	)
	for asked, want := range map[string]string{
		memory: memory, "." + memory: memory, "spec.containers[0].resources.requests[memory]": memory,
		".spec.containers[0].resources.requests.memory":                memory,
		"spec.containers.0.resources.requests.memory":                  memory,
		"spec.containers.box.resources.requests.memory":                memory,
		"spec.containers.box.resources.requests":                       memory,
		kvm:                                                            kvm,
		"spec.containers.box.resources.limits.devices.kubevirt.io/kvm": kvm,
		"spec.containers[box].resources.limits":                        kvm,
		"spec.initContainers[0].image":                                 "spec.initContainers[init].image",
		"metadata.labels[a]":                                           "metadata.labels[a]",
		"metadata.labels.a":                                            "metadata.labels[a]",
		"metadata.labels[a.b]":                                         "metadata.labels[a.b]",
		"metadata.labels.a.b":                                          "metadata.labels[a.b]",
		"metadata.labels[kubevirt.io]":                                 "metadata.labels[kubevirt.io]",
		"metadata.labels":                                              "metadata.labels[a.b] metadata.labels[a] metadata.labels[kubevirt.io.more] metadata.labels[kubevirt.io]",
		"spec.containers[box].volumeMounts[/a]":                        "spec.containers[box].volumeMounts[/a]",
		"spec.containers[box].volumeMounts[/a.b]":                      "spec.containers[box].volumeMounts[/a.b]",
		"spec.containers[box].volumeMounts[/a].readOnly":               "spec.containers[box].volumeMounts[/a]",
		"spec.containers[0].volumeMounts[/a.b].readOnly":               "spec.containers[box].volumeMounts[/a.b]",
		"spec.containers[box].env[A].value":                            "spec.containers[box].env[A]",
		"spec.containers[box].livenessProbe.exec.command":              "spec.containers[box].livenessProbe",
		"spec.containers.box.livenessProbe.exec":                       "spec.containers[box].livenessProbe",
		"spec.containers[box].securityContext.runAsUser":               "spec.containers[box].securityContext",
		"spec.volumes[1]":                                              "spec.volumes[1]", // its name, not its index
		"spec.volumes[0]":                                              "spec.volumes[1]",
		"spec.volumes[2]":                                              "spec.volumes[data]",
		"spec.volumes.2.emptyDir":                                      "spec.volumes[data]",
		"spec.volumes[2fast]":                                          "spec.volumes[2fast]",
		"spec.volumes.2fast.emptyDir":                                  "spec.volumes[2fast]",
		"spec.volumes[data].emptyDir.sizeLimit":                        "spec.volumes[data]",
		"spec.securityContext":                                         "spec.securityContext spec.securityContext.runAsUser",
		"spec.securityContext.runAsUser":                               "spec.securityContext.runAsUser",
		"spec.securityContext.seLinuxOptions.level":                    "spec.securityContext",
	} {
		t.Run(asked, func(t *testing.T) {
			origins, err := e.At(asked)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, o := range origins {
				got = append(got, o.Path)
			}
			if diff := cmp.Diff(want, strings.Join(got, " ")); diff != "" {
				t.Error(diff)
			}
		})
	}
	for _, asked := range []string{"", "."} {
		if all, err := e.At(asked); err != nil || len(all) != len(e.Fields) {
			t.Errorf("%q: %d origins of %d, %v", asked, len(all), len(e.Fields), err)
		}
	}
}

func TestExplanationAt_UnknownPaths(t *testing.T) {
	e := confusable(t)
	for _, asked := range []string{
		"spec.hostname", "spec.host", "metadata.label", "metadata.labels[kubevirt]", "metadata.labels.kubevirt", "metadata.labels[b]",
		"metadata.labels[a].b.c", "metadata.labels[a.b.c]", "spec.containers[1].image", "spec.containers[-1].image",
		"spec.containers[99999999999999999999].image", "spec.containers[box].command", "spec.containers[box].volumeMounts[/a.c]",
		"spec.containers[box].volumeMounts[/]", "spec.containers[box].resources.limits[devices]", "spec.containers[box].env[B]",
		"spec.volumes[3]", "spec.volumes[2slow]", "spec.volumes[dat]", "spec.initContainers[box].image", "[", "]", "spec.containers[init]",
	} {
		t.Run(asked, func(t *testing.T) {
			origins, err := e.At(asked)
			var typed *render.Error
			if !errors.As(err, &typed) || !errors.Is(err, render.ErrInvalid) || typed.Field != asked {
				t.Errorf("got %v, %v", origins, err)
			}
		})
	}
}

func TestExplanationAt_Terms(t *testing.T) {
	got := originAt(t, confusable(t), "spec.containers[0].resources.requests[memory]")
	if sum := render.Sum(got.Terms); sum.Cmp(resource.MustParse("1312Mi")) != 0 || got.From != "spec.domain.memory" || got.Stage != "second" {
		t.Errorf("sum %s of %v", sum.String(), got)
	}
	want := "spec.containers[box].resources.requests[memory]: stage second, from spec.domain.memory\n" +
		"  1Gi guest (spec.domain.memory.guest)\n  288Mi overhead"
	if diff := cmp.Diff(want, got.String()); diff != "" {
		t.Error(diff)
	}
	over := originAt(t, confusable(t), "spec.securityContext.runAsUser")
	if want := "spec.securityContext.runAsUser: stage second, instead of stage first"; over.String() != want {
		t.Errorf("got %q, want %q", over.String(), want)
	}
	if sum := render.Sum(nil); !sum.IsZero() {
		t.Errorf("nothing sums up to %s", sum.String())
	}
	negative := []render.Term{{Amount: resource.MustParse("2Gi")}, {Amount: resource.MustParse("-1Gi")}}
	if sum := render.Sum(negative); sum.String() != "1Gi" || negative[0].Amount.String() != "2Gi" {
		t.Errorf("sum %s; the first term became %s", sum.String(), negative[0].Amount.String())
	}
}

// TestTerms_OverriddenField checks that a stage that overrides a calculated field drops its terms.
func TestTerms_OverriddenField(t *testing.T) {
	cpu := "spec.containers[box].resources.requests[cpu]"
	e := mustDraw(t, []string{cpu},
		func(d *render.Draft) {
			boxed(corev1.Container{})(d)
			d.Terms(render.Term{Name: "vCPUs", Amount: resource.MustParse("1")}).Container("box").Request("cpu", resource.MustParse("1"))
		},
		func(d *render.Draft) { d.Container("box").Request("cpu", resource.MustParse("2")) })
	if got := originAt(t, e, cpu); len(got.Terms) != 0 || got.Overrode != "first" {
		t.Errorf("got %v", got)
	}
}
