// SPDX-License-Identifier: Apache-2.0

package vmictrl_test

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/vmi"
	"github.com/virtloom/virtloom/vmi/vmictrl"
)

// schedulingRows cover the time from Pod creation to the handoff.
var schedulingRows = map[string]row{
	"38 a Pod that is Pending":                   podFound(corev1.PodPending),
	"38 a Pod that is Running":                   podFound(corev1.PodRunning),
	"38 a Pod that is Succeeded":                 podFound(corev1.PodSucceeded),
	"38 a Pod that is Failed":                    podFound(corev1.PodFailed),
	"38 a Pod of phase Unknown":                  podFound(corev1.PodUnknown),
	"40 compute runs, not ready":                 {scene: scene{phase: v1.Scheduling, status: container("compute", true, false)}},
	"40 the mesh runs, not ready":                {scene: scene{phase: v1.Scheduling, status: container("istio-proxy", true, false)}},
	"40 another container runs and is not ready": {scene: scene{phase: v1.Scheduling, status: container("other", true, false)}},
	"40 compute does not run":                    {scene: scene{phase: v1.Scheduling, status: container("compute", false, false)}},
	"41 the handoff reports node and interfaces": {scene: scene{phase: v1.Scheduling, guest: networks}},
	"43 a guaranteed Pod":                        {scene: scene{phase: v1.Scheduling, pod: guaranteed}},
	"44 CPUs of its own in a Pod that has none": {scene: scene{phase: v1.Scheduling, guest: func(g *v1.VirtualMachineInstance) {
		g.Spec.Domain.CPU = &v1.CPU{DedicatedCPUPlacement: true}
	}}},
	"46 a Pod that cannot be placed": {scene: scene{phase: v1.Scheduling, status: unscheduled}},
	"46 a Pod that could be placed after all": {scene: scene{phase: v1.Scheduling, guest: hasCondition("PodScheduled", corev1.ConditionFalse, "Unschedulable"),
		status: func(st *corev1.PodStatus) { st.Phase = corev1.PodPending }}},
	"47 the Pod is gone":       {scene: scene{phase: v1.Scheduling, noPod: true}},
	"47 the Pod has succeeded": {scene: scene{phase: v1.Scheduling, status: ended(corev1.PodSucceeded)}},
	"47 the Pod has failed":    {scene: scene{phase: v1.Scheduling, status: ended(corev1.PodFailed)}},
	"47 compute has ended in a Pod that is Pending": {scene: scene{phase: v1.Scheduling, status: func(st *corev1.PodStatus) {
		st.Phase = corev1.PodPending
		computeEnded(st)
	}}},
	"50 an address on VSOCK": {edit: func(r *vmictrl.Reconciler) { r.CIDs = vmi.NewCIDs(func() uint32 { return 42 }) },
		scene: scene{phase: v1.Scheduling, guest: func(g *v1.VirtualMachineInstance) { g.Spec.Domain.Devices.AutoattachVSOCK = ptr.To(true) }}},
	"112 a Pod without container statuses runs": {scene: scene{phase: v1.Scheduling, status: func(st *corev1.PodStatus) { st.ContainerStatuses = nil }}},
	"113 the newest of two Pods has the guest":  {scene: scene{phase: v1.Scheduling, more: newer}},

	"85 a guest to be received whose Pod is down":      {scene: scene{phase: v1.WaitingForSync, withPod: true, guest: toBeReceived, status: ended(corev1.PodFailed)}},
	"85 a guest to be received whose migration failed": {scene: scene{phase: v1.WaitingForSync, withPod: true, guest: receivedInVain}},
	"85 a guest to be received has its Pod":            {scene: scene{phase: v1.WaitingForSync, withPod: true, guest: placedToBeReceived}},
	"86 a guest to be received has lost its Pod":       {scene: scene{phase: v1.Scheduling, noPod: true, guest: toBeReceived}},
	"86 a guest to be received has a Pod that is down": {scene: scene{phase: v1.Scheduling, guest: toBeReceived, status: ended(corev1.PodFailed)}},
}

// podFound is a Pod that exists before the status records it.
func podFound(p corev1.PodPhase) row {
	return row{scene: scene{phase: v1.Pending, withPod: true, status: func(st *corev1.PodStatus) {
		ended(p)(st)
		if p == corev1.PodPending || p == corev1.PodUnknown {
			st.Conditions = nil
		}
	}}}
}

// ended is the status of a Pod in a phase without running containers.
func ended(p corev1.PodPhase) func(*corev1.PodStatus) {
	return func(st *corev1.PodStatus) {
		st.Phase = p
		if p != corev1.PodRunning {
			st.ContainerStatuses = nil
		}
	}
}

// container is the status of one container of a Pod.
func container(name string, running, ready bool) func(*corev1.PodStatus) {
	return func(st *corev1.PodStatus) {
		c := corev1.ContainerStatus{Name: name, Ready: ready}
		if running {
			c.State.Running = &corev1.ContainerStateRunning{}
		}
		set(st, corev1.PodReady, corev1.ConditionFalse, "ContainersNotReady", "")
		for i := range st.ContainerStatuses {
			if st.ContainerStatuses[i].Name == name {
				st.ContainerStatuses[i] = c
				return
			}
		}
		st.ContainerStatuses = append(st.ContainerStatuses, c)
	}
}

func computeEnded(st *corev1.PodStatus) {
	for i := range st.ContainerStatuses {
		if c := &st.ContainerStatuses[i]; c.Name == "compute" {
			c.Ready, c.State = false, corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1}}
		}
	}
}

func unscheduled(st *corev1.PodStatus) {
	*st = corev1.PodStatus{Phase: corev1.PodPending}
	set(st, corev1.PodScheduled, corev1.ConditionFalse, "Unschedulable", "no node has room")
}

func guaranteed(p *corev1.Pod) {
	all := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourceMemory: resource.MustParse("1Gi")}
	for i := range p.Spec.Containers {
		p.Spec.Containers[i].Resources = corev1.ResourceRequirements{Requests: all, Limits: all}
	}
	for i := range p.Spec.InitContainers {
		p.Spec.InitContainers[i].Resources = corev1.ResourceRequirements{Requests: all, Limits: all}
	}
}

// networks adds an interface of the Pod's network.
func networks(g *v1.VirtualMachineInstance) {
	g.Spec.Domain.Devices.Interfaces = []v1.Interface{{Name: "default", InterfaceBindingMethod: v1.InterfaceBindingMethod{Masquerade: &v1.InterfaceMasquerade{}}}}
	g.Spec.Networks = []v1.Network{*v1.DefaultPodNetwork()}
}

// hasCondition adds a condition.
func hasCondition(of v1.VirtualMachineInstanceConditionType, status corev1.ConditionStatus, reason string) func(*v1.VirtualMachineInstance) {
	return func(g *v1.VirtualMachineInstance) {
		g.Status.Conditions = append(g.Status.Conditions, v1.VirtualMachineInstanceCondition{Type: of, Status: status, Reason: reason})
	}
}

// newer creates a second Pod of the VMI, with the last name.
func newer(w *world, g *v1.VirtualMachineInstance, pod *corev1.Pod) {
	second := pod.DeepCopy()
	second.Name, second.ResourceVersion, second.UID = "zzz-newer", "", ""
	second.Status.Conditions = nil
	container("compute", false, false)(&second.Status)
	w.createPod(second)
	_ = g
}

// placedToBeReceived sets the node of the migration target.
func placedToBeReceived(g *v1.VirtualMachineInstance) {
	toBeReceived(g)
	if g.Labels == nil {
		g.Labels = map[string]string{}
	}
	g.Labels[v1.MigrationTargetNodeNameLabel] = "target"
}

func receivedInVain(g *v1.VirtualMachineInstance) {
	placedToBeReceived(g)
	g.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{Failed: true}
}
