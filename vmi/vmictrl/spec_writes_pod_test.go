// SPDX-License-Identifier: Apache-2.0

package vmictrl_test

import (
	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/vmi/vmictrl"
)

// podRows cover the synchronization of the Pod with the VMI.
var podRows = map[string]row{
	"58 the image is outdated":         {scene: scene{phase: v1.Running, pod: oldImage}},
	"58 the image is no more outdated": {scene: scene{phase: v1.Running, pod: labelled(v1.OutdatedLauncherImageLabel, ""), guest: guestLabel(v1.OutdatedLauncherImageLabel, "")}},
	"61 who evicts shall ask": {scene: scene{phase: v1.Running, pod: func(p *corev1.Pod) {
		delete(p.Annotations, "descheduler.alpha.kubernetes.io/request-evict-only")
	}}},
	"62 a label differs":     {edit: syncs("team"), scene: scene{phase: v1.Running, pod: labelled("team", "old"), guest: guestLabel("team", "new")}},
	"62 a label is the same": {edit: syncs("team"), scene: scene{phase: v1.Running, pod: labelled("team", "new"), guest: guestLabel("team", "new")}},
	"62 a label is gone":     {edit: syncs("team"), scene: scene{phase: v1.Running, pod: labelled("team", "old")}},
	"62 labels by their beginning": {edit: syncs("example.test/*"), scene: scene{phase: v1.Running, pod: labelled("example.test/old", ""),
		guest: guestLabel("example.test/new", "")}},
	"62 all labels are none": {edit: syncs("*"), scene: scene{phase: v1.Running, pod: labelled("team", "old"), guest: guestLabel("team", "new")}},
	"64 the guest is asked to leave": {scene: scene{phase: v1.Running, more: func(w *world, g *v1.VirtualMachineInstance, pod *corev1.Pod) {
		w.change(g, func(g *v1.VirtualMachineInstance) { g.Status.EvacuationNodeName = nodeOf(w) })
	}}},
	"64 the guest is asked to leave another node than it is on": {scene: scene{phase: v1.Running, guest: func(g *v1.VirtualMachineInstance) {
		g.Status.EvacuationNodeName = "another"
	}}},
	"64 the guest may stay": {scene: scene{phase: v1.Running, guest: hasCondition(v1.VirtualMachineInstanceEvictionRequested, corev1.ConditionTrue, ""),
		pod: func(p *corev1.Pod) { p.Annotations["descheduler.alpha.kubernetes.io/eviction-in-progress"] = "true" }}},
	"65 the guest is paused": {scene: scene{phase: v1.Running, guest: isPaused}},
	"65 the guest runs on":   {scene: scene{phase: v1.Running, status: gate(corev1.ConditionFalse)}},
	"65 the guest is paused, and its Pod says nothing": {scene: scene{phase: v1.Running, guest: isPaused, status: func(st *corev1.PodStatus) {
		st.Conditions = st.Conditions[:1]
	}}},
	"130 the controller has another image than before": {edit: func(r *vmictrl.Reconciler) { r.LauncherImage = "example.test/virt-launcher:2" },
		scene: scene{phase: v1.Running}},
}

func oldImage(p *corev1.Pod) {
	for i := range p.Spec.Containers {
		p.Spec.Containers[i].Image = "example.test/virt-launcher:0"
	}
}

func labelled(key, value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Labels[key] = value }
}

func guestLabel(key, value string) func(*v1.VirtualMachineInstance) {
	return func(g *v1.VirtualMachineInstance) { g.Labels[key] = value }
}

func syncs(keys ...string) func(*vmictrl.Reconciler) {
	return func(r *vmictrl.Reconciler) { r.Config.SyncLabels = keys }
}

func isPaused(g *v1.VirtualMachineInstance) {
	hasCondition(v1.VirtualMachineInstancePaused, corev1.ConditionTrue, "PausedByUser")(g)
}

func gate(status corev1.ConditionStatus) func(*corev1.PodStatus) {
	return func(st *corev1.PodStatus) { set(st, v1.VirtualMachineUnpaused, status, "", "") }
}
