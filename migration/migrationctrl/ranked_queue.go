// SPDX-License-Identifier: Apache-2.0

package migrationctrl

import (
	"cmp"
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

const (
	// urgentPriority precedes that of newly created migrations, of which there may be a thousand: for migrations that
	// others wait for.
	urgentPriority = 10
	// endedPriority comes after them, and before migrations that only report.
	endedPriority = -urgentPriority
)

// ranked gives the keys of a handler a priority relative to other migrations.
type ranked struct {
	handler.EventHandler
	rank func(context.Context, client.Object) int
}

// Create implements handler.EventHandler.
func (r ranked) Create(ctx context.Context, e event.CreateEvent, q requestQueue) {
	r.EventHandler.Create(ctx, e, r.queue(ctx, q, e.Object))
}

// Update implements handler.EventHandler.
func (r ranked) Update(ctx context.Context, e event.UpdateEvent, q requestQueue) {
	r.EventHandler.Update(ctx, e, r.queue(ctx, q, e.ObjectNew))
}

// Delete implements handler.EventHandler.
func (r ranked) Delete(ctx context.Context, e event.DeleteEvent, q requestQueue) {
	r.EventHandler.Delete(ctx, e, r.queue(ctx, q, e.Object))
}

// Generic implements handler.EventHandler.
func (r ranked) Generic(ctx context.Context, e event.TypedGenericEvent[client.Object], q requestQueue) {
	r.EventHandler.Generic(ctx, e, r.queue(ctx, q, e.Object))
}

// ranker returns which reconciles go first.
type ranker struct{ *Reconciler }

// rankOfPod is urgent: a running target Pod occupies a slot and resources of a node, and waits only for the handoff.
// The Pods of a VMI that has migrated are not.
func (r ranker) rankOfPod(ctx context.Context, o client.Object) int {
	name := o.GetAnnotations()[ownerName]
	if c := metav1.GetControllerOf(o); c != nil && c.Kind == vmiKind {
		name = c.Name
	}
	var guest v1.VirtualMachineInstance
	if r.Client.Get(ctx, types.NamespacedName{Namespace: o.GetNamespace(), Name: name}, &guest) != nil {
		return urgentPriority
	}
	ms := guest.Status.MigrationState
	if ms == nil || ms.SourcePod != o.GetName() && string(ms.MigrationUID) != o.GetLabels()[v1.MigrationJobLabel] {
		return urgentPriority
	}
	return cmp.Or(r.rankOfVMI(ctx, &guest), urgentPriority)
}

// rankOfVMI is the default rank, except for a VMI that has migrated.
func (r ranker) rankOfVMI(_ context.Context, o client.Object) int {
	guest, is := o.(*v1.VirtualMachineInstance)
	if !is || guest.Status.MigrationState == nil || !guest.Status.MigrationState.Completed {
		return 0
	}
	return r.rankOfEnded()
}

// rankOfMigration is urgent while there is a target Pod and no handoff.
func (r ranker) rankOfMigration(_ context.Context, o client.Object) int {
	m, is := o.(*v1.VirtualMachineInstanceMigration)
	switch {
	case !is:
		return 0
	case m.Status.Phase == v1.MigrationScheduling || m.Status.Phase == v1.MigrationScheduled:
		return urgentPriority
	case m.IsFinal():
		return r.rankOfEnded()
	}
	return 0
}

// rankOfEnded is the last, as no migration waits for the remaining work, unless for the slot.
func (r ranker) rankOfEnded() int {
	if len(r.Admission.Waiting()) > 0 {
		return urgentPriority
	}
	return endedPriority
}

// queue returns the queue with another default priority, if it supports priorities.
func (r ranked) queue(ctx context.Context, q requestQueue, o client.Object) requestQueue {
	if p, ok := q.(priorityqueue.PriorityQueue[reconcile.Request]); ok {
		return rankedQueue{p, func() int { return r.rank(ctx, o) }}
	}
	return q
}

// rankedQueue adds with the rank what is added without a priority.
type rankedQueue struct {
	priorityqueue.PriorityQueue[reconcile.Request]
	rank func() int
}

// Add implements workqueue.TypedInterface.
func (q rankedQueue) Add(item reconcile.Request) { q.AddWithOpts(priorityqueue.AddOpts{}, item) }

// AddAfter implements workqueue.TypedDelayingInterface.
func (q rankedQueue) AddAfter(item reconcile.Request, after time.Duration) {
	q.AddWithOpts(priorityqueue.AddOpts{After: after}, item)
}

// AddRateLimited implements workqueue.TypedRateLimitingInterface.
func (q rankedQueue) AddRateLimited(item reconcile.Request) {
	q.AddWithOpts(priorityqueue.AddOpts{RateLimited: true}, item)
}

// AddWithOpts implements priorityqueue.PriorityQueue.
func (q rankedQueue) AddWithOpts(o priorityqueue.AddOpts, items ...reconcile.Request) {
	if o.Priority == nil {
		o.Priority = new(q.rank())
	}
	q.PriorityQueue.AddWithOpts(o, items...)
}
