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
)

// offered sets a lease offered to node-a until the given time.
func offered(until time.Time) func(*v1.VirtualMachineInstance) {
	deadline := metav1.NewTime(until)
	return lease(handoff.Lease{State: handoff.Offered, Epoch: 1, Holder: "node-a", Deadline: &deadline})
}

func synchronizedFalse(reason, message string) func(*v1.VirtualMachineInstance) {
	return func(g *v1.VirtualMachineInstance) {
		g.Status.Conditions = append(g.Status.Conditions, v1.VirtualMachineInstanceCondition{
			Type: v1.VirtualMachineInstanceSynchronized, Status: corev1.ConditionFalse, Reason: reason, Message: message})
	}
}

func condition(g *v1.VirtualMachineInstance, t v1.VirtualMachineInstanceConditionType) *v1.VirtualMachineInstanceCondition {
	for i := range g.Status.Conditions {
		if g.Status.Conditions[i].Type == t {
			return &g.Status.Conditions[i]
		}
	}
	return nil
}

func TestOffer_WithdrawnFromUnresponsiveNode(t *testing.T) {
	past, future := now.Add(-time.Second), now.Add(time.Minute)
	ready := []*corev1.Pod{pod("p")}
	for name, tt := range map[string]struct {
		s         vmi.Snapshot
		phase     v1.VirtualMachineInstancePhase
		lease     handoff.State
		requeueAt time.Time
	}{
		"in time": {
			vmi.Snapshot{VMI: guest(v1.Scheduled, offered(future)), Pods: ready}, v1.Scheduled, handoff.Offered, future},
		"overdue": {
			vmi.Snapshot{VMI: guest(v1.Scheduled, offered(past)), Pods: ready}, v1.Failed, handoff.Released, time.Time{}},
		"overdue at this very moment": {
			vmi.Snapshot{VMI: guest(v1.Scheduled, offered(now)), Pods: ready}, v1.Failed, handoff.Released, time.Time{}},
		"the node reported what is in the way": {
			vmi.Snapshot{VMI: guest(v1.Scheduled, offered(past), synchronizedFalse("InvalidSpec", "x")), Pods: ready}, v1.Scheduled, handoff.Offered, time.Time{}},
		"a stock node runs the guest": {
			vmi.Snapshot{VMI: guest(v1.Running, offered(past)), Pods: ready}, v1.Running, handoff.Owned, time.Time{}},
		"KubeVirt's own agent reports for the node": {
			vmi.Snapshot{VMI: guest(v1.Scheduled, offered(past)), Pods: ready, Stock: map[string]bool{"node-a": true}}, v1.Scheduled, handoff.Offered, now.Add(time.Minute)},
		"being deleted": {
			vmi.Snapshot{VMI: guest(v1.Scheduled, offered(past), deleting), Pods: ready}, v1.Scheduled, handoff.Offered, time.Time{}},
		"own writes are not seen yet": {
			vmi.Snapshot{VMI: guest(v1.Scheduled, offered(past)), Pods: ready, Pending: []string{"x"}}, v1.Scheduled, handoff.Offered, time.Time{}},
		"the Pod is gone": {
			vmi.Snapshot{VMI: guest(v1.Scheduled, offered(future))}, v1.Failed, handoff.Released, time.Time{}},
	} {
		t.Run(name, func(t *testing.T) {
			plan := vmi.Decide(tt.s, now)
			l, err := handoff.Of(plan.VMI)
			if err != nil {
				t.Fatal(err)
			}
			if plan.VMI.Status.Phase != tt.phase || l.State != tt.lease {
				t.Errorf("phase %s, lease %s; want %s, %s", plan.VMI.Status.Phase, l.State, tt.phase, tt.lease)
			}
			var at time.Time
			if plan.RequeueAt != nil {
				at = *plan.RequeueAt
			}
			if !at.Equal(tt.requeueAt) {
				t.Errorf("looks again at %v, want %v", at, tt.requeueAt)
			}
		})
	}
}

func TestOffer_WithdrawnNamesNodeAndDeletesPod(t *testing.T) {
	s := vmi.Snapshot{VMI: guest(v1.Scheduled, offered(now)), Pods: []*corev1.Pod{pod("p")}}
	plan := vmi.Decide(s, now)
	c := condition(plan.VMI, v1.VirtualMachineInstanceSynchronized)
	if c == nil || c.Reason != vmi.ReasonNodeUnresponsive || !strings.Contains(c.Message, "node-a") {
		t.Errorf("the condition is %+v, want one that names the node", c)
	}
	if plan.VMI.Status.Reason != vmi.ReasonNodeUnresponsive {
		t.Errorf("status.reason %q", plan.VMI.Status.Reason)
	}
	if len(plan.Events) != 1 || len(plan.Actions) != 0 {
		t.Errorf("the plan is %s; want one event and, as the node may accept until it is stored, no action", plan)
	}

	s.VMI = plan.VMI
	plan = vmi.Decide(s, now.Add(time.Minute))
	if len(plan.Actions) != 1 || plan.Actions[0].Verb != vmi.DeletePod || len(plan.Events) != 0 {
		t.Errorf("the plan is %s; want the Pod deleted and no further event", plan)
	}
	if condition(plan.VMI, v1.VirtualMachineInstanceSynchronized) == nil {
		t.Error("why the guest failed is not to be read any more")
	}
}

func TestSynchronized_EventOnce(t *testing.T) {
	trouble := &vmi.Failure{Reason: vmi.ReasonFailedCreate, Message: "no room"}
	for name, tt := range map[string]struct {
		s    vmi.Snapshot
		want int
	}{
		"news":          {vmi.Snapshot{VMI: guest(v1.Pending), Failure: trouble}, 1},
		"known":         {vmi.Snapshot{VMI: guest(v1.Pending, synchronizedFalse(trouble.Reason, trouble.Message)), Failure: trouble}, 0},
		"other reason":  {vmi.Snapshot{VMI: guest(v1.Pending, synchronizedFalse("Other", trouble.Message)), Failure: trouble}, 1},
		"other message": {vmi.Snapshot{VMI: guest(v1.Pending, synchronizedFalse(trouble.Reason, "no disk")), Failure: trouble}, 1},
		"none":          {vmi.Snapshot{VMI: guest(v1.Pending)}, 0},
	} {
		plan := vmi.Decide(tt.s, now)
		if len(plan.Events) != tt.want {
			t.Errorf("%s: events %v, want %d", name, plan.Events, tt.want)
		}
	}
}

func TestSynchronized_KeptWhileWritesUnseen(t *testing.T) {
	stuck := guest(v1.Pending, synchronizedFalse(vmi.ReasonFailedCreate, "no room"))
	for name, tt := range map[string]struct {
		s    vmi.Snapshot
		kept bool
	}{
		"own writes are not seen yet": {vmi.Snapshot{VMI: stuck, Pending: []string{"x"}}, true},
		"nothing in the way any more": {vmi.Snapshot{VMI: stuck}, false},
		"handed over": {vmi.Snapshot{VMI: guest(v1.Scheduling, synchronizedFalse(vmi.ReasonFailedPodPatch, "x")),
			Pods: []*corev1.Pod{pod("p")}, Failure: &vmi.Failure{Reason: vmi.ReasonFailedPodPatch, Message: "x"}}, false},
	} {
		plan := vmi.Decide(tt.s, now)
		if got := condition(plan.VMI, v1.VirtualMachineInstanceSynchronized) != nil; got != tt.kept {
			t.Errorf("%s: the condition is kept: %v, want %v", name, got, tt.kept)
		}
	}
}

func TestReady_UnchangedWhileWritesUnseen(t *testing.T) {
	settled := vmi.Decide(vmi.Snapshot{VMI: guest(v1.Running), Pods: []*corev1.Pod{pod("p")}}, now)
	plan := vmi.Decide(vmi.Snapshot{VMI: settled.VMI, Pending: []string{"x"}}, now)
	if diff := cmp.Diff(settled.VMI.Status, plan.VMI.Status); diff != "" {
		t.Errorf("the status changes on hearsay:\n%s", diff)
	}
}

func TestNeedsProof_AbsentPod(t *testing.T) {
	owned := lease(handoff.Lease{State: handoff.Owned, Epoch: 1, Holder: "node-a"})
	released := lease(handoff.Lease{State: handoff.Released, Epoch: 2})
	finalizers := func(names ...string) func(*v1.VirtualMachineInstance) {
		return func(g *v1.VirtualMachineInstance) { g.Finalizers = names }
	}
	illegible := func(g *v1.VirtualMachineInstance) { g.Annotations = map[string]string{handoff.Annotation: "?"} }
	other := pod("p", func(p *corev1.Pod) { p.Spec.NodeName = "node-b" })
	for name, tt := range map[string]struct {
		s    vmi.Snapshot
		want bool
	}{
		"running without a Pod":          {vmi.Snapshot{VMI: guest(v1.Running)}, true},
		"moved ahead of the Pod's cache": {vmi.Snapshot{VMI: guest(v1.Running), Pods: []*corev1.Pod{other}}, true},
		"scheduling without a Pod":       {vmi.Snapshot{VMI: guest(v1.Scheduling)}, true},
		"running in its Pod":             {vmi.Snapshot{VMI: guest(v1.Running), Pods: []*corev1.Pod{pod("p")}}, false},
		"waiting for the caches":         {vmi.Snapshot{VMI: guest(v1.Running), Pending: []string{"x"}}, false},
		"pending":                        {vmi.Snapshot{VMI: guest(v1.Pending)}, false},
		"pending, being deleted":         {vmi.Snapshot{VMI: guest(v1.Pending, deleting)}, false},

		"final, nobody had it":              {vmi.Snapshot{VMI: guest(v1.Failed)}, true},
		"final, its node has released it":   {vmi.Snapshot{VMI: guest(v1.Succeeded, released)}, true},
		"final and being deleted":           {vmi.Snapshot{VMI: guest(v1.Succeeded, released, deleting)}, true},
		"final, under the old finalizer":    {vmi.Snapshot{VMI: guest(v1.Failed, finalizers("foregroundDeleteVirtualMachine"))}, true},
		"final, its node has it still":      {vmi.Snapshot{VMI: guest(v1.Failed, owned)}, false},
		"final, its Pod is there":           {vmi.Snapshot{VMI: guest(v1.Failed, released), Pods: []*corev1.Pod{pod("p")}}, false},
		"final, its Pod elsewhere is there": {vmi.Snapshot{VMI: guest(v1.Failed, on("node-a"), released), Pods: []*corev1.Pod{other}}, false},
		"final, waiting for the caches":     {vmi.Snapshot{VMI: guest(v1.Failed, released), Pending: []string{"x"}}, false},
		"final, let go already":             {vmi.Snapshot{VMI: guest(v1.Failed, released, finalizers())}, false},
		"final, held by somebody else only": {vmi.Snapshot{VMI: guest(v1.Failed, released, deleting, finalizers("example.test/backup"))}, false},
		"final, its lease illegible":        {vmi.Snapshot{VMI: guest(v1.Failed, illegible)}, false},
		"never received, being deleted":     {vmi.Snapshot{VMI: guest(v1.WaitingForSync, deleting)}, true},
		"waiting to be received":            {vmi.Snapshot{VMI: guest(v1.WaitingForSync)}, false},
	} {
		if got := tt.s.NeedsProof(); got != tt.want {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
}

func TestLauncher_PodsOfTheSameSecond(t *testing.T) {
	a, b := pod("a"), pod("b")
	for _, pods := range [][]*corev1.Pod{{a, b}, {b, a}} {
		if got := (vmi.Snapshot{VMI: guest(v1.Running), Pods: pods}).Launcher(); got != b {
			t.Errorf("of %s and %s it is %s, want b", pods[0].Name, pods[1].Name, got.Name)
		}
	}
}

// A node that reports why it does not accept, and a stock node, have no deadline.
func TestExplain_OfferDeadline(t *testing.T) {
	past, future := now.Add(-time.Second), now.Add(time.Minute)
	silent := map[string]time.Time{"node-a": now.Add(-time.Hour)}
	hindered := synchronizedFalse("InvalidSpec", "x")
	for name, tt := range map[string]struct {
		vmi      *v1.VirtualMachineInstance
		silent   map[string]time.Time
		stock    map[string]bool
		deadline bool
		says     string
	}{
		"in time":                           {vmi: guest(v1.Scheduled, offered(future)), deadline: true, says: "has not accepted"},
		"the node says why it cannot":       {vmi: guest(v1.Scheduled, offered(future), hindered), says: "x"},
		"it has said why, and is silent":    {vmi: guest(v1.Scheduled, offered(future), hindered), silent: silent, deadline: true, says: "x"},
		"it says why, after the deadline":   {vmi: guest(v1.Scheduled, offered(past), hindered), says: "x"},
		"KubeVirt's own agent reports":      {vmi: guest(v1.Scheduled, offered(future)), stock: map[string]bool{"node-a": true}, says: "no deadline"},
		"a stock controller handed it over": {vmi: guest(v1.Scheduled), says: "no deadline"},
	} {
		t.Run(name, func(t *testing.T) {
			s := vmi.Snapshot{VMI: tt.vmi, Pods: []*corev1.Pod{pod("p")}, Silent: tt.silent, Stock: tt.stock}
			waits := vmi.Explain(s, now)
			i := slices.IndexFunc(waits, func(w vmi.Wait) bool { return strings.Contains(w.Message, tt.says) && w.Responsible == handoff.ByNode })
			if i < 0 {
				t.Fatalf("nothing says %q: %+v", tt.says, waits)
			}
			if has := waits[i].Deadline != nil; has != tt.deadline {
				t.Errorf("a deadline: %v, want %v (%+v)", has, tt.deadline, waits[i])
			}
		})
	}
}
