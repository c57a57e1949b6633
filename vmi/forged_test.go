// SPDX-License-Identifier: Apache-2.0

package vmi_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/vmi"
)

// forgedLeases returns leases that a user may write into an object: one of each state, held
// by an existing node or by none.
func forgedLeases() map[string]*handoff.Lease {
	late := metav1.NewTime(now.Add(-time.Hour))
	out := map[string]*handoff.Lease{"none": nil, "unclaimed": {}, "claimed": {State: handoff.Claimed}, "released": {State: handoff.Released, Epoch: 1}}
	start := []handoff.Command{{ID: "start/1", Kind: handoff.CommandStart, Epoch: 1, Node: "node-a"}}
	for _, s := range []handoff.State{handoff.Offered, handoff.Owned, handoff.Arrived, handoff.Releasing} {
		out[string(s)] = &handoff.Lease{State: s, Epoch: 1, Holder: "node-a"}
		out[string(s)+", late"] = &handoff.Lease{State: s, Epoch: 1 << 60, Holder: "node-a", Deadline: &late}
	}
	out["to be started"] = &handoff.Lease{State: handoff.Owned, Epoch: 1, Holder: "node-a", Open: start}
	for _, s := range []handoff.State{handoff.Preparing, handoff.Prepared, handoff.Moving} {
		out[string(s)] = &handoff.Lease{State: s, Epoch: 1, Holder: "node-a", Target: "node-b", Tag: "forged", Deadline: &late}
	}
	out["lost"] = &handoff.Lease{State: handoff.Lost, Epoch: 1, Holder: "node-a", Was: handoff.Owned, Deadline: &late}
	out["fenced"] = &handoff.Lease{State: handoff.Fenced, Epoch: 1, Deadline: &late}
	out["fenced in a move"] = &handoff.Lease{State: handoff.Fenced, Epoch: 1, Target: "node-b", Tag: "forged", Deadline: &late}
	return out
}

// TestForged_StatusOfAFreshObject covers all combinations of fields that a user may write into
// a new object: none creates a Pod that the object does not request, and each ends, continues
// like a new VMI, or reports a wait.
func TestForged_StatusOfAFreshObject(t *testing.T) {
	for _, phase := range []v1.VirtualMachineInstancePhase{
		v1.VmPhaseUnset, v1.Pending, v1.Scheduling, v1.Scheduled, v1.Running, v1.Succeeded, v1.Failed, v1.WaitingForSync, v1.Unknown, "Forged",
	} {
		for _, node := range []string{"", "node-a"} {
			for name, l := range forgedLeases() {
				t.Run(fmt.Sprintf("phase %q, label %q, lease %s", phase, node, name), func(t *testing.T) {
					g := guest(phase)
					g.Labels, g.Status.NodeName = map[string]string{}, node
					if l != nil {
						if err := handoff.Put(g, *l); err != nil {
							t.Fatal(err)
						}
					} else if node != "" {
						g.Labels[v1.NodeNameLabel] = node
					}
					forgedEnds(t, g)
				})
			}
		}
	}
}

// forgedEnds decides until nothing changes.
func forgedEnds(t *testing.T, g *v1.VirtualMachineInstance) {
	t.Helper()
	var plan vmi.Plan
	for range 8 {
		lease, err := handoff.Of(g)
		if err != nil {
			t.Fatal(err)
		}
		plan = vmi.Decide(vmi.Snapshot{VMI: g, Silent: map[string]time.Time{}}, now)
		makes := slices.ContainsFunc(plan.Actions, func(a vmi.Action) bool { return a.Verb == vmi.CreateLauncher })
		fresh := (g.Status.Phase == v1.VmPhaseUnset || g.Status.Phase == v1.Pending) && (lease.State == handoff.Unclaimed || lease.State == handoff.Claimed)
		if makes != fresh {
			t.Errorf("phase %q, lease %q: a Pod is made: %t", g.Status.Phase, lease.State, makes)
		}
		after, err := handoff.Of(plan.VMI)
		if err != nil {
			t.Fatal(err)
		}
		changed := g.Annotations[handoff.Annotation] != plan.VMI.Annotations[handoff.Annotation]
		if after.State == handoff.Offered && lease.State != handoff.Offered && changed {
			t.Errorf("it is offered to %s without a Pod", after.Holder)
		}
		if makes {
			return // it continues like any new VMI
		}
		g = plan.VMI
	}
	said := slices.ContainsFunc(g.Status.Conditions, func(c v1.VirtualMachineInstanceCondition) bool {
		return c.Status == corev1.ConditionFalse && c.Message != ""
	})
	if !g.IsFinal() && len(plan.Waits) == 0 && !said {
		t.Errorf("it stays in phase %q, and nothing says why: %+v", g.Status.Phase, g.Status.Conditions)
	}
}

// TestEarlier_PodOfSameNameEndsFirst has a VMI whose predecessor was force-removed while its
// domain ran.
func TestEarlier_PodOfSameNameEndsFirst(t *testing.T) {
	for name, tt := range map[string]struct {
		edit  func(*corev1.Pod)
		waits bool
	}{
		"its Pod runs":           {func(*corev1.Pod) {}, true},
		"its Pod is terminating": {func(p *corev1.Pod) { at := metav1.NewTime(now); p.DeletionTimestamp = &at }, true},
		"its Pod has ended":      {func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }, false},
		"it never was on a node": {func(p *corev1.Pod) { p.Spec.NodeName = "" }, false},
	} {
		p := pod("earlier")
		tt.edit(p)
		plan := vmi.Decide(vmi.Snapshot{VMI: guest(v1.Pending), Earlier: []*corev1.Pod{p}}, now)
		made := slices.ContainsFunc(plan.Actions, func(a vmi.Action) bool { return a.Verb == vmi.CreateLauncher })
		w := plan.Blocked()
		if made == tt.waits || tt.waits && (w == nil || !strings.Contains(w.Message, "earlier")) {
			t.Errorf("%s: a Pod is made: %t, waits %+v", name, made, w)
		}
	}
}

// TestForged_ControlAnnotations sets annotations that only controllers set.
func TestForged_ControlAnnotations(t *testing.T) {
	verbs := func(p vmi.Plan) (out []vmi.Verb) {
		for _, a := range p.Actions {
			out = append(out, a.Verb)
		}
		return out
	}
	for _, phase := range []v1.VirtualMachineInstancePhase{v1.VmPhaseUnset, v1.Pending, v1.Scheduling, v1.Scheduled, v1.Running, v1.Succeeded, v1.Failed} {
		for _, pods := range [][]*corev1.Pod{nil, {pod("p")}} {
			plain := vmi.Decide(vmi.Snapshot{VMI: guest(phase), Pods: pods}, now)
			for _, key := range []string{v1.EvictionSourceAnnotation, "virtloom.dev/guest-uid", "virtloom.dev/update", "virtloom.dev/circumstances", "virtloom.dev/anything"} {
				g := guest(phase)
				g.Annotations = map[string]string{key: "true"}
				plan := vmi.Decide(vmi.Snapshot{VMI: g, Pods: pods}, now)
				if !slices.Equal(verbs(plan), verbs(plain)) || plan.VMI.Status.Phase != plain.VMI.Status.Phase {
					t.Errorf("%s in phase %q changes what is done: %v, %s; want %v, %s", key, phase,
						verbs(plan), plan.VMI.Status.Phase, verbs(plain), plain.VMI.Status.Phase)
				}
			}
			for _, to := range []string{"", "node-a"} {
				g := guest(phase)
				g.Annotations = map[string]string{v1.CreateMigrationTarget: "true"}
				g.Labels = map[string]string{v1.MigrationTargetNodeNameLabel: to}
				plan := vmi.Decide(vmi.Snapshot{VMI: g, Pods: pods}, now)
				l, err := handoff.Of(plan.VMI)
				if made := slices.Contains(verbs(plan), vmi.CreateLauncher); made || err != nil || plan.VMI.Annotations[handoff.Annotation] != "" && l.State == handoff.Offered {
					t.Errorf("a guest to be received, in phase %q: a Pod is made: %t; lease %+v, %v", phase, made, l, err)
				}
			}
		}
	}
}
