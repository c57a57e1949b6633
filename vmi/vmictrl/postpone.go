// SPDX-License-Identifier: Apache-2.0

package vmictrl

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/virtloom/virtloom/vmi"
)

const (
	// tellAgain is after what time it is seen whether what was postponed is still outdone by other work, and
	// patience for how long it is postponed at most.
	tellAgain = time.Second
	patience  = 30 * time.Second
)

// postponed are the guests of which something has not been written, as others wait for their Pods or for their
// nodes: that a guest with a Pod is Scheduling, which is outdated when it is handed over, and what the Pod of a
// guest that is handed over shall carry. Nothing depends on either: what they are concluded from is stored, and a
// process that dies comes to the same conclusions again. The zero value is ready; its methods are safe for
// concurrent use.
type postponed struct {
	mu sync.Mutex
	// guests has since when, guarded by mu.
	guests map[types.NamespacedName]time.Time
}

// since returns when the guest was first postponed, which is now if it has not been, and how many have been.
func (p *postponed) since(guest types.NamespacedName, now time.Time) (first time.Time, others int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	first, known := p.guests[guest]
	if !known {
		return now, len(p.guests)
	}
	return first, len(p.guests) - 1
}

// put notes that something of the guest is postponed.
func (p *postponed) put(guest types.NamespacedName, first time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.guests == nil {
		p.guests = map[types.NamespacedName]time.Time{}
	}
	p.guests[guest] = first
}

// done notes that nothing of the guest is postponed.
func (p *postponed) done(guest types.NamespacedName) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.guests, guest)
}

// outdone reports whether so many guests wait for this controller, beside those that only have something postponed,
// that all workers have something else to do, and since when this one has.
func (r *Reconciler) outdone(guest types.NamespacedName) (since time.Time, yes bool) {
	now := r.Clock.Now()
	since, others := r.postponed.since(guest, now)
	q := r.queue.get()
	return since, q != nil && q.Len()-others > r.Workers && now.Before(since.Add(patience))
}

// later is the result of a pass that postponed something: it goes on when nobody else waits.
func later(result reconcile.Result) reconcile.Result {
	if result.RequeueAfter == 0 || result.RequeueAfter > tellAgain {
		result.RequeueAfter, result.Priority = tellAgain, new(handler.LowPriority)
	}
	return result
}

// leavePod takes out of the plan what the Pod of a guest shall carry that is with its node, and does not run yet,
// if that can wait.
func (r *Reconciler) leavePod(g *gathered, plan *vmi.Plan) bool {
	if plan.VMI.Status.Phase != v1.Scheduled || len(plan.Actions) != 1 || plan.Actions[0].Verb != vmi.PatchPod {
		return false
	}
	since, yes := r.outdone(g.owner.Key)
	if yes {
		r.postponed.put(g.owner.Key, since)
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
	r.postponed.put(g.owner.Key, since)
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
