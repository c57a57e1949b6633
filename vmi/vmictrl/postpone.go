// SPDX-License-Identifier: Apache-2.0

package vmictrl

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/vmi"
)

// saturated reports whether optional writes for a VMI can wait, because other VMIs wait for their Pods or nodes, and
// since when they have waited. Optional are the phase Scheduling of a VMI with a Pod, which the handoff replaces, and
// the metadata of its Pod after the handoff. Nothing depends on either: both are derived from stored state, and a
// restarted process derives them again.
func (r actor) saturated(key types.NamespacedName) (since time.Time, yes bool) {
	return r.backlog.Saturated(key, r.Workers, r.Clock.Now())
}

// deferPodPatch removes the patch of the Pod from the plan of a VMI that its node has not started yet, if that can
// wait.
func (r actor) deferPodPatch(g *gathered, plan *vmi.Plan) bool {
	if plan.VMI.Status.Phase != v1.Scheduled || len(plan.Actions) != 1 || plan.Actions[0].Verb != vmi.PatchPod {
		return false
	}
	since, yes := r.saturated(g.owner.Key)
	if yes {
		r.backlog.Put(g.owner.Key, since)
		plan.Actions = nil
	}
	return yes
}

// deferrable reports whether the phase Scheduling of a VMI need not be stored, and when the VMI entered it.
func (r actor) deferrable(g *gathered) (since time.Time, yes bool) {
	if _, receives := g.VMI.Annotations[v1.CreateMigrationTarget]; receives || !waiting(g.VMI) {
		return time.Time{}, false
	}
	return r.saturated(g.owner.Key)
}

// deferStatus reports whether the plan only records that a VMI has its Pod, while others wait. Then it need not be
// stored. A ready Pod is not waited for: skipScheduling decides about that, before the decision.
func (r actor) deferStatus(g *gathered, plan vmi.Plan) bool {
	since, yes := r.deferrable(g)
	if !yes || !onlyScheduling(g.VMI, plan) || vmi.PodReady(g.Launcher()) {
		return false
	}
	r.backlog.Put(g.owner.Key, since)
	return true
}

// skipScheduling makes the snapshot of a VMI with a ready Pod, while others wait, that of a VMI whose phase Scheduling
// is stored: one decision then makes the handoff, and one write stores both.
func (r gatherer) skipScheduling(_ context.Context, g *gathered) error {
	pod := g.Launcher()
	if g.dry || len(g.Pending) > 0 || pod == nil || !vmi.PodReady(pod) {
		return nil
	}
	since, yes := actor(r).deferrable(g)
	if !yes {
		return nil
	}
	if next := vmi.Scheduling(g.Snapshot, since); next != nil {
		g.stored, g.VMI, g.input.VMI = g.VMI, next, next
	}
	return nil
}

// onlyScheduling reports whether a plan records nothing but that the VMI has a Pod.
func onlyScheduling(was *v1.VirtualMachineInstance, plan vmi.Plan) bool {
	want := plan.VMI
	if want.Status.Phase != v1.Scheduling || len(plan.Events) > 0 || len(plan.Actions) > 0 {
		return false
	}
	had := map[v1.VirtualMachineInstanceConditionType]corev1.ConditionStatus{}
	for _, c := range was.Status.Conditions {
		had[c.Type] = c.Status
	}
	for _, c := range want.Status.Conditions {
		if c.Type != v1.VirtualMachineInstanceReady && had[c.Type] != c.Status {
			return false
		}
	}
	return true
}
