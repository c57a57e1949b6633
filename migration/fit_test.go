// SPDX-License-Identifier: Apache-2.0

package migration

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"
)

const skylake = v1.CPUModelLabel + "Skylake"

// aNode is a node that takes aTarget, with changes.
func aNode(name string, change ...func(*corev1.Node)) *corev1.Node {
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1.NodeSchedulable: "true", skylake: "true", "zone": "a"}},
		Status: corev1.NodeStatus{
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
			Allocatable: corev1.ResourceList{
				corev1.ResourceCPU: resource.MustParse("8"), corev1.ResourceMemory: resource.MustParse("16Gi"), corev1.ResourcePods: resource.MustParse("2"),
			},
		},
	}
	for _, c := range change {
		c(n)
	}
	return n
}

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

func aTarget(change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{Spec: corev1.PodSpec{
		NodeSelector: map[string]string{v1.NodeSchedulable: "true", skylake: "true", "zone": "a"},
		Containers: []corev1.Container{{Name: "compute", Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2"), corev1.ResourceMemory: resource.MustParse("4Gi")},
		}}},
	}}
	for _, c := range change {
		c(p)
	}
	return p
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

func TestFitJudgesOneNode(t *testing.T) {
	type judged struct {
		Text   string
		Static bool
	}
	for name, tc := range map[string]struct {
		pod  *corev1.Pod
		node *corev1.Node
		want judged
	}{
		"takes it":                  {aTarget(), aNode("n"), judged{"1 of 1 nodes", false}},
		"source":                    {aTarget(), aNode("source"), judged{"0 of 1 nodes: 1 is the source", true}},
		"source before all else":    {aTarget(), aNode("source", cordoned), judged{"0 of 1 nodes: 1 is the source", true}},
		"label":                     {aTarget(), aNode("n", without(skylake)), judged{"0 of 1 nodes: 1 lacks label " + skylake + "=true", true}},
		"another value":             {aTarget(), aNode("n", func(n *corev1.Node) { n.Labels["zone"] = "b" }), judged{"0 of 1 nodes: 1 lacks label zone=a", true}},
		"two labels":                {aTarget(), aNode("n", without(skylake, "zone")), judged{"0 of 1 nodes: 1 lacks labels " + skylake + "=true, zone=a", true}},
		"a label it lacks for good": {aTarget(), aNode("n", without("zone"), cordoned), judged{"0 of 1 nodes: 1 lacks label zone=a", true}},
		"affinity":                  {aTarget(zoneIn("b", "c")), aNode("n"), judged{"0 of 1 nodes: 1 does not match the node affinity", true}},
		"affinity that matches":     {aTarget(zoneIn("b", "a")), aNode("n"), judged{"1 of 1 nodes", false}},
		"no agent": {aTarget(), aNode("n", without(v1.NodeSchedulable)),
			judged{"0 of 1 nodes: 1 has no node agent at work (label kubevirt.io/schedulable=true)", false}},
		"no agent, so its labels are not judged": {aTarget(), aNode("n", without(v1.NodeSchedulable, skylake)),
			judged{"0 of 1 nodes: 1 has no node agent at work (label kubevirt.io/schedulable=true)", false}},
		"no agent, and a label that no agent writes": {aTarget(), aNode("n", without(v1.NodeSchedulable, "zone")),
			judged{"0 of 1 nodes: 1 lacks label zone=a", true}},
		"not ready": {aTarget(), aNode("n", func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionUnknown }),
			judged{"0 of 1 nodes: 1 is not ready", false}},
		"tells no condition": {aTarget(), aNode("n", func(n *corev1.Node) { n.Status.Conditions = nil }), judged{"1 of 1 nodes", false}},
		"cordoned":           {aTarget(), aNode("n", cordoned), judged{"0 of 1 nodes: 1 is cordoned", false}},
		"cordoned, tolerated": {
			aTarget(tolerating(corev1.Toleration{Key: corev1.TaintNodeUnschedulable, Operator: corev1.TolerationOpExists})),
			aNode("n", cordoned, tainted(corev1.TaintNodeUnschedulable, corev1.TaintEffectNoSchedule)), judged{"1 of 1 nodes", false},
		},
		"taint":           {aTarget(), aNode("n", tainted("gpu", corev1.TaintEffectNoExecute)), judged{"0 of 1 nodes: 1 has the taint gpu:NoExecute", false}},
		"preferred taint": {aTarget(), aNode("n", tainted("gpu", corev1.TaintEffectPreferNoSchedule)), judged{"1 of 1 nodes", false}},
		"tolerated taint": {aTarget(tolerating(corev1.Toleration{Operator: corev1.TolerationOpExists})), aNode("n", tainted("gpu", corev1.TaintEffectNoSchedule)), judged{"1 of 1 nodes", false}},
		"taint of another effect": {
			aTarget(tolerating(corev1.Toleration{Key: "gpu", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute})),
			aNode("n", tainted("gpu", corev1.TaintEffectNoSchedule)), judged{"0 of 1 nodes: 1 has the taint gpu:NoSchedule", false},
		},
		"taint of another value": {
			aTarget(tolerating(corev1.Toleration{Key: "gpu", Value: "x"})),
			aNode("n", tainted("gpu", corev1.TaintEffectNoSchedule)), judged{"0 of 1 nodes: 1 has the taint gpu:NoSchedule", false},
		},
		"an operator of tomorrow is left to the scheduler": {
			aTarget(tolerating(corev1.Toleration{Key: "gpu", Operator: "Gt", Value: "3"})),
			aNode("n", tainted("gpu", corev1.TaintEffectNoSchedule)), judged{"1 of 1 nodes", false},
		},
		"too small": {aTarget(), aNode("n", func(n *corev1.Node) { n.Status.Allocatable[corev1.ResourceMemory] = resource.MustParse("1Gi") }),
			judged{"0 of 1 nodes: 1 is too small (memory)", false}},
		"no such device": {
			aTarget(func(p *corev1.Pod) {
				p.Spec.Containers[0].Resources.Requests["devices.kubevirt.io/kvm"] = resource.MustParse("1")
			}),
			aNode("n"), judged{"0 of 1 nodes: 1 is too small (devices.kubevirt.io/kvm)", false},
		},
		"tells no resources": {aTarget(), aNode("n", func(n *corev1.Node) { n.Status.Allocatable = nil }), judged{"1 of 1 nodes", false}},
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

func TestFitKnowsTheLoadOfNodes(t *testing.T) {
	busy := func(cpu string, count int) []*corev1.Pod {
		var out []*corev1.Pod
		for range count {
			p := aTarget()
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
		"too little left":        {busy("7", 1), "0 of 1 nodes: 1 has not enough left (cpu)"},
		"no Pod more":            {busy("1", 2), "0 of 1 nodes: 1 has not enough left (pods)"},
		"what has ended is gone": {ended, "1 of 1 nodes"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := NewNodeUsage(tc.pods).Fit(aTarget(), "source", []*corev1.Node{aNode("n")}).Text(); got != tc.want {
				t.Errorf("fitness is %q, want %q", got, tc.want)
			}
		})
	}
}

func TestFitCountsByWhatExcludes(t *testing.T) {
	nodes := []*corev1.Node{
		aNode("source"), aNode("c", cordoned), aNode("b", cordoned), aNode("full", tainted("disk", corev1.TaintEffectNoSchedule)),
		aNode("l1", without(skylake)), aNode("l2", without(skylake)), aNode("l0", without("zone")),
	}
	f := Fit(aTarget(), "source", nodes)
	const text = "0 of 7 nodes: 1 is the source, 2 lack label " + skylake + "=true, 1 lacks label zone=a, 2 are cordoned, 1 has the taint disk:NoSchedule"
	if f.Text() != text || f.Static() {
		t.Errorf("text is %q, static %v", f.Text(), f.Static())
	}
	want := Exclusion{Rule: RuleNodeSelector, What: []string{skylake + "=true"}, Nodes: []string{"l1", "l2"}}
	if d := cmp.Diff(want, f.Excluded[1]); d != "" {
		t.Errorf("second group (-want +got):\n%s", d)
	}
	if f := Fit(aTarget(), "source", append(nodes, aNode("z"), aNode("y"))); !cmp.Equal(f.Candidates, []string{"y", "z"}) || f.Static() {
		t.Errorf("candidates are %v, static %v", f.Candidates, f.Static())
	}
	if Fit(aTarget(), "source", nil).Static() {
		t.Error("without any node something is claimed to be known for good")
	}
}

func TestFitTextStaysShort(t *testing.T) {
	pod := aTarget()
	var nodes []*corev1.Node
	for i := range 20 {
		pod.Spec.NodeSelector[fmt.Sprintf("%sf%02d", v1.CPUFeatureLabel, i)] = "true"
	}
	for i := range 12 {
		nodes = append(nodes, aNode(fmt.Sprintf("n%d", i), func(n *corev1.Node) { n.Labels[fmt.Sprintf("%sf%02d", v1.CPUFeatureLabel, i)] = "true" }))
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

// 12.21: what KubeVirt's own selectors mean is said, not only which label is missing.
func TestS12_21RemediesForKubeVirtsSelectors(t *testing.T) {
	for label, want := range map[string]string{
		v1.SupportedHostModelMigrationCPU + "Skylake":     hostModelRemedy,
		v1.CPUFeatureLabel + "vmx-exit-load":              hostModelRemedy,
		v1.SupportedMachineTypeLabel + "pc-q35-rhel9.4.0": "no other node's QEMU knows the guest's machine type",
		v1.CPUModelVendorLabel + "AMD":                    "a running guest cannot change the CPU vendor",
		skylake:                                           "another node must offer the CPU model",
		"kubernetes.io/hostname":                          "the node selector ties the guest to one node",
		"rack":                                            "label another node rack=true",
		"scheduling.node.kubevirt.io/tsc-frequency-123":   "the guest's clock needs a node with the same",
		v1.HypervLabel + "evmcs":                          "the guest's Hyper-V features need",
		v1.CPUManager:                                     "dedicated CPUs need another node",
	} {
		t.Run(label, func(t *testing.T) {
			pod := aTarget()
			pod.Spec.NodeSelector[label] = "true"
			got := Fit(pod, "source", []*corev1.Node{aNode("a", without(label)), aNode("b", without(label)), aNode("source")}).Remedies()
			if len(got) != 1 || !strings.HasPrefix(got[0], want) {
				t.Errorf("remedies are %q, want one that begins %q", got, want)
			}
		})
	}
}

func BenchmarkFit(b *testing.B) {
	for _, size := range []int{100, 1000} {
		b.Run(fmt.Sprintf("%d nodes", size), func(b *testing.B) {
			pod := aTarget(zoneIn("a", "b"))
			for i := range 20 {
				pod.Spec.NodeSelector[fmt.Sprintf("%sf%02d", v1.CPUFeatureLabel, i)] = "true"
			}
			var nodes []*corev1.Node
			for i := range size {
				nodes = append(nodes, aNode(fmt.Sprintf("n%04d", i), func(n *corev1.Node) {
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
