// SPDX-License-Identifier: Apache-2.0

package vmi_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/ptr"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/vmi"
)

func invtsc(policy string) func(*v1.VirtualMachineInstance) {
	return func(g *v1.VirtualMachineInstance) {
		g.Spec.Domain.CPU = &v1.CPU{Features: []v1.CPUFeature{{Name: "vmx", Policy: "require"}, {Name: "invtsc", Policy: policy}}}
	}
}

func reenlightened(on *bool) func(*v1.VirtualMachineInstance) {
	return func(g *v1.VirtualMachineInstance) {
		g.Spec.Domain.Features = &v1.Features{Hyperv: &v1.FeatureHyperv{Reenlightenment: &v1.FeatureState{Enabled: on}}}
	}
}

func arch(name string) func(*v1.VirtualMachineInstance) {
	return func(g *v1.VirtualMachineInstance) { g.Spec.Architecture = name }
}

func TestTSCRequirement(t *testing.T) {
	type changes = []func(*v1.VirtualMachineInstance)
	for name, tt := range map[string]struct {
		guest changes
		want  vmi.TSCNeed
	}{
		"12 nothing special":               {nil, vmi.TSCNotRequired},
		"14 invtsc required":               {changes{arch("amd64"), invtsc("require")}, vmi.TSCForBoot},
		"14 invtsc forced":                 {changes{invtsc("force")}, vmi.TSCForBoot},
		"14 both":                          {changes{invtsc("require"), reenlightened(ptr.To(true))}, vmi.TSCForBoot},
		"12 invtsc optional":               {changes{invtsc("optional")}, vmi.TSCNotRequired},
		"13 reenlightenment":               {changes{arch("amd64"), reenlightened(ptr.To(true))}, vmi.TSCForMigration},
		"13 reenlightenment off":           {changes{reenlightened(ptr.To(false))}, vmi.TSCNotRequired},
		"13 reenlightenment left open":     {changes{reenlightened(nil)}, vmi.TSCNotRequired},
		"12 another architecture":          {changes{arch("arm64"), invtsc("require")}, vmi.TSCNotRequired},
		"12 another architecture, Hyper-V": {changes{arch("s390x"), reenlightened(ptr.To(true))}, vmi.TSCNotRequired},
		"12 Hyper-V without the feature":   {changes{func(g *v1.VirtualMachineInstance) { g.Spec.Domain.Features = &v1.Features{Hyperv: &v1.FeatureHyperv{}} }}, vmi.TSCNotRequired},
		"12 features without Hyper-V":      {changes{func(g *v1.VirtualMachineInstance) { g.Spec.Domain.Features = &v1.Features{} }}, vmi.TSCNotRequired},
	} {
		t.Run(name, func(t *testing.T) {
			if got := vmi.TSCRequirement(guest(v1.Pending, tt.guest...)); got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}

func TestHints(t *testing.T) {
	node := func(frequency string, change ...func(*vmi.Node)) vmi.Node {
		n := vmi.Node{Name: "n" + frequency, Schedulable: true, Labels: map[string]string{"cpu-timer.node.kubevirt.io/tsc-frequency": frequency}}
		for _, c := range change {
			c(&n)
		}
		return n
	}
	cordoned := func(n *vmi.Node) { n.Schedulable = false }
	used := func(n *vmi.Node) { n.Schedulable, n.RunsVMIs = false, true }
	needs := reenlightened(ptr.To(true))
	type nodes = []vmi.Node
	for name, tt := range map[string]struct {
		guest   func(*v1.VirtualMachineInstance)
		nodes   nodes
		minimum *int64
		want    int64
		err     string
	}{
		"13 the lowest":                     {guest: needs, nodes: nodes{node("3000"), node("2000"), node("2500")}, want: 2000},
		"13 not that of a cordoned node":    {guest: needs, nodes: nodes{node("3000"), node("2000", cordoned)}, want: 3000},
		"13 but if guests run there":        {guest: needs, nodes: nodes{node("3000"), node("2000", used)}, want: 2000},
		"13 the first node has none":        {guest: needs, nodes: nodes{{Name: "plain", Schedulable: true}, node("3000")}, want: 3000},
		"13 what is no frequency":           {guest: needs, nodes: nodes{node("fast"), node("0"), node("-5"), node("3000")}, want: 3000},
		"13 the configured one":             {guest: needs, nodes: nodes{node("3000")}, minimum: ptr.To[int64](1000), want: 1000},
		"13 none needed":                    {guest: func(*v1.VirtualMachineInstance) {}, nodes: nodes{node("3000")}, minimum: ptr.To[int64](0)},
		"13 none to be had":                 {guest: needs, nodes: nodes{{Name: "plain", Schedulable: true}, node("2000", cordoned)}, err: "a TSC frequency is required for migration, and no node"},
		"14 none to be had":                 {guest: invtsc("require"), err: "VirtualMachineInstance ns/guest: a TSC frequency is required for boot, and no node"},
		"14 a configured one that is wrong": {guest: invtsc("require"), nodes: nodes{node("3000")}, minimum: ptr.To[int64](0), err: "minimumClusterTSCFrequency: Invalid value: 0"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := vmi.Hints(guest(v1.Pending, tt.guest), tt.nodes, tt.minimum)
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) || got != nil {
					t.Fatalf("got %v, %v, want an error about %q", got, err, tt.err)
				}
				return
			}
			var want *v1.TopologyHints
			if tt.want > 0 {
				want = &v1.TopologyHints{TSCFrequency: &tt.want}
			}
			if err != nil || !cmp.Equal(want, got) {
				t.Errorf("error %v, hints %s", err, cmp.Diff(want, got))
			}
		})
	}
}
