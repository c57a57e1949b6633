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

// outdone reports whether what need not be written now of a guest can wait, as others wait for their Pods or for
// their nodes, and since when it has: that a guest with a Pod is Scheduling, which is outdated when it is handed
// over, and what the Pod of a guest that is handed over shall carry. Nothing depends on either: what they are
// concluded from is stored, and a process that dies comes to the same conclusions again.
func (r *Reconciler) outdone(guest types.NamespacedName) (since time.Time, yes bool) {
	return r.backlog.Outdone(guest, r.Workers, r.Clock.Now())
}

// leavePod takes out of the plan what the Pod of a guest shall carry that is with its node, and does not run yet,
// if that can wait.
func (r *Reconciler) leavePod(g *gathered, plan *vmi.Plan) bool {
	if plan.VMI.Status.Phase != v1.Scheduled || len(plan.Actions) != 1 || plan.Actions[0].Verb != vmi.PatchPod {
		return false
	}
	since, yes := r.outdone(g.owner.Key)
	if yes {
		r.backlog.Put(g.owner.Key, since)
		plan.Actions = nil
	}
	return yes
}

// leap reports whether the plan does no more than to tell that a guest has its Pod, while others wait. Then it
// need not be stored: if the Pod is ready, the next plan is made as if it had been.
func (r *Reconciler) leap(ctx context.Context, g *gathered, plan *vmi.Plan) (yes bool, err error) {
	if !waiting(g.VMI) || !onlyScheduling(g.VMI, plan) {
		return false, nil
	}
	since, yes := r.outdone(g.owner.Key)
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
	for _, read := range []func(context.Context, *gathered) error{r.address, r.facts, r.annotations} {
		if err := read(ctx, g); err != nil {
			return true, err
		}
	}
	return true, nil
}

// onlyScheduling reports whether a plan tells nothing but that the guest has a Pod: no trouble, and nothing that
// somebody asked for.
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
