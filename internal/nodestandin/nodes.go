// SPDX-License-Identifier: Apache-2.0

// Package nodestandin replaces the node agents of all nodes, where a test or a measurement is about the
// controller: it sends the writes of agents to VMIs, without any domain. It is not part of the SDK.
package nodestandin

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/virtloom/virtloom/handoff"
)

// again is the delay before a conflicting write is retried; the event of the other write usually comes first.
const again = 20 * time.Millisecond

// Step is an action of a node for a VMI.
type Step string

// The steps, in their order.
const (
	// Accept is the acceptance of an offered VMI, and its start.
	Accept Step = "Accept"
	// Ready is when the target of a migration is ready, Begin when the source begins the transfer, and TakeOver
	// when the domain runs at the target.
	Ready    Step = "Ready"
	Begin    Step = "Begin"
	TakeOver Step = "TakeOver"
)

// Nodes answers for all nodes, each VMI as soon as it is offered, its migration handed off or to be aborted.
type Nodes struct {
	// Client reads from a cache and writes. Required.
	Client client.Client
	// Takes returns the current mean duration of migrations; nil is zero. Migrations that begin together do
	// not end together.
	Takes func() time.Duration
	// Holds reports whether the nodes do not take a step of a VMI; nil holds none.
	Holds func(*v1.VirtualMachineInstance, Step) bool
	// Workers is the number of concurrent reconciles; 1 if zero.
	Workers int
	// begun is the start time of each migration.
	begun sync.Map
}

// SetupWithManager makes the nodes watch VMIs.
func (n *Nodes) SetupWithManager(mgr ctrl.Manager) error {
	if n.Client == nil {
		return errors.New("nodestandin: Nodes.Client is required")
	}
	err := ctrl.NewControllerManagedBy(mgr).Named("nodes").For(&v1.VirtualMachineInstance{}).
		WithOptions(controller.Options{MaxConcurrentReconciles: max(n.Workers, 1)}).Complete(n)
	if err != nil {
		return fmt.Errorf("nodestandin: %w", err)
	}
	return nil
}

// Reconcile takes the next step of a VMI's nodes, if any.
func (n *Nodes) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	was := &v1.VirtualMachineInstance{}
	if err := n.Client.Get(ctx, req.NamespacedName, was); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	lease, err := handoff.Of(was)
	if err != nil || was.IsFinal() || was.DeletionTimestamp != nil {
		return reconcile.Result{}, err
	}
	vmi := was.DeepCopy()
	if left := n.left(vmi, lease); left > 0 {
		return reconcile.Result{RequeueAfter: left}, nil
	}
	events := n.advance(vmi, lease)
	if len(events) == 0 {
		return reconcile.Result{}, nil
	}
	for _, event := range events {
		event.Epoch = lease.Epoch
		if lease, _, err = handoff.Step(lease, event, time.Now()); err != nil {
			return reconcile.Result{}, fmt.Errorf("nodestandin: %s: %w", req, err)
		}
	}
	if err := handoff.Put(vmi, lease); err != nil {
		return reconcile.Result{}, err
	}
	err = n.Client.Patch(ctx, vmi, client.MergeFromWithOptions(was, client.MergeFromWithOptimisticLock{}))
	if apierrors.IsConflict(err) {
		return reconcile.Result{RequeueAfter: again}, nil
	}
	return reconcile.Result{}, client.IgnoreNotFound(err)
}

// left returns the remaining duration of the migration.
func (n *Nodes) left(vmi *v1.VirtualMachineInstance, lease handoff.Lease) time.Duration {
	m := vmi.Status.MigrationState
	if n.Takes == nil || lease.State != handoff.Moving || m == nil || m.AbortRequested {
		return 0
	}
	begun, _ := n.begun.LoadOrStore(lease.Tag, time.Now())
	h := fnv.New32a()
	_, _ = h.Write([]byte(lease.Tag))
	share := 0.5 + float64(h.Sum32())/(1<<32)
	return time.Duration(share*float64(n.Takes())) - time.Since(begun.(time.Time))
}

// advance takes the next step of the responsible node, and returns its events.
func (n *Nodes) advance(vmi *v1.VirtualMachineInstance, lease handoff.Lease) []handoff.Event {
	switch {
	case lease.State == handoff.Offered && !n.holds(vmi, Accept):
		vmi.Status.Phase, vmi.Status.SelinuxContext = v1.Running, "none"
		vmi.Status.Conditions = append(vmi.Status.Conditions, v1.VirtualMachineInstanceCondition{
			Type: v1.VirtualMachineInstanceIsMigratable, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now(),
		})
		return []handoff.Event{{Kind: handoff.Accept, Node: lease.Holder}, {Kind: handoff.Started, Node: lease.Holder}}
	case vmi.Status.MigrationState != nil:
		return n.move(vmi, lease)
	}
	return nil
}

// move takes the next step of a migration.
func (n *Nodes) move(vmi *v1.VirtualMachineInstance, lease handoff.Lease) []handoff.Event {
	m, now := vmi.Status.MigrationState, metav1.Now()
	switch {
	case lease.State == handoff.Preparing && !n.holds(vmi, Ready):
		m.TargetNodeAddress = "192.0.2.1"
		m.TargetDirectMigrationNodePorts = map[string]int{"16509": 0}
		return []handoff.Event{{Kind: handoff.Ready, Node: lease.Target}}
	case lease.State == handoff.Prepared && !n.holds(vmi, Begin):
		m.StartTimestamp, m.Mode = &now, v1.MigrationPreCopy
		return []handoff.Event{{Kind: handoff.Begin, Node: lease.Holder}}
	case lease.State == handoff.Moving && m.AbortRequested:
		m.EndTimestamp, m.Failed, m.Completed = &now, true, true
		m.FailureReason, m.AbortStatus = "canceled by client", v1.MigrationAbortSucceeded
		return []handoff.Event{{Kind: handoff.Revert, Node: lease.Holder, Message: m.FailureReason}}
	case lease.State == handoff.Moving && !n.holds(vmi, TakeOver):
		m.TargetNodeDomainDetected, m.TargetNodeDomainReadyTimestamp = true, &now
		m.EndTimestamp, m.Completed = &now, true
		vmi.Status.LauncherContainerImageVersion = "" // that of the target's Pod is the controller's to report
		return []handoff.Event{{Kind: handoff.TakeOver, Node: lease.Target}}
	case lease.State == handoff.Arrived:
		return []handoff.Event{{Kind: handoff.Finalize, Node: lease.Holder}}
	}
	return nil
}

func (n *Nodes) holds(vmi *v1.VirtualMachineInstance, s Step) bool {
	return n.Holds != nil && n.Holds(vmi, s)
}
