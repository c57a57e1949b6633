// SPDX-License-Identifier: Apache-2.0

package migrationsim

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"
)

// Guest is a VMI to add to a Sim.
type Guest struct {
	// VMI is the object. The Sim owns and changes it.
	VMI *v1.VirtualMachineInstance
	// Pod is the Pod it runs in.
	Pod *corev1.Pod
	// Others are its other Pods, as failures leave them behind. Those being deleted vanish.
	Others []*corev1.Pod
	// Claims are the claims that keep its state.
	Claims []*corev1.PersistentVolumeClaim
	// Dirty is the rate at which it writes memory, in bytes per second.
	Dirty float64
	// Bytes is the amount to transfer; default is all of its memory.
	Bytes float64
}

// NewNode returns a ready Node with the given allocatable resources and the labels of every node
// with an agent.
func NewNode(name string, cpu, memory string) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name, v1.NodeSchedulable: "true"}},
		Status: corev1.NodeStatus{
			Allocatable: corev1.ResourceList{
				corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory),
				corev1.ResourcePods: resource.MustParse("500"),
			},
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		},
	}
}

// NewGuest returns a VMI with the given CPU and memory that runs on the node, and migrates when
// the node is drained.
func NewGuest(key types.NamespacedName, node, cpu, memory string) Guest {
	amount, yes, strategy := resource.MustParse(memory), true, v1.EvictionStrategyLiveMigrate
	vmi := &v1.VirtualMachineInstance{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: key.Namespace, Name: key.Name, UID: types.UID("vmi-" + key.String()),
			Labels: map[string]string{v1.NodeNameLabel: node},
		},
		Spec:   v1.VirtualMachineInstanceSpec{Domain: v1.DomainSpec{Memory: &v1.Memory{Guest: &amount}}, EvictionStrategy: &strategy},
		Status: v1.VirtualMachineInstanceStatus{Phase: v1.Running, NodeName: node},
	}
	vmi.Status.Conditions = []v1.VirtualMachineInstanceCondition{{Type: v1.VirtualMachineInstanceIsMigratable, Status: corev1.ConditionTrue}}
	name := "virt-launcher-" + key.Name
	return Guest{VMI: vmi, Pod: &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: key.Namespace, Name: name, UID: types.UID("pod-" + key.Namespace + "/" + name),
			Labels:          map[string]string{v1.AppLabel: "virt-launcher", v1.CreatedByLabel: string(vmi.UID)},
			OwnerReferences: []metav1.OwnerReference{{Kind: "VirtualMachineInstance", Name: vmi.Name, UID: vmi.UID, Controller: &yes}},
		},
		Spec: corev1.PodSpec{
			NodeName: node, NodeSelector: map[string]string{v1.NodeSchedulable: "true"},
			Containers: []corev1.Container{{Name: "compute", Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: amount},
			}}},
		},
		Status: corev1.PodStatus{Phase: corev1.PodRunning},
	}}
}

// targetLike is the default of Options.Render.
func targetLike(vmi *v1.VirtualMachineInstance, m *v1.VirtualMachineInstanceMigration, source *corev1.Pod) (*corev1.Pod, error) {
	if source == nil {
		return nil, fmt.Errorf("migrationsim: VMI %s/%s has no Pod", vmi.Namespace, vmi.Name)
	}
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: vmi.Namespace, Name: "virt-launcher-" + m.Name,
			Labels: make(map[string]string, len(source.Labels)+1), OwnerReferences: source.OwnerReferences,
		},
		Spec: source.Spec,
	}
	for k, v := range source.Labels {
		p.Labels[k] = v
	}
	p.Labels[v1.MigrationJobLabel] = string(m.UID)
	p.Spec.NodeName = ""
	if len(m.Spec.AddedNodeSelector) == 0 {
		return p, nil
	}
	p.Spec.NodeSelector = map[string]string{}
	for _, labels := range []map[string]string{m.Spec.AddedNodeSelector, source.Spec.NodeSelector} {
		for k, v := range labels {
			p.Spec.NodeSelector[k] = v
		}
	}
	return p, nil
}
