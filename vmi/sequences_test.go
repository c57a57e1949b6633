// SPDX-License-Identifier: Apache-2.0

package vmi_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/vmi"
)

func leaseOf(t *testing.T, g *v1.VirtualMachineInstance) handoff.Lease {
	t.Helper()
	l, err := handoff.Of(g)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// During the switchover the domain may run at the target, which would end it if the phase
// became Failed.
func TestDecide_SourcePodEndsDuringSwitchover(t *testing.T) {
	deadline := metav1.NewTime(now.Add(time.Minute))
	moving := func(s handoff.State, was handoff.State) func(*v1.VirtualMachineInstance) {
		l := handoff.Lease{State: s, Was: was, Epoch: 2, Holder: "node-a", Target: "node-b", Tag: "job", Deadline: &deadline}
		if s == handoff.Fenced {
			l.Holder = ""
		}
		return lease(l)
	}
	there := []*corev1.Pod{pod("m", target)}
	for name, s := range map[string]vmi.Snapshot{
		"moving":                  {VMI: guest(v1.Running, moving(handoff.Moving, "")), Pods: there},
		"lost while moving":       {VMI: guest(v1.Running, moving(handoff.Lost, handoff.Moving)), Pods: there},
		"its source is fenced":    {VMI: guest(v1.Running, moving(handoff.Fenced, "")), Pods: there},
		"neither Pod can be seen": {VMI: guest(v1.Running, moving(handoff.Moving, ""))},
	} {
		plan := vmi.Decide(s, now)
		if plan.VMI.Status.Phase != v1.Running || len(plan.Actions) > 0 || len(plan.Waits) == 0 || plan.Waits[0].Responsible != handoff.ByNode {
			t.Errorf("%s: the plan is %s\nwant to wait for a node", name, plan)
		}
	}
}

// An object that was replaced as a whole has lost the record of its migration.
func TestDecide_LostStatusAfterMigration(t *testing.T) {
	for name, source := range map[string]*corev1.Pod{
		"source there":   pod("p"),
		"source ended":   pod("p", podPhase(corev1.PodSucceeded)),
		"source leaving": pod("p", terminating),
	} {
		s := vmi.Snapshot{VMI: guest(""), Pods: []*corev1.Pod{source, pod("m", target)}}
		s.VMI.Finalizers = nil
		for range 3 {
			plan := vmi.Decide(s, now)
			l := leaseOf(t, plan.VMI)
			if plan.VMI.Status.Phase != v1.Pending || l.State != handoff.Unclaimed || len(plan.Actions) > 0 {
				t.Fatalf("%s: lease %+v, the plan is %s", name, l, plan)
			}
			if c := condition(plan.VMI, v1.VirtualMachineInstanceSynchronized); c == nil || c.Reason != vmi.ReasonFailedCreate {
				t.Fatalf("%s: Synchronized is %+v", name, c)
			}
			s.VMI = plan.VMI
		}
	}
}

// A message whose numbers differ with each attempt would be a write that triggers the next
// attempt without back-off.
func TestSynchronized_NumbersDiffer(t *testing.T) {
	s := vmi.Snapshot{VMI: guest(v1.Pending)}
	for i := range 10 {
		s.Failure = &vmi.Failure{Reason: vmi.ReasonFailedCreate,
			Message: fmt.Sprintf("exceeded quota: all, requested: memory=%dMi, used: pods=%d; dial tcp 192.0.2.%d:%d", i, i+100, i, 40000+i)}
		plan := vmi.Decide(s, now)
		if emitted := len(plan.Events) > 0; emitted != (i == 0) {
			t.Fatalf("try %d: events %v", i, plan.Events)
		}
		s.VMI = plan.VMI
	}
	if vmi.SameButNumbers("claim a does not exist", "claim b does not exist") {
		t.Error("names are news")
	}
}

// A lease need not have a deadline.
func TestDecide_LeaseWithoutDeadline(t *testing.T) {
	for _, state := range []handoff.State{handoff.Preparing, handoff.Prepared, handoff.Moving, handoff.Lost, handoff.Fenced} {
		for _, evidence := range []map[string]handoff.Evidence{nil, {
			"node-a": {Kind: handoff.NodeGone, Detail: "x"}, "node-b": {Kind: handoff.PodGone, Detail: "x"}}} {
			l := handoff.Lease{State: state, Epoch: 1, Holder: "node-a", Target: "node-b", Tag: "m"}
			switch state {
			case handoff.Lost:
				l.Was = handoff.Moving
			case handoff.Fenced:
				l.Holder = ""
			}
			s := vmi.Snapshot{VMI: guest(v1.Running, lease(l)), Pods: []*corev1.Pod{pod("p")},
				Silent: map[string]time.Time{"node-a": now, "node-b": now}, Evidence: evidence}
			if plan := vmi.Decide(s, now); plan.VMI == nil {
				t.Errorf("%s: no plan", state)
			}
		}
	}
}

// The Pod's gate and metadata are patched first: a hotplug may be rejected for long.
func TestDecide_PodPatchPrecedesHotplug(t *testing.T) {
	s := vmi.Snapshot{VMI: guest(v1.Scheduling), Pods: []*corev1.Pod{pod("p", gate(corev1.ConditionFalse))}}
	s.VMI.Status.SelinuxContext = "none"
	plugged(&s)
	plan := vmi.Decide(s, now)
	var verbs []vmi.Verb
	for _, a := range plan.Actions {
		verbs = append(verbs, a.Verb)
	}
	if want := []vmi.Verb{vmi.PatchPod, vmi.CreateAttachment}; !slices.Equal(verbs, want) {
		t.Errorf("the actions are %v, want %v", verbs, want)
	}
}

// A node that reported a problem and then dies is not waited for.
func TestOffer_NodeDiesAfterReport(t *testing.T) {
	s := vmi.Snapshot{VMI: guest(v1.Scheduled, offered(now.Add(-time.Second)), synchronizedFalse("NodeNotReady", "x")), Pods: []*corev1.Pod{pod("p")}}
	if plan := vmi.Decide(s, now); plan.VMI.Status.Phase != v1.Scheduled {
		t.Fatalf("the node lives, and the plan is %s", plan)
	}
	s.Silent = map[string]time.Time{"node-a": now}
	if plan := vmi.Decide(s, now); plan.VMI.Status.Phase != v1.Failed || leaseOf(t, plan.VMI).State != handoff.Released {
		t.Errorf("the node is silent, and the plan is %s", plan)
	}
}

// An object that has lost its status still has its released lease.
func TestDecide_ReleasedLease(t *testing.T) {
	s := vmi.Snapshot{VMI: guest(v1.Pending, lease(handoff.Lease{State: handoff.Released, Epoch: 3, Cause: "GuestEnded"}))}
	if plan := vmi.Decide(s, now); plan.VMI.Status.Phase != v1.Failed || len(plan.Actions) > 0 {
		t.Errorf("the plan is %s", plan)
	}
}

// A VMI that is being deleted shuts down with all its disks.
func TestHotplug_DeletedVMIKeepsVolumes(t *testing.T) {
	s := vmi.Snapshot{VMI: guest(v1.Running, lease(handoff.Lease{State: handoff.Owned, Epoch: 1, Holder: "node-a"})), Pods: []*corev1.Pod{pod("p")}}
	plugged(&s)
	s.VMI.Status.VolumeStatus = []v1.VolumeStatus{{Name: "hot", Phase: v1.VolumeReady, Target: "sda",
		HotplugVolume: &v1.HotplugVolumeStatus{AttachPodName: "hp", AttachPodUID: "uid-hp"}}}
	deleting(s.VMI)
	plan := vmi.Decide(s, now)
	if diff := cmp.Diff(s.VMI.Status.VolumeStatus, plan.VMI.Status.VolumeStatus); diff != "" {
		t.Errorf("(-stored +wanted):\n%s", diff)
	}
}
