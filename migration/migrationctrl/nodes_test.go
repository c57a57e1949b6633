// SPDX-License-Identifier: Apache-2.0

package migrationctrl_test

import (
	"context"
	"hash/fnv"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/virtloom/virtloom/handoff"
)

// hold is an annotation of a guest that stops the nodes before a step: one of
// holdReady, holdBegin, holdTakeOver.
const hold = "test.virtloom.dev/hold"

const (
	holdReady    = "Ready"
	holdBegin    = "Begin"
	holdTakeOver = "TakeOver"
)

// nodes stands in for the node agents of all nodes: it writes to the guest what
// they write, without any guest behind it.
type nodes struct {
	client client.Client
	// takes is how long they take to move a guest on average: guests that begin together do not end together.
	takes time.Duration
	// begun is when each guest began to move, by its migration.
	begun sync.Map
}

// startNodes runs the stand-ins, which take so long to move a guest.
func (c *cluster) startNodes(t *testing.T, takes time.Duration) {
	t.Helper()
	mgr := c.manager(t, "all-nodes")
	n := &nodes{client: mgr.GetClient(), takes: takes}
	if err := ctrl.NewControllerManagedBy(mgr).Named("nodes").For(&v1.VirtualMachineInstance{}).Complete(n); err != nil {
		t.Fatal(err)
	}
	run(t, mgr)
}

func (n *nodes) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	was := &v1.VirtualMachineInstance{}
	if err := n.client.Get(ctx, req.NamespacedName, was); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	lease, err := handoff.Of(was)
	if err != nil || was.Status.MigrationState == nil {
		return reconcile.Result{}, err
	}
	vmi := was.DeepCopy()
	if left := n.left(vmi, lease); left > 0 {
		return reconcile.Result{RequeueAfter: left}, nil
	}
	event := advance(vmi, lease)
	if event.Kind == "" {
		return reconcile.Result{}, nil
	}
	event.Epoch = lease.Epoch
	next, _, err := handoff.Step(lease, event, metav1.Now().Time)
	if err != nil {
		return reconcile.Result{}, err
	}
	if err := handoff.Put(vmi, next); err != nil {
		return reconcile.Result{}, err
	}
	err = n.client.Patch(ctx, vmi, client.MergeFromWithOptions(was, client.MergeFromWithOptimisticLock{}))
	if apierrors.IsConflict(err) {
		return reconcile.Result{RequeueAfter: interval}, nil
	}
	return reconcile.Result{}, client.IgnoreNotFound(err)
}

// left is how long the guest still moves.
func (n *nodes) left(vmi *v1.VirtualMachineInstance, lease handoff.Lease) time.Duration {
	if lease.State != handoff.Moving || vmi.Status.MigrationState.AbortRequested {
		return 0
	}
	begun, _ := n.begun.LoadOrStore(lease.Tag, time.Now())
	h := fnv.New32a()
	_, _ = h.Write([]byte(lease.Tag))
	share := 0.5 + float64(h.Sum32())/(1<<32)
	return time.Duration(share*float64(n.takes)) - time.Since(begun.(time.Time))
}

// advance does the next step of whichever node is to act and returns its event.
func advance(vmi *v1.VirtualMachineInstance, lease handoff.Lease) handoff.Event {
	m, held, now := vmi.Status.MigrationState, vmi.Annotations[hold], metav1.Now()
	switch {
	case lease.State == handoff.Preparing && held != holdReady:
		m.TargetNodeAddress = "192.0.2.1"
		m.TargetDirectMigrationNodePorts = map[string]int{"16509": 0}
		return handoff.Event{Kind: handoff.Ready, Node: lease.Target}
	case lease.State == handoff.Prepared && held != holdBegin:
		m.StartTimestamp, m.Mode = &now, v1.MigrationPreCopy
		return handoff.Event{Kind: handoff.Begin, Node: lease.Holder}
	case lease.State == handoff.Moving && m.AbortRequested:
		m.EndTimestamp, m.Failed, m.Completed = &now, true, true
		m.FailureReason, m.AbortStatus = "canceled by client", v1.MigrationAbortSucceeded
		return handoff.Event{Kind: handoff.Revert, Node: lease.Holder, Message: m.FailureReason}
	case lease.State == handoff.Moving && held != holdTakeOver:
		m.TargetNodeDomainDetected, m.TargetNodeDomainReadyTimestamp = true, &now
		m.EndTimestamp, m.Completed = &now, true
		return handoff.Event{Kind: handoff.TakeOver, Node: lease.Target}
	case lease.State == handoff.Arrived:
		return handoff.Event{Kind: handoff.Finalize, Node: lease.Holder}
	}
	return handoff.Event{}
}

// holdAt sets or, with the empty string, clears the hold of the guest.
func (c *cluster) holdAt(t *testing.T, vmi *v1.VirtualMachineInstance, step string) {
	t.Helper()
	was := vmi.DeepCopy()
	metav1.SetMetaDataAnnotation(&vmi.ObjectMeta, hold, step)
	if err := c.Patch(t.Context(), vmi, client.MergeFrom(was)); err != nil {
		t.Fatal(err)
	}
}
