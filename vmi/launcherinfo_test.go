// SPDX-License-Identifier: Apache-2.0

package vmi

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	v1 "kubevirt.io/api/core/v1"
)

func TestLauncherImage(t *testing.T) {
	containers := func(all ...string) *corev1.Pod {
		p := &corev1.Pod{}
		for i := 0; i < len(all); i += 2 {
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: all[i], Image: all[i+1]})
		}
		return p
	}
	for name, tt := range map[string]struct {
		pod        *corev1.Pod
		configured string
		labels     map[string]string
		version    string
		outdated   bool
	}{
		"58 another image":           {containers("sidecar", "new", "compute", "old"), "new", nil, "old", true},
		"58 the configured one":      {containers("compute", "new"), "new", map[string]string{v1.OutdatedLauncherImageLabel: ""}, "new", false},
		"58 nothing to compare with": {containers("compute", "old"), "", nil, "old", false},
		"58 a Pod without a guest":   {containers("sidecar", "old"), "new", nil, "", false},
		"74 no Pod":                  {nil, "new", map[string]string{v1.OutdatedLauncherImageLabel: ""}, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			version, outdated := launcherImage(tt.pod, tt.configured)
			if version != tt.version || outdated != tt.outdated {
				t.Errorf("got %q, %t, want %q, %t", version, outdated, tt.version, tt.outdated)
			}
			g := runs(func(g *v1.VirtualMachineInstance) {
				g.Labels, g.Status.LauncherContainerImageVersion = tt.labels, "before"
			})
			setLauncherImage(g, version, outdated)
			value, labelled := g.Labels[v1.OutdatedLauncherImageLabel]
			if labelled != tt.outdated || value != "" || g.Status.LauncherContainerImageVersion != tt.version {
				t.Errorf("the guest has labels %v and image %q", g.Labels, g.Status.LauncherContainerImageVersion)
			}
		})
	}
}

func TestMemoryOverhead(t *testing.T) {
	says := func(text string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"kubevirt.io/memory-overhead-bytes": text}}}
	}
	has := func(s string) *v1.MemoryStatus {
		return &v1.MemoryStatus{MemoryOverhead: ptr.To(resource.MustParse(s))}
	}
	for name, tt := range map[string]struct {
		pod  *corev1.Pod
		has  *v1.MemoryStatus
		want string
	}{
		"73 the Pod says":                  {says("268435456"), nil, "256Mi"},
		"73 other memory is known":         {says("268435456"), &v1.MemoryStatus{}, "256Mi"},
		"73 it has changed":                {says("268435456"), has("128Mi"), "256Mi"},
		"73 it is known":                   {says("268435456"), has("268435456"), ""},
		"73 the Pod does not say":          {&corev1.Pod{}, has("128Mi"), ""},
		"73 no Pod":                        {nil, has("128Mi"), ""},
		"73 what is no amount":             {says("much"), nil, ""},
		"73 what is less than none at all": {says("-1"), nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := memoryOverhead(runs(func(g *v1.VirtualMachineInstance) { g.Status.Memory = tt.has }), tt.pod)
			if (got != nil) != (tt.want != "") || got != nil && got.String() != tt.want {
				t.Errorf("got %v, want %q", got, tt.want)
			}
		})
	}
}
