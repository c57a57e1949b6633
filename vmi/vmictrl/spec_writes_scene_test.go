// SPDX-License-Identifier: Apache-2.0

package vmictrl_test

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/template"
)

const (
	// noScheduler is a nonexistent scheduler: its Pods stay unscheduled.
	noScheduler = "no-scheduler"
	// pokeAnnotation is changed to trigger a pass.
	pokeAnnotation = "example.test/poke"
)

// scene is a settled VMI in a phase, as this controller and the node left it, with its Pod on
// a node without kubelet. Then it is changed.
type scene struct {
	phase v1.VirtualMachineInstancePhase
	guest func(*v1.VirtualMachineInstance)
	// pod changes the Pod before it is created, status its status.
	pod    func(*corev1.Pod)
	status func(*corev1.PodStatus)
	// noPod omits the Pod; before Scheduling it is omitted anyway, unless withPod is set.
	noPod, withPod bool
	// before and more create other objects; pod is nil where there is none.
	before func(w *world)
	more   func(w *world, g *v1.VirtualMachineInstance, pod *corev1.Pod)
}

// nodeOf returns the name of the world's node.
func nodeOf(w *world) string { return "node-of-" + w.ns }

func (s scene) make(w *world) *v1.VirtualMachineInstance {
	w.t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeOf(w)}, Spec: corev1.NodeSpec{Unschedulable: true}}
	w.create(node)
	w.t.Cleanup(func() { // the world's context is canceled by then
		if err := w.Delete(context.Background(), node); err != nil {
			w.t.Error(err)
		}
	})
	if s.before != nil {
		s.before(w)
	}
	g := w.guest(vmiName, func(g *v1.VirtualMachineInstance) {
		g.Annotations = map[string]string{pokeAnnotation: "0"}
		g.Spec.SchedulerName = noScheduler
	})
	var pod *corev1.Pod
	if !s.noPod && (s.withPod || !slices.Contains(podless, s.phase)) {
		pod = s.makePod(w, g)
	}
	w.change(g, func(g *v1.VirtualMachineInstance) {
		s.settle(w, g, pod)
		if s.guest != nil {
			s.guest(g)
		}
	})
	if s.more != nil {
		s.more(w, g, pod)
	}
	return g
}

// podless are the phases without a Pod.
var podless = []v1.VirtualMachineInstancePhase{v1.VmPhaseUnset, v1.Pending, v1.WaitingForSync, v1.Succeeded, v1.Failed}

// makePod creates the launcher Pod in its state of the phase.
func (s scene) makePod(w *world, g *v1.VirtualMachineInstance) *corev1.Pod {
	w.t.Helper()
	pod, err := template.Default().Launcher(template.Input{VMI: g, Config: template.ConfigFrom(nil, image)})
	if err != nil {
		w.t.Fatal(err)
	}
	pod.Spec.NodeName, pod.Spec.SchedulerName = nodeOf(w), ""
	pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}
	for _, c := range pod.Spec.Containers {
		pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, corev1.ContainerStatus{
			Name: c.Name, Image: c.Image, Ready: true, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}})
	}
	if handedOff(s.phase) {
		pod.Labels[v1.NodeNameLabel] = nodeOf(w)
		pod.Annotations["descheduler.alpha.kubernetes.io/request-evict-only"] = ""
		pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: v1.VirtualMachineUnpaused, Status: corev1.ConditionTrue})
	}
	if s.pod != nil {
		s.pod(pod)
	}
	if s.status != nil {
		s.status(&pod.Status)
	}
	w.createPod(pod)
	return pod
}

// createPod creates a Pod with its status, as soon as the namespace accepts Pods.
func (w *world) createPod(pod *corev1.Pod) {
	w.t.Helper()
	status := pod.Status
	w.eventually(func() string {
		err := w.Create(w.t.Context(), pod)
		switch {
		case apierrors.IsForbidden(err):
			return err.Error() // the service account does not exist yet
		case err != nil:
			w.t.Fatal(err)
		}
		return ""
	})
	status.QOSClass = pod.Status.QOSClass
	pod.Status = status
	if err := w.Status().Update(w.t.Context(), pod); err != nil {
		w.t.Fatal(err)
	}
}

func handedOff(p v1.VirtualMachineInstancePhase) bool { return p == v1.Scheduled || p == v1.Running }

// settle brings the VMI to its settled state of the phase.
func (s scene) settle(w *world, g *v1.VirtualMachineInstance, pod *corev1.Pod) {
	w.t.Helper()
	if s.phase == v1.VmPhaseUnset {
		return
	}
	g.Finalizers = []string{v1.VirtualMachineInstanceFinalizer}
	g.Annotations[v1.ControllerAPILatestVersionObservedAnnotation] = v1.ApiLatestVersion
	g.Annotations[v1.ControllerAPIStorageVersionObservedAnnotation] = v1.ApiStorageVersion
	st := &g.Status
	st.Phase = s.phase
	st.PhaseTransitionTimestamps = []v1.VirtualMachineInstancePhaseTransitionTimestamp{
		{Phase: v1.Pending, PhaseTransitionTimestamp: metav1.Now()}}
	reason, lease := "PodNotExists", handoff.Lease{}
	switch s.phase {
	case v1.Scheduling:
		reason, lease = "GuestNotRunning", handoff.Lease{State: handoff.Claimed, Cause: "PodIsPrepared"}
	case v1.Scheduled:
		reason = "GuestNotRunning"
		lease = handoff.Lease{State: handoff.Offered, Epoch: 1, Holder: nodeOf(w), Cause: "PodIsReady",
			Deadline: &metav1.Time{Time: time.Now().Add(time.Hour).Truncate(time.Second)}}
	case v1.Running:
		reason, lease = "", handoff.Lease{State: handoff.Owned, Epoch: 1, Holder: nodeOf(w), Cause: "GuestStarted"}
	case v1.Succeeded, v1.Failed:
		lease = handoff.Lease{State: handoff.Released, Epoch: 2, Cause: "GuestEnded"}
	}
	notReady(reason)(g)
	if s.phase == v1.Running {
		st.Conditions[0].Status = corev1.ConditionTrue
	}
	if lease.State != handoff.Unclaimed {
		if err := handoff.Put(g, lease); err != nil {
			w.t.Fatal(err)
		}
	}
	if pod != nil && !slices.Contains(podless, s.phase) {
		st.ActivePods = map[types.UID]string{pod.UID: nodeOf(w)}
		st.LauncherContainerImageVersion = pod.Spec.Containers[0].Image
	}
}

// deleteIt deletes the VMI, which keeps its finalizer.
func deleteIt(w *world, g *v1.VirtualMachineInstance, _ *corev1.Pod) { w.delete(g) }

// deletePod deletes the Pod, which stays as nothing ends its containers.
func deletePod(w *world, _ *v1.VirtualMachineInstance, pod *corev1.Pod) { w.delete(pod) }

// owned creates further Pods of the VMI.
func owned(w *world, g *v1.VirtualMachineInstance, names ...string) {
	w.t.Helper()
	for _, name := range names {
		w.createPod(&corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: name, Labels: map[string]string{v1.CreatedByLabel: string(g.UID)},
				OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(g, v1.VirtualMachineInstanceGroupVersionKind)}},
			Spec: corev1.PodSpec{NodeName: nodeOf(w), Containers: []corev1.Container{{Name: "compute", Image: image}}},
		})
	}
}

// set sets a condition of the Pod.
func set(st *corev1.PodStatus, of corev1.PodConditionType, status corev1.ConditionStatus, reason, message string) {
	st.Conditions = slices.DeleteFunc(st.Conditions, func(c corev1.PodCondition) bool { return c.Type == of })
	st.Conditions = append(st.Conditions, corev1.PodCondition{Type: of, Status: status, Reason: reason, Message: message})
}
