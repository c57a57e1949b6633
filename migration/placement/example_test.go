// SPDX-License-Identifier: Apache-2.0

package placement_test

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/virtloom/virtloom/migration/placement"
)

// Whether any node could take a Pod is judged before the Pod is created, and explained.
func ExampleFit() {
	node := func(name string, labels ...string) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}}}
		for _, l := range labels {
			n.Labels[l] = "true"
		}
		return n
	}
	const skylake = "cpu-model.node.kubevirt.io/Skylake"
	pod := &corev1.Pod{Spec: corev1.PodSpec{NodeSelector: map[string]string{skylake: "true"}}}

	f := placement.Fit(pod, "node-1", []*corev1.Node{node("node-1", skylake), node("node-2"), node("node-3")})
	fmt.Println(f.Text())
	fmt.Println("can never fit:", f.Static())

	spare := node("node-4", skylake)
	spare.Spec.Unschedulable = true
	f = placement.Fit(pod, "node-1", []*corev1.Node{node("node-1", skylake), node("node-2"), spare})
	fmt.Println(f.Text())
	fmt.Println("can never fit:", f.Static())
	for _, e := range f.Excluded {
		switch e.Rule {
		case placement.RuleSource:
			continue // every VMI has to leave a node
		case placement.RuleNodeSelector:
			fmt.Println("label", e.Nodes, "with", e.What)
		default:
			fmt.Println(e.Text())
		}
	}
	// Output:
	// 0 of 3 nodes: 1 is the source, 2 lack label cpu-model.node.kubevirt.io/Skylake=true
	// can never fit: true
	// 0 of 3 nodes: 1 is the source, 1 lacks label cpu-model.node.kubevirt.io/Skylake=true, 1 is cordoned
	// can never fit: false
	// label [node-2] with [cpu-model.node.kubevirt.io/Skylake=true]
	// 1 is cordoned
}
