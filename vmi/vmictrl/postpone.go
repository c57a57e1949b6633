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
	return r.backlog.Outdone(key, r.Workers, r.Clock.Now())
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

// deferStatus reports whether the plan only records that a VMI has its Pod, while others wait. Then it need not be
// stored: if the Pod is ready, the next plan is computed as if it had been.
func (r actor) deferStatus(ctx context.Context, g *gathered, plan *vmi.Plan) (yes bool, err error) {
	if !waiting(g.VMI) || !onlyScheduling(g.VMI, plan) {
		return false, nil
	}
	since, yes := r.saturated(g.owner.Key)
	if !yes {
		return false, nil
	}
	for i := range plan.VMI.Status.PhaseTransitionTimestamps {
		if t := &plan.VMI.Status.PhaseTransitionTimestamps[i]; t.Phase == v1.Scheduling {
			t.PhaseTransitionTimestamp.Time = since
		}
	}
	r.backlog.Put(g.owner.Key, since)
	if !vmi.PodReady(g.Launcher()) {
		return true, nil
	}
	g.stored, g.VMI, g.input.VMI = g.VMI, plan.VMI, plan.VMI
	for _, read := range []func(context.Context, *gathered) error{gatherer(r).address, gatherer(r).facts, gatherer(r).annotations} {
		if err := read(ctx, g); err != nil {
			return true, err
		}
	}
	return true, nil
}

// onlyScheduling reports whether a plan records nothing but that the VMI has a Pod: no problem, and nothing requested
// by a user.
func onlyScheduling(was *v1.VirtualMachineInstance, plan *vmi.Plan) bool {
	want := plan.VMI
	if want.Status.Phase != v1.Scheduling || len(plan.Events) > 0 || len(plan.Actions) > 0 {
		return false
	}
	if _, receives := want.Annotations[v1.CreateMigrationTarget]; receives {
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
