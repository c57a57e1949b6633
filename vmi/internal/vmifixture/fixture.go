// SPDX-License-Identifier: Apache-2.0

// Package vmifixture provides VirtualMachineInstances and Pods for the tests of vmi and
// vmi/diagnose.
package vmifixture

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/vmi"
	"github.com/virtloom/virtloom/vmi/diagnose"
)

// Now is the time of decisions.
var Now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// VMI returns a VirtualMachineInstance in a phase.
func VMI(phase v1.VirtualMachineInstancePhase, change ...func(*v1.VirtualMachineInstance)) *v1.VirtualMachineInstance {
	g := &v1.VirtualMachineInstance{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "guest", UID: "uid-1", ResourceVersion: "7",
			Finalizers: []string{v1.VirtualMachineInstanceFinalizer}},
		Status: v1.VirtualMachineInstanceStatus{Phase: phase},
	}
	if phase == v1.Scheduled || phase == v1.Running {
		On("node-a")(g)
	}
	for _, c := range change {
		c(g)
	}
	return g
}

// On puts the VMI on a node.
func On(node string) func(*v1.VirtualMachineInstance) {
	return func(g *v1.VirtualMachineInstance) {
		g.Labels, g.Status.NodeName = map[string]string{v1.NodeNameLabel: node}, node
	}
}

// Deleting marks the VMI as being deleted.
func Deleting(g *v1.VirtualMachineInstance) { g.DeletionTimestamp = ptr.To(metav1.NewTime(Now)) }

// Lease stores a lease in the VMI.
func Lease(l handoff.Lease) func(*v1.VirtualMachineInstance) {
	return func(g *v1.VirtualMachineInstance) {
		if err := handoff.Put(g, l); err != nil {
			panic(err)
		}
	}
}

// Pod returns a Pod of the VMI that is Running on node-a.
func Pod(name string, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-" + name), CreationTimestamp: metav1.NewTime(Now),
			Labels:      map[string]string{v1.NodeNameLabel: "node-a"},
			Annotations: map[string]string{"descheduler.alpha.kubernetes.io/request-evict-only": ""}},
		Spec: corev1.PodSpec{NodeName: "node-a", Containers: []corev1.Container{{Name: "compute", Image: "launcher:1"}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, QOSClass: corev1.PodQOSBurstable,
			Conditions:        []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}, {Type: v1.VirtualMachineUnpaused, Status: corev1.ConditionTrue}},
			ContainerStatuses: []corev1.ContainerStatus{{Name: "compute", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}},
	}
	for _, c := range change {
		c(p)
	}
	return p
}

// PodPhase sets the phase of a Pod.
func PodPhase(phase corev1.PodPhase) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Status.Phase = phase }
}

// Terminating marks a Pod as terminating.
func Terminating(p *corev1.Pod) {
	p.DeletionTimestamp, p.DeletionGracePeriodSeconds = ptr.To(metav1.NewTime(Now)), ptr.To[int64](60)
}

// Unscheduled makes a Pod that no node is found for.
func Unscheduled(p *corev1.Pod) {
	p.Spec.NodeName, p.Status.Phase, p.Status.ContainerStatuses = "", corev1.PodPending, nil
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: "0/3 nodes"}}
}

// Waiting makes a Pod whose container waits for the reason.
func Waiting(container, reason string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status.Phase = corev1.PodPending
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: container, State: corev1.ContainerState{
			Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: "no such image"}}}}
	}
}

// Diagnosed checks the invariants of a diagnosis: it reports the decision and all waits, each with reason and
// remedy.
func Diagnosed(t *testing.T, s vmi.Snapshot, plan vmi.Plan) {
	t.Helper()
	d := diagnose.Of(s, Now)
	if len(d.Next) != len(plan.Actions) || len(d.Checks) != len(plan.Checks) {
		t.Errorf("reports %d writes and %d checks, the plan is\n%s", len(d.Next), len(d.Checks), plan)
	}
	if next := plan.VMI.Status.Phase; d.Becomes != "" && d.Becomes != next || d.Becomes == "" && next != s.VMI.Status.Phase {
		t.Errorf("it becomes %q by the diagnosis, %q by the plan", d.Becomes, next)
	}
	for _, w := range plan.Waits {
		if !slices.ContainsFunc(d.Findings, func(f diagnose.Finding) bool { return f.What == w.Message && f.Until == w.Until }) {
			t.Errorf("no finding for the wait until %s: %s", w.Until, w.Message)
		}
	}
	complete(t, d)
}

// complete checks that nothing is missing in a diagnosis.
func complete(t *testing.T, d diagnose.Diagnosis) {
	t.Helper()
	for _, f := range d.Findings {
		if slices.Contains([]string{string(f.Kind), f.What, f.Why, f.Remedy, f.Object}, "") {
			t.Errorf("finding is not complete: %+v", f)
		}
	}
	if text := d.String(); strings.Count(text, "\nFinding ") != len(d.Findings) {
		t.Errorf("%d findings in the text\n%s", len(d.Findings), text)
	}
}
