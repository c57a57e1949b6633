// SPDX-License-Identifier: Apache-2.0

package vmi_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/vmi"
	"github.com/virtloom/virtloom/vmi/internal/vmifixture"
)

// now is the time of all decisions.
var now = vmifixture.Now

var (
	guest       = vmifixture.VMI
	on          = vmifixture.On
	deleting    = vmifixture.Deleting
	lease       = vmifixture.Lease
	pod         = vmifixture.Pod
	podPhase    = vmifixture.PodPhase
	terminating = vmifixture.Terminating
	unscheduled = vmifixture.Unscheduled
	waiting     = vmifixture.Waiting
)

func paused(g *v1.VirtualMachineInstance) {
	g.Status.Conditions = append(g.Status.Conditions,
		v1.VirtualMachineInstanceCondition{Type: v1.VirtualMachineInstancePaused, Status: corev1.ConditionTrue})
}

func gate(status corev1.ConditionStatus) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Status.Conditions[1].Status = status }
}

func TestDecide(t *testing.T) {
	owned := lease(handoff.Lease{State: handoff.Owned, Epoch: 1, Holder: "node-a"})
	released := lease(handoff.Lease{State: handoff.Released, Epoch: 2})
	claimed := func(g *v1.VirtualMachineInstance) {
		g.Spec.Volumes = []v1.Volume{{Name: "d", VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{
			PersistentVolumeClaimVolumeSource: corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}}}
	}
	migration := func(phase v1.VirtualMachineInstanceMigrationPhase) []*v1.VirtualMachineInstanceMigration {
		return []*v1.VirtualMachineInstanceMigration{{ObjectMeta: metav1.ObjectMeta{Name: "m"}, Status: v1.VirtualMachineInstanceMigrationStatus{Phase: phase}}}
	}
	type want struct {
		phase   v1.VirtualMachineInstancePhase
		actions string
		blocked string
		sync    string // reason of Synchronized=False
		gone    bool   // finalizer removed
	}
	for name, tt := range map[string]struct {
		s    vmi.Snapshot
		want want
	}{
		"2 new: a new object is claimed with the write that records its Pod": {
			vmi.Snapshot{VMI: guest("", func(g *v1.VirtualMachineInstance) { g.Finalizers = nil })}, want{phase: v1.Pending, actions: "CreateLauncher"}},
		"a claimed object gets its Pod": {
			vmi.Snapshot{VMI: guest(v1.Pending)}, want{phase: v1.Pending, actions: "CreateLauncher"}},
		"an unseen write holds everything back": {
			vmi.Snapshot{VMI: guest(v1.Pending), Pending: []string{"create Pod ns/p"}}, want{phase: v1.Pending, blocked: "WaitingForCache"}},
		"a failed creation is reported and not repeated in the pass": {
			vmi.Snapshot{VMI: guest(v1.Pending), Failure: &vmi.Failure{Reason: vmi.ReasonFailedCreate, Message: "x"}}, want{phase: v1.Pending, sync: "FailedCreate"}},
		"a missing claim blocks": {
			vmi.Snapshot{VMI: guest(v1.Pending, claimed)}, want{phase: v1.Pending, blocked: "FailedPvcNotFound", sync: "FailedPvcNotFound"}},
		"a name that is taken blocks": {
			vmi.Snapshot{VMI: guest(v1.Pending), Foreign: pod("p")}, want{phase: v1.Pending, blocked: "FailedCreate", sync: "FailedCreate"}},
		"a claim that exists does not": {
			vmi.Snapshot{VMI: guest(v1.Pending, claimed), Storage: vmi.Storage{Claims: map[string]*corev1.PersistentVolumeClaim{"data": {}}}}, want{phase: v1.Pending, actions: "CreateLauncher"}},
		"a running migration blocks": {
			vmi.Snapshot{VMI: guest(v1.Pending), Migrations: migration(v1.MigrationRunning)}, want{phase: v1.Pending, blocked: "FailedCreate", sync: "FailedCreate"}},
		"a pending migration does not": {
			vmi.Snapshot{VMI: guest(v1.Pending), Migrations: migration(v1.MigrationPending)}, want{phase: v1.Pending, actions: "CreateLauncher"}},
		"a Pod means Scheduling, whatever its phase": {
			vmi.Snapshot{VMI: guest(v1.Pending), Pods: []*corev1.Pod{pod("p", podPhase(corev1.PodFailed))}}, want{phase: v1.Scheduling}},
		"a Pod that cannot be placed is reported": {
			vmi.Snapshot{VMI: guest(v1.Scheduling), Pods: []*corev1.Pod{pod("p", unscheduled)}}, want{phase: v1.Scheduling}},
		"an image that cannot be pulled is reported": {
			vmi.Snapshot{VMI: guest(v1.Scheduling), Pods: []*corev1.Pod{pod("p", waiting("compute", "ErrImagePull"))}}, want{phase: v1.Scheduling, sync: "ErrImagePull"}},
		"a ready Pod means the hand-over": {
			vmi.Snapshot{VMI: guest(v1.Scheduling), Pods: []*corev1.Pod{pod("p")}}, want{phase: v1.Scheduled}},
		"compute need not be ready, only running": {
			vmi.Snapshot{VMI: guest(v1.Scheduling), Pods: []*corev1.Pod{pod("p", func(p *corev1.Pod) { p.Status.ContainerStatuses[0].Ready = false })}}, want{phase: v1.Scheduled}},
		"another container must be ready": {
			vmi.Snapshot{VMI: guest(v1.Scheduling), Pods: []*corev1.Pod{pod("p", func(p *corev1.Pod) {
				p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, corev1.ContainerStatus{Name: "sidecar"})
			})}}, want{phase: v1.Scheduling}},
		"a Pod without container statuses that is Running is ready": {
			vmi.Snapshot{VMI: guest(v1.Scheduling), Pods: []*corev1.Pod{pod("p", func(p *corev1.Pod) { p.Status.ContainerStatuses = nil })}}, want{phase: v1.Scheduled}},
		"a Pod that ended before the hand-over means Failed": {
			vmi.Snapshot{VMI: guest(v1.Scheduling), Pods: []*corev1.Pod{pod("p", podPhase(corev1.PodSucceeded))}}, want{phase: v1.Failed}},
		"a Pod that vanished before the hand-over means Failed": {
			vmi.Snapshot{VMI: guest(v1.Scheduling)}, want{phase: v1.Failed}},
		"a Pod that is merely not seen yet does not": {
			vmi.Snapshot{VMI: guest(v1.Scheduling), Pending: []string{"create Pod"}}, want{phase: v1.Scheduling, blocked: "WaitingForCache"}},
		"a scheduled guest is left to its node": {
			vmi.Snapshot{VMI: guest(v1.Scheduled, owned), Pods: []*corev1.Pod{pod("p")}}, want{phase: v1.Scheduled}},
		"a running guest is left to its node": {
			vmi.Snapshot{VMI: guest(v1.Running, owned), Pods: []*corev1.Pod{pod("p")}}, want{phase: v1.Running}},
		"a guest whose Pod is gone has failed": {
			vmi.Snapshot{VMI: guest(v1.Running, owned)}, want{phase: v1.Failed}},
		"a guest never gets a second Pod": {
			vmi.Snapshot{VMI: guest(v1.Scheduled, owned)}, want{phase: v1.Failed}},
		"a target's Pod is not the guest's": {
			vmi.Snapshot{VMI: guest(v1.Running, owned), Pods: []*corev1.Pod{pod("t", func(p *corev1.Pod) { p.Spec.NodeName = "node-b" })}}, want{phase: v1.Failed}},
		"pausing closes the readiness gate": {
			vmi.Snapshot{VMI: guest(v1.Running, owned, paused), Pods: []*corev1.Pod{pod("p")}}, want{phase: v1.Running, actions: "PatchPod p unpaused=false"}},
		"resuming opens it": {
			vmi.Snapshot{VMI: guest(v1.Running, owned), Pods: []*corev1.Pod{pod("p", gate(corev1.ConditionFalse))}}, want{phase: v1.Running, actions: "PatchPod p unpaused=true"}},
		"deletion deletes every Pod once": {
			vmi.Snapshot{VMI: guest(v1.Running, owned, deleting), Pods: []*corev1.Pod{pod("p"), pod("q", terminating)}}, want{phase: v1.Running, actions: "DeletePod p"}},
		"a terminating Pod is not hurried while its guest may run": {
			vmi.Snapshot{VMI: guest(v1.Running, owned, deleting), Pods: []*corev1.Pod{pod("p", terminating)}}, want{phase: v1.Running}},
		"a terminating Pod is hurried once its guest has ended": {
			vmi.Snapshot{VMI: guest(v1.Succeeded, released, deleting), Pods: []*corev1.Pod{pod("p", terminating)}}, want{phase: v1.Succeeded, actions: "DeletePod p grace=1s"}},
		"deletion before there was a Pod means Failed": {
			vmi.Snapshot{VMI: guest(v1.Pending, deleting)}, want{phase: v1.Failed}},
		"a final object without Pods is let go": {
			vmi.Snapshot{VMI: guest(v1.Succeeded, released)}, want{phase: v1.Succeeded, gone: true}},
		"a stock final object is let go as well": {
			vmi.Snapshot{VMI: guest(v1.Succeeded, on("node-a"))}, want{phase: v1.Succeeded, gone: true}},
		"a final object with a Pod is kept": {
			vmi.Snapshot{VMI: guest(v1.Succeeded, released), Pods: []*corev1.Pod{pod("p", podPhase(corev1.PodSucceeded))}}, want{phase: v1.Succeeded}},
		"a Pod that outlives its guest is deleted": {
			vmi.Snapshot{VMI: guest(v1.Succeeded, released), Pods: []*corev1.Pod{pod("p"), pod("q", terminating)}}, want{phase: v1.Succeeded, actions: "DeletePod p grace=1s, DeletePod q grace=1s"}},
		"a guest nobody accepted needs no patience": {
			vmi.Snapshot{VMI: guest(v1.Scheduling, deleting), Pods: []*corev1.Pod{pod("p")}}, want{phase: v1.Scheduling, actions: "DeletePod p grace=1s"}},
		"a final guest that its node has not released keeps its Pod": {
			vmi.Snapshot{VMI: guest(v1.Failed, owned), Pods: []*corev1.Pod{pod("p")}}, want{phase: v1.Failed}},
		"a stock final guest keeps its Pod": {
			vmi.Snapshot{VMI: guest(v1.Failed, on("node-a")), Pods: []*corev1.Pod{pod("p")}}, want{phase: v1.Failed}},
		"deletion waits for a Pod that may have been created": {
			vmi.Snapshot{VMI: guest(v1.Pending, deleting), Pending: []string{"create Pod"}}, want{phase: v1.Pending, blocked: "WaitingForCache"}},
		"a guest that a stock node runs is not hurried": {
			vmi.Snapshot{VMI: guest(v1.Running, lease(handoff.Lease{State: handoff.Offered, Epoch: 1, Holder: "node-a"}), deleting), Pods: []*corev1.Pod{pod("p", terminating)}}, want{phase: v1.Running}},
		"what waits to be received elsewhere is let go": {
			vmi.Snapshot{VMI: guest(v1.WaitingForSync, deleting)}, want{phase: v1.WaitingForSync, gone: true}},
		"a final object whose node has not reported the end is kept": {
			vmi.Snapshot{VMI: guest(v1.Failed, owned)}, want{phase: v1.Failed}},
	} {
		t.Run(name, func(t *testing.T) {
			before := tt.s.VMI.DeepCopy()
			plan := vmi.Decide(tt.s, now)
			if diff := cmp.Diff(before, tt.s.VMI); diff != "" {
				t.Fatalf("Decide changed its input:\n%s", diff)
			}
			var actions []string
			for _, a := range plan.Actions {
				text, _, _ := strings.Cut(a.String(), " (")
				actions = append(actions, text)
			}
			got := want{phase: plan.VMI.Status.Phase, actions: strings.Join(actions, ", "),
				gone: !slices.Contains(plan.VMI.Finalizers, v1.VirtualMachineInstanceFinalizer)}
			if w := plan.Blocked(); w != nil {
				got.blocked = w.Reason
			} else if len(tt.s.Pending) > 0 {
				got.blocked = plan.Waits[0].Reason
			}
			for _, c := range plan.VMI.Status.Conditions {
				if c.Type == v1.VirtualMachineInstanceSynchronized {
					got.sync = c.Reason
				}
			}
			if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(want{})); diff != "" {
				t.Fatalf("(-want +got):\n%s\n%s", diff, plan)
			}
		})
	}
}

func TestDecide_HandoffIsOneWrite(t *testing.T) {
	plan := vmi.Decide(vmi.Snapshot{VMI: guest(v1.Scheduling), Pods: []*corev1.Pod{pod("p")}}, now)
	got := plan.VMI
	l, err := handoff.Of(got)
	if err != nil {
		t.Fatal(err)
	}
	deadline := metav1.NewTime(now.Add(vmi.DefaultAcceptWithin))
	if diff := cmp.Diff(handoff.Lease{State: handoff.Offered, Epoch: 1, Holder: "node-a", Cause: "PodIsReady", Deadline: &deadline}, l); diff != "" {
		t.Errorf("lease (-want +got):\n%s", diff)
	}
	if got.Labels[v1.NodeNameLabel] != "node-a" || got.Status.NodeName != "node-a" {
		t.Errorf("label %q, nodeName %q; want node-a", got.Labels[v1.NodeNameLabel], got.Status.NodeName)
	}
	if got.Status.QOSClass == nil || *got.Status.QOSClass != corev1.PodQOSBurstable {
		t.Errorf("qosClass %v", got.Status.QOSClass)
	}
	if got.Status.ActivePods["uid-p"] != "node-a" {
		t.Errorf("activePods %v", got.Status.ActivePods)
	}
	if got.Status.LauncherContainerImageVersion != "launcher:1" {
		t.Errorf("launcherContainerImageVersion %q", got.Status.LauncherContainerImageVersion)
	}
	if n := len(got.Status.PhaseTransitionTimestamps); n != 1 {
		t.Errorf("%d phase timestamps, want 1", n)
	}
}

func TestDecide_SettledVMI(t *testing.T) {
	s := vmi.Snapshot{VMI: guest(v1.Running, lease(handoff.Lease{State: handoff.Owned, Epoch: 1, Holder: "node-a"})), Pods: []*corev1.Pod{pod("p")}}
	first := vmi.Decide(s, now)
	s.VMI = first.VMI
	second := vmi.Decide(s, now.Add(time.Hour))
	if diff := cmp.Diff(first.VMI, second.VMI); diff != "" || len(second.Actions) > 0 {
		t.Fatalf("a second pass wants %v and\n%s", second.Actions, diff)
	}
}

func TestDecide_ReadyCondition(t *testing.T) {
	owned := lease(handoff.Lease{State: handoff.Owned, Epoch: 1, Holder: "node-a"})
	for name, tt := range map[string]struct {
		s      vmi.Snapshot
		status corev1.ConditionStatus
		reason string
	}{
		"no Pod":          {vmi.Snapshot{VMI: guest(v1.Pending)}, corev1.ConditionFalse, "PodNotExists"},
		"going down":      {vmi.Snapshot{VMI: guest(v1.Running, owned), Pods: []*corev1.Pod{pod("p", terminating)}}, corev1.ConditionFalse, "PodTerminating"},
		"not running":     {vmi.Snapshot{VMI: guest(v1.Scheduled, owned), Pods: []*corev1.Pod{pod("p")}}, corev1.ConditionFalse, "GuestNotRunning"},
		"no condition":    {vmi.Snapshot{VMI: guest(v1.Running, owned), Pods: []*corev1.Pod{pod("p", func(p *corev1.Pod) { p.Status.Conditions = nil })}}, corev1.ConditionFalse, "PodConditionMissing"},
		"running, ready":  {vmi.Snapshot{VMI: guest(v1.Running, owned), Pods: []*corev1.Pod{pod("p")}}, corev1.ConditionTrue, ""},
		"newest Pod wins": {vmi.Snapshot{VMI: guest(v1.Running, owned), Pods: []*corev1.Pod{pod("old", podPhase(corev1.PodFailed), func(p *corev1.Pod) { p.CreationTimestamp = metav1.NewTime(now.Add(-time.Hour)) }), pod("p")}}, corev1.ConditionTrue, ""},
	} {
		t.Run(name, func(t *testing.T) {
			plan := vmi.Decide(tt.s, now)
			for _, c := range plan.VMI.Status.Conditions {
				if c.Type == v1.VirtualMachineInstanceReady {
					if c.Status != tt.status || c.Reason != tt.reason {
						t.Fatalf("Ready is %s %q, want %s %q", c.Status, c.Reason, tt.status, tt.reason)
					}
					return
				}
			}
			t.Fatal("there is no Ready condition")
		})
	}
}

func TestDecide_InvalidObject(t *testing.T) {
	broken := guest(v1.Running)
	broken.Annotations = map[string]string{handoff.Annotation: "?"}
	for reason, obj := range map[string]*v1.VirtualMachineInstance{
		vmi.ReasonInvalidLease: broken,
		vmi.ReasonUnknownPhase: guest("Sleeping"),
		// No transition leads from a released lease to an offer.
		vmi.ReasonFailedHandover: guest(v1.Scheduling, lease(handoff.Lease{State: handoff.Released, Epoch: 3})),
	} {
		pods := []*corev1.Pod{pod("p", gate(corev1.ConditionFalse))}
		plan := vmi.Decide(vmi.Snapshot{VMI: obj, Pods: pods}, now)
		c := condition(plan.VMI, vmi.ConditionUnderstood)
		if c == nil || c.Status != corev1.ConditionFalse || c.Reason != reason || !strings.Contains(c.Message, "ns/guest") {
			t.Errorf("%s: the condition is %+v, want one that names the object", reason, c)
		}
		if len(plan.Actions) > 0 || len(plan.Events) != 1 || len(plan.Waits) != 1 || plan.Waits[0].Responsible != handoff.ByUser {
			t.Errorf("%s: the plan is %s, want nothing but to wait for the user", reason, plan)
		}
		if plan.VMI.Status.Phase != obj.Status.Phase {
			t.Errorf("%s: the phase becomes %s", reason, plan.VMI.Status.Phase)
		}
		again := vmi.Decide(vmi.Snapshot{VMI: plan.VMI, Pods: pods}, now.Add(time.Hour))
		if diff := cmp.Diff(plan.VMI, again.VMI); diff != "" || len(again.Events) > 0 {
			t.Errorf("%s: reported again: %v %s", reason, again.Events, diff)
		}
	}
}
