// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/migration/internal/migrationfixture"
)

const skylake = v1.CPUModelLabel + "Skylake"

func without(labels ...string) func(*corev1.Node) {
	return func(n *corev1.Node) {
		for _, l := range labels {
			delete(n.Labels, l)
		}
	}
}

func cordoned(n *corev1.Node) { n.Spec.Unschedulable = true }

func tainted(key string, effect corev1.TaintEffect) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: key, Effect: effect}) }
}

func tolerating(t corev1.Toleration) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.Tolerations = append(p.Spec.Tolerations, t) }
}

func zoneIn(zones ...string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{
				{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "zone", Operator: corev1.NodeSelectorOpIn, Values: zones}}},
			}},
		}}
	}
}

func TestFit_OneNode(t *testing.T) {
	type judged struct {
		Text   string
		Static bool
	}
	for name, tc := range map[string]struct {
		pod  *corev1.Pod
		node *corev1.Node
		want judged
	}{
		"takes it":                  {migrationfixture.Target(), migrationfixture.Node("n"), judged{"1 of 1 nodes", false}},
		"source":                    {migrationfixture.Target(), migrationfixture.Node("source"), judged{"0 of 1 nodes: 1 is the source", true}},
		"source before all else":    {migrationfixture.Target(), migrationfixture.Node("source", cordoned), judged{"0 of 1 nodes: 1 is the source", true}},
		"label":                     {migrationfixture.Target(), migrationfixture.Node("n", without(skylake)), judged{"0 of 1 nodes: 1 lacks label " + skylake + "=true", true}},
		"another value":             {migrationfixture.Target(), migrationfixture.Node("n", func(n *corev1.Node) { n.Labels["zone"] = "b" }), judged{"0 of 1 nodes: 1 lacks label zone=a", true}},
		"two labels":                {migrationfixture.Target(), migrationfixture.Node("n", without(skylake, "zone")), judged{"0 of 1 nodes: 1 lacks labels " + skylake + "=true, zone=a", true}},
		"a label it lacks for good": {migrationfixture.Target(), migrationfixture.Node("n", without("zone"), cordoned), judged{"0 of 1 nodes: 1 lacks label zone=a", true}},
		"affinity":                  {migrationfixture.Target(zoneIn("b", "c")), migrationfixture.Node("n"), judged{"0 of 1 nodes: 1 does not match the node affinity", true}},
		"affinity that matches":     {migrationfixture.Target(zoneIn("b", "a")), migrationfixture.Node("n"), judged{"1 of 1 nodes", false}},
		"no agent": {migrationfixture.Target(), migrationfixture.Node("n", without(v1.NodeSchedulable)),
			judged{"0 of 1 nodes: 1 has no active node agent (label kubevirt.io/schedulable=true)", false}},
		"no agent, so its labels are not judged": {migrationfixture.Target(), migrationfixture.Node("n", without(v1.NodeSchedulable, skylake)),
			judged{"0 of 1 nodes: 1 has no active node agent (label kubevirt.io/schedulable=true)", false}},
		"no agent, and a label that no agent writes": {migrationfixture.Target(), migrationfixture.Node("n", without(v1.NodeSchedulable, "zone")),
			judged{"0 of 1 nodes: 1 lacks label zone=a", true}},
		"not ready": {migrationfixture.Target(), migrationfixture.Node("n", func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionUnknown }),
			judged{"0 of 1 nodes: 1 is not ready", false}},
		"reports no condition": {migrationfixture.Target(), migrationfixture.Node("n", func(n *corev1.Node) { n.Status.Conditions = nil }), judged{"1 of 1 nodes", false}},
		"cordoned":             {migrationfixture.Target(), migrationfixture.Node("n", cordoned), judged{"0 of 1 nodes: 1 is cordoned", false}},
		"cordoned, tolerated": {
			migrationfixture.Target(tolerating(corev1.Toleration{Key: corev1.TaintNodeUnschedulable, Operator: corev1.TolerationOpExists})),
			migrationfixture.Node("n", cordoned, tainted(corev1.TaintNodeUnschedulable, corev1.TaintEffectNoSchedule)), judged{"1 of 1 nodes", false},
		},
		"taint":           {migrationfixture.Target(), migrationfixture.Node("n", tainted("gpu", corev1.TaintEffectNoExecute)), judged{"0 of 1 nodes: 1 has the taint gpu:NoExecute", false}},
		"preferred taint": {migrationfixture.Target(), migrationfixture.Node("n", tainted("gpu", corev1.TaintEffectPreferNoSchedule)), judged{"1 of 1 nodes", false}},
		"tolerated taint": {migrationfixture.Target(tolerating(corev1.Toleration{Operator: corev1.TolerationOpExists})), migrationfixture.Node("n", tainted("gpu", corev1.TaintEffectNoSchedule)), judged{"1 of 1 nodes", false}},
		"taint of another effect": {
			migrationfixture.Target(tolerating(corev1.Toleration{Key: "gpu", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute})),
			migrationfixture.Node("n", tainted("gpu", corev1.TaintEffectNoSchedule)), judged{"0 of 1 nodes: 1 has the taint gpu:NoSchedule", false},
		},
		"taint of another value": {
			migrationfixture.Target(tolerating(corev1.Toleration{Key: "gpu", Value: "x"})),
			migrationfixture.Node("n", tainted("gpu", corev1.TaintEffectNoSchedule)), judged{"0 of 1 nodes: 1 has the taint gpu:NoSchedule", false},
		},
		"an operator of tomorrow is left to the scheduler": {
			migrationfixture.Target(tolerating(corev1.Toleration{Key: "gpu", Operator: "Gt", Value: "3"})),
			migrationfixture.Node("n", tainted("gpu", corev1.TaintEffectNoSchedule)), judged{"1 of 1 nodes", false},
		},
		"too small": {migrationfixture.Target(), migrationfixture.Node("n", func(n *corev1.Node) { n.Status.Allocatable[corev1.ResourceMemory] = resource.MustParse("1Gi") }),
			judged{"0 of 1 nodes: 1 is too small (memory)", false}},
		"no such device": {
			migrationfixture.Target(func(p *corev1.Pod) {
				p.Spec.Containers[0].Resources.Requests["devices.kubevirt.io/kvm"] = resource.MustParse("1")
			}),
			migrationfixture.Node("n"), judged{"0 of 1 nodes: 1 is too small (devices.kubevirt.io/kvm)", false},
		},
		"reports no resources": {migrationfixture.Target(), migrationfixture.Node("n", func(n *corev1.Node) { n.Status.Allocatable = nil }), judged{"1 of 1 nodes", false}},
	} {
		t.Run(name, func(t *testing.T) {
			f := Fit(tc.pod, "source", []*corev1.Node{tc.node})
			if d := cmp.Diff(tc.want, judged{f.Text(), f.Static()}); d != "" {
				t.Errorf("fitness (-want +got):\n%s", d)
			}
			if fits := len(f.Candidates) == 1; fits != (len(f.Excluded) == 0) {
				t.Errorf("candidates %v, excluded %v", f.Candidates, f.Excluded)
			}
		})
	}
}

func TestFit_NodeUsage(t *testing.T) {
	busy := func(cpu string, count int) []*corev1.Pod {
		var out []*corev1.Pod
		for range count {
			p := migrationfixture.Target()
			p.Spec.NodeName = "n"
			p.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse(cpu)
			out = append(out, p)
		}
		return out
	}
	ended := busy("8", 1)
	ended[0].Status.Phase = corev1.PodSucceeded
	for name, tc := range map[string]struct {
		pods []*corev1.Pod
		want string
	}{
		"nothing there":          {nil, "1 of 1 nodes"},
		"enough left":            {busy("6", 1), "1 of 1 nodes"},
		"too little left":        {busy("7", 1), "0 of 1 nodes: 1 has insufficient free resources (cpu)"},
		"no Pod more":            {busy("1", 2), "0 of 1 nodes: 1 has insufficient free resources (pods)"},
		"what has ended is gone": {ended, "1 of 1 nodes"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := NewNodeUsage(tc.pods).Fit(migrationfixture.Target(), "source", []*corev1.Node{migrationfixture.Node("n")}).Text(); got != tc.want {
				t.Errorf("fitness is %q, want %q", got, tc.want)
			}
		})
	}
}

func TestFit_CountsByRule(t *testing.T) {
	nodes := []*corev1.Node{
		migrationfixture.Node("source"), migrationfixture.Node("c", cordoned), migrationfixture.Node("b", cordoned), migrationfixture.Node("full", tainted("disk", corev1.TaintEffectNoSchedule)),
		migrationfixture.Node("l1", without(skylake)), migrationfixture.Node("l2", without(skylake)), migrationfixture.Node("l0", without("zone")),
	}
	f := Fit(migrationfixture.Target(), "source", nodes)
	const text = "0 of 7 nodes: 1 is the source, 2 lack label " + skylake + "=true, 1 lacks label zone=a, 2 are cordoned, 1 has the taint disk:NoSchedule"
	if f.Text() != text || f.Static() {
		t.Errorf("text is %q, static %v", f.Text(), f.Static())
	}
	want := Exclusion{Rule: RuleNodeSelector, What: []string{skylake + "=true"}, Nodes: []string{"l1", "l2"}}
	if d := cmp.Diff(want, f.Excluded[1]); d != "" {
		t.Errorf("second group (-want +got):\n%s", d)
	}
	if f := Fit(migrationfixture.Target(), "source", append(nodes, migrationfixture.Node("z"), migrationfixture.Node("y"))); !cmp.Equal(f.Candidates, []string{"y", "z"}) || f.Static() {
		t.Errorf("candidates are %v, static %v", f.Candidates, f.Static())
	}
	if Fit(migrationfixture.Target(), "source", nil).Static() {
		t.Error("without any node something is claimed to be known for good")
	}
}

func TestFitness_TextLength(t *testing.T) {
	pod := migrationfixture.Target()
	var nodes []*corev1.Node
	for i := range 20 {
		pod.Spec.NodeSelector[fmt.Sprintf("%sf%02d", v1.CPUFeatureLabel, i)] = "true"
	}
	for i := range 12 {
		nodes = append(nodes, migrationfixture.Node(fmt.Sprintf("n%d", i), func(n *corev1.Node) { n.Labels[fmt.Sprintf("%sf%02d", v1.CPUFeatureLabel, i)] = "true" }))
	}
	f := Fit(pod, "source", nodes)
	if got := f.Text(); len(f.Excluded) != 12 || len(got) > 1200 || !strings.HasSuffix(got, ", 6 are excluded for 6 other reasons") ||
		!strings.Contains(got, " and 16 more") {
		t.Errorf("%d groups: %s", len(f.Excluded), got)
	}
	if len(f.Excluded[0].What) != 19 {
		t.Errorf("What is %v, want all of it", f.Excluded[0].What)
	}
}

// 12.21: the remedy explains KubeVirt's own selectors, not only the missing label.
func TestS12_21RemediesForKubeVirtsSelectors(t *testing.T) {
	for label, want := range map[string]string{
		v1.SupportedHostModelMigrationCPU + "Skylake":     hostModelRemedy,
		v1.CPUFeatureLabel + "vmx-exit-load":              hostModelRemedy,
		v1.SupportedMachineTypeLabel + "pc-q35-rhel9.4.0": "no other node's QEMU supports the VMI's machine type",
		v1.CPUModelVendorLabel + "AMD":                    "a running VMI cannot change the CPU vendor",
		skylake:                                           "add a node that supports the CPU model",
		"kubernetes.io/hostname":                          "the node selector binds the VMI to one node",
		"rack":                                            "label another node rack=true",
		"scheduling.node.kubevirt.io/tsc-frequency-123":   "add a node with the same",
		v1.HypervLabel + "evmcs":                          "add a node that supports the VMI's Hyper-V features",
		v1.CPUManager:                                     "add a node with the static CPU manager policy",
	} {
		t.Run(label, func(t *testing.T) {
			pod := migrationfixture.Target()
			pod.Spec.NodeSelector[label] = "true"
			got := Fit(pod, "source", []*corev1.Node{migrationfixture.Node("a", without(label)), migrationfixture.Node("b", without(label)), migrationfixture.Node("source")}).Remedies()
			if len(got) != 1 || !strings.HasPrefix(got[0], want) {
				t.Errorf("remedies are %q, want one that begins %q", got, want)
			}
		})
	}
}

func BenchmarkFit(b *testing.B) {
	for _, size := range []int{100, 1000} {
		b.Run(fmt.Sprintf("%d nodes", size), func(b *testing.B) {
			pod := migrationfixture.Target(zoneIn("a", "b"))
			for i := range 20 {
				pod.Spec.NodeSelector[fmt.Sprintf("%sf%02d", v1.CPUFeatureLabel, i)] = "true"
			}
			var nodes []*corev1.Node
			for i := range size {
				nodes = append(nodes, migrationfixture.Node(fmt.Sprintf("n%04d", i), func(n *corev1.Node) {
					for f := range 20 - i%2 {
						n.Labels[fmt.Sprintf("%sf%02d", v1.CPUFeatureLabel, f)] = "true"
					}
				}))
			}
			b.ReportAllocs()
			for b.Loop() {
				if f := Fit(pod, "n0000", nodes); len(f.Candidates) != size/2-1 {
					b.Fatal(f.Text())
				}
			}
		})
	}
}
