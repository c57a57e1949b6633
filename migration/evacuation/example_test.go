// SPDX-License-Identifier: Apache-2.0

package evacuation_test

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/migration"
	"github.com/virtloom/virtloom/migration/evacuation"
)

var exampleNow = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// exampleGuest is a VMI that runs on node-a and can be migrated.
func exampleGuest(name string, strategy v1.EvictionStrategy) evacuation.Candidate {
	vmi := &v1.VirtualMachineInstance{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name},
		Spec:       v1.VirtualMachineInstanceSpec{EvictionStrategy: &strategy},
		Status: v1.VirtualMachineInstanceStatus{Phase: v1.Running, NodeName: "node-a", Conditions: []v1.VirtualMachineInstanceCondition{
			{Type: v1.VirtualMachineInstanceIsMigratable, Status: corev1.ConditionTrue},
		}},
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: "virt-launcher-" + name, Labels: map[string]string{v1.AppLabel: "virt-launcher"},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(vmi, v1.VirtualMachineInstanceGroupVersionKind)},
		},
		Spec:   corev1.PodSpec{NodeName: "node-a"},
		Status: corev1.PodStatus{Phase: corev1.PodRunning},
	}
	return evacuation.Candidate{VMI: vmi, Pods: []*corev1.Pod{pod}}
}

// A node is drained: what becomes of its VMIs?
func ExampleEvacuate() {
	node := &corev1.Node{Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: evacuation.DefaultDrainTaint, Effect: corev1.TaintEffectNoSchedule}}}}
	all := evacuation.Evacuate(evacuation.Evacuation{
		Node: "node-a", Draining: evacuation.Draining(node, nil), Config: migration.Config{}.WithDefaults(),
		VMIs: []evacuation.Candidate{exampleGuest("web", v1.EvictionStrategyLiveMigrate), exampleGuest("cache", v1.EvictionStrategyNone)},
	}, exampleNow)
	count := map[evacuation.Verb]int{}
	for _, s := range all {
		count[s.Verb]++
		fmt.Printf("%s: %q: %s\n", s.VMI.Name, s.Verb, s.Message)
	}
	fmt.Println(count[evacuation.Create], "to create,", count[evacuation.Cancel], "to cancel")
	// Output:
	// web: "Create": node node-a is being drained
	// cache: "": the VMI's eviction strategy is None: it is shut down with its Pod
	// 1 to create, 0 to cancel
}

// A descheduler tries to evict the Pods of three VMIs. One may end with its Pod, one is asked to leave
// its node, which Evacuate then follows, and one was migrated a moment ago.
func ExampleEvict() {
	cooling := exampleGuest("db", v1.EvictionStrategyLiveMigrate)
	cooling.Migrations = []*v1.VirtualMachineInstanceMigration{{
		ObjectMeta: metav1.ObjectMeta{Name: "before", Annotations: map[string]string{v1.EvacuationMigrationAnnotation: "node-b"}},
		Status: v1.VirtualMachineInstanceMigrationStatus{
			Phase:          v1.MigrationSucceeded,
			MigrationState: &v1.VirtualMachineInstanceMigrationState{SourceNode: "node-b", EndTimestamp: &metav1.Time{Time: exampleNow.Add(-time.Minute)}},
		},
	}}
	for _, g := range []evacuation.Candidate{
		exampleGuest("cache", v1.EvictionStrategyNone), exampleGuest("web", v1.EvictionStrategyLiveMigrate), cooling,
	} {
		e := evacuation.Eviction{Pod: g.Pods[0], Candidate: g, Descheduler: true, Config: migration.Config{}.WithDefaults()}
		switch answer := evacuation.Evict(e, exampleNow); answer.Reason {
		case evacuation.ReasonStrategyNone:
			fmt.Println(g.VMI.Name, "may end:", answer.Allowed)
		case evacuation.ReasonEvictionBegun:
			answer.Mark.Apply(g.VMI)
			fmt.Println(g.VMI.Name, "leaves", g.VMI.Status.EvacuationNodeName,
				"- for a descheduler:", g.VMI.Annotations[v1.EvictionSourceAnnotation] == evacuation.SourceDescheduler)
		case evacuation.ReasonCooldown:
			fmt.Println(g.VMI.Name, "stays:", answer.Message)
		}
	}
	// Output:
	// cache may end: true
	// web leaves node-a - for a descheduler: true
	// db stays: the VMI was migrated by migration "before"; cooldown until 2026-01-01T12:04:00Z
}
