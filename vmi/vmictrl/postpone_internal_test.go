// SPDX-License-Identifier: Apache-2.0

package vmictrl

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	clocktesting "k8s.io/utils/clock/testing"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/virtloom/virtloom/expectations"
	"github.com/virtloom/virtloom/internal/backlog"
	"github.com/virtloom/virtloom/vmi"
)

// long is a queue with a fixed length.
type long struct {
	workqueue.TypedRateLimitingInterface[reconcile.Request]
	waiting int
}

func (l *long) Len() int { return l.waiting }

var postponeEpoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// postponing returns a controller with a queue of that length, and a pass over a VMI with a Pod.
func postponing(waiting int, edit func(*v1.VirtualMachineInstance, *corev1.Pod)) (*Reconciler, *clocktesting.FakePassiveClock, *gathered) {
	c := clocktesting.NewFakePassiveClock(postponeEpoch)
	r := &Reconciler{Clock: c, Workers: 4}
	r.parts()
	r.backlog.Use(&long{waiting: waiting})
	g := &gathered{owner: expectations.Owner{Key: types.NamespacedName{Namespace: "ns", Name: "web"}}}
	g.VMI = &v1.VirtualMachineInstance{}
	g.VMI.Namespace, g.VMI.Name, g.VMI.UID = "ns", "web", "web-uid"
	g.VMI.Status.Phase = v1.Pending
	pod := &corev1.Pod{}
	pod.Namespace, pod.Name, pod.UID = "ns", "virt-launcher-web", "pod-uid"
	pod.Labels = map[string]string{v1.CreatedByLabel: "web-uid", v1.AppLabel: "virt-launcher"}
	pod.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(g.VMI, v1.VirtualMachineInstanceGroupVersionKind)}
	pod.Spec.Containers = []corev1.Container{{Name: "compute"}}
	edit(g.VMI, pod)
	g.Pods, g.input.VMI = []*corev1.Pod{pod}, g.VMI
	return r, c, g
}

func ready(_ *v1.VirtualMachineInstance, p *corev1.Pod) {
	p.Spec.NodeName, p.Status.Phase = "node-1", corev1.PodRunning
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "compute", Ready: true, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
}

// Under load the phase Scheduling is not stored, but a ready Pod leads to the handoff.
func TestDeferStatus_UnderLoad(t *testing.T) {
	starting := func(*v1.VirtualMachineInstance, *corev1.Pod) {}
	for name, test := range map[string]struct {
		waiting  int
		edit     func(*v1.VirtualMachineInstance, *corev1.Pod)
		after    time.Duration
		deferred bool
		phase    v1.VirtualMachineInstancePhase
	}{
		"others wait, and the Pod starts":   {5, starting, 0, true, v1.Scheduling},
		"others wait, and the Pod is ready": {5, ready, 0, true, v1.Scheduled},
		"nobody waits":                      {0, starting, 0, false, v1.Scheduling},
		"others have waited for too long":   {5, starting, backlog.Patience, false, v1.Scheduling},
		"others wait, for a shorter while":  {5, starting, backlog.Patience - time.Second, true, v1.Scheduling},
		"since then the Pod became ready":   {5, ready, backlog.Patience - time.Second, true, v1.Scheduled},
		"the Pod is ready too late":         {5, ready, backlog.Patience, false, v1.Scheduling},
		"the phase is stored already":       {5, func(g *v1.VirtualMachineInstance, _ *corev1.Pod) { g.Status.Phase = v1.Scheduling }, 0, false, v1.Scheduling},
		"the guest is to be received": {5, func(g *v1.VirtualMachineInstance, _ *corev1.Pod) {
			g.Annotations = map[string]string{v1.CreateMigrationTarget: "true"}
		}, 0, false, v1.Scheduling},
		"the Pod cannot be placed, which is news": {5, func(_ *v1.VirtualMachineInstance, p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable"}}
		}, 0, false, v1.Scheduling},
	} {
		t.Run(name, func(t *testing.T) {
			r, clock, g := postponing(test.waiting, test.edit)
			r.backlog.Put(g.owner.Key, postponeEpoch)
			clock.SetTime(postponeEpoch.Add(test.after))
			stored := g.VMI
			if err := (gatherer{r}).skipScheduling(t.Context(), g); err != nil {
				t.Fatal(err)
			}
			skipped, outcome := g.stored != nil, ""
			if skipped && g.stored != stored {
				t.Fatalf("stored is %v", g.stored)
			}
			plan, _, err := r.step(t.Context(), g, &outcome)
			if err != nil {
				t.Fatal(err)
			}
			if deferred := skipped || (actor{r}).deferStatus(g, plan); deferred != test.deferred {
				t.Fatalf("deferred %v, want %v", deferred, test.deferred)
			}
			if got := plan.VMI.Status.Phase; got != test.phase {
				t.Errorf("phase %s, want %s", got, test.phase)
			}
			for _, s := range plan.VMI.Status.PhaseTransitionTimestamps {
				if skipped && s.Phase == v1.Scheduling && !s.PhaseTransitionTimestamp.Time.Equal(postponeEpoch) {
					t.Errorf("it was %s from %s, want %s", s.Phase, s.PhaseTransitionTimestamp, postponeEpoch)
				}
			}
		})
	}
}

// VirtualMachines that wait beside are others, too.
func TestDeferStatus_Beside(t *testing.T) {
	for _, busy := range []bool{false, true} {
		r, _, g := postponing(0, func(*v1.VirtualMachineInstance, *corev1.Pod) {})
		r.backlog.Beside(func() bool { return busy })
		outcome := ""
		plan, _, err := r.step(t.Context(), g, &outcome)
		if err != nil {
			t.Fatal(err)
		}
		if deferred := (actor{r}).deferStatus(g, plan); deferred != busy {
			t.Errorf("VirtualMachines wait: %v, deferred: %v", busy, deferred)
		}
	}
}

// After the handoff the Pod is patched when no other VMI waits, and at once when the VMI runs.
func TestDeferPodPatch_UnderLoad(t *testing.T) {
	for name, test := range map[string]struct {
		waiting, others int
		phase           v1.VirtualMachineInstancePhase
		verbs           []vmi.Verb
		late            bool
	}{
		"others wait":                          {5, 0, v1.Scheduled, []vmi.Verb{vmi.PatchPod}, true},
		"only those wait that do the same":     {5, 5, v1.Scheduled, []vmi.Verb{vmi.PatchPod}, false},
		"there are workers enough":             {4, 0, v1.Scheduled, []vmi.Verb{vmi.PatchPod}, false},
		"nobody waits":                         {0, 0, v1.Scheduled, []vmi.Verb{vmi.PatchPod}, false},
		"the guest runs":                       {5, 0, v1.Running, []vmi.Verb{vmi.PatchPod}, false},
		"there is more to be done for the Pod": {5, 0, v1.Scheduled, []vmi.Verb{vmi.PatchPod, vmi.CreateAttachment}, false},
		"it is to be deleted":                  {5, 0, v1.Scheduled, []vmi.Verb{vmi.DeletePod}, false},
	} {
		t.Run(name, func(t *testing.T) {
			r, _, g := postponing(test.waiting, ready)
			for i := range test.others {
				r.backlog.Put(types.NamespacedName{Name: string(rune('a' + i))}, postponeEpoch)
			}
			plan := vmi.Plan{VMI: g.VMI}
			plan.VMI.Status.Phase = test.phase
			for _, v := range test.verbs {
				plan.Actions = append(plan.Actions, vmi.Action{Verb: v})
			}
			if late := (actor{r}).deferPodPatch(g, &plan); late != test.late || late != (len(plan.Actions) == 0) {
				t.Errorf("late is %v with %d actions left, want %v", late, len(plan.Actions), test.late)
			}
		})
	}
}
