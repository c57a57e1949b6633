// SPDX-License-Identifier: Apache-2.0

package migrationctrl

import (
	"context"
	"fmt"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/virtloom/virtloom/expectations"
	"github.com/virtloom/virtloom/migration/evacuation"
)

// defaultEvacuators is how many nodes are reconciled in parallel.
const defaultEvacuators = 3

// Evacuator migrates VMIs away from nodes that are drained, and those that were requested to leave
// (status.evacuationNodeName), as evacuation.Evacuate decides. It creates and deletes migrations; a
// [Reconciler] executes them. Its keys are the names of nodes.
type Evacuator struct {
	// Migrations is the migration controller of the same manager, set up before; its client, clock,
	// recorder, configuration and indexes are shared. Required.
	Migrations *Reconciler
	// Observer receives the outcome of own writes. Defaults to none.
	Observer expectations.Observer
	// Workers defaults to 3.
	Workers int

	automatic
}

// SetupWithManager checks the fields and registers indexes, watches and the controller with the
// manager.
func (e *Evacuator) SetupWithManager(ctx context.Context, mgr ctrl.Manager) error {
	var err error
	if e.automatic, err = newAutomatic(mgr, e.Migrations, e.Observer); err != nil {
		return err
	}
	if e.Workers == 0 {
		e.Workers = defaultEvacuators
	}
	if err := indexEvacuations(ctx, mgr.GetFieldIndexer()); err != nil {
		return err
	}
	b := ctrl.NewControllerManagedBy(mgr).Named("evacuation").
		WithOptions(controller.Options{MaxConcurrentReconciles: e.Workers})
	if err := e.watch(b).Complete(e); err != nil {
		return fmt.Errorf("migrationctrl: %w", err)
	}
	return nil
}

// Reconcile makes one pass over the VMIs of a node.
func (e *Evacuator) Reconcile(ctx context.Context, req reconcile.Request) (_ reconcile.Result, err error) {
	ctx, span := tracer.Start(ctx, "evacuation.Reconcile")
	span.SetAttributes(attribute.String("node", req.Name))
	defer func() {
		if err != nil {
			span.SetStatus(codes.Error, err.Error())
		}
		span.End()
	}()
	in, err := e.gather(ctx, req.NamespacedName)
	if err != nil {
		return reconcile.Result{}, err
	}
	all := evacuation.Evacuate(in, e.r.Clock.Now())
	span.SetAttributes(attribute.Bool("draining", in.Draining), attribute.Int("guests", len(all)))
	return e.conclude(ctx, req.NamespacedName, all, e.do(ctx, req.NamespacedName, all))
}

// gather reads the node, the VMIs that must leave it, and those that had to.
func (e *Evacuator) gather(ctx context.Context, key types.NamespacedName) (evacuation.Evacuation, error) {
	in := evacuation.Evacuation{Node: key.Name}
	kv, err := e.r.gatherer.KubeVirt(ctx)
	if err != nil {
		return in, fmt.Errorf("migrationctrl: node %s: %w", key.Name, err)
	}
	in.Config = e.r.config(kv)
	in.Strategy = strategy(kv)
	node := &corev1.Node{}
	if err := e.r.Client.Get(ctx, key, node, readOnly); client.IgnoreNotFound(err) != nil {
		return in, fmt.Errorf("migrationctrl: read Node %s: %w", key.Name, err)
	}
	in.Draining = evacuation.Draining(node, in.Config.Cluster)
	vmis, err := e.concerned(ctx, in)
	if err != nil {
		return in, err
	}
	for _, vmi := range vmis {
		g, err := e.vmi(ctx, key, vmi)
		if err != nil {
			return in, err
		}
		in.VMIs = append(in.VMIs, g)
	}
	in.Fleet, err = e.fleet(ctx, kv, in.VMIs)
	return in, err
}

// concerned returns the VMIs that must leave the node, and those with a migration created for
// that.
func (e *Evacuator) concerned(ctx context.Context, in evacuation.Evacuation) ([]*v1.VirtualMachineInstance, error) {
	var here v1.VirtualMachineInstanceList
	if err := e.r.Client.List(ctx, &here, client.MatchingFields{vmiByNode: in.Node}, readOnly); err != nil {
		return nil, fmt.Errorf("migrationctrl: list the VMIs of node %s: %w", in.Node, err)
	}
	var out []*v1.VirtualMachineInstance
	seen := map[types.UID]bool{}
	for i := range here.Items {
		if vmi := &here.Items[i]; in.Draining || vmi.Status.EvacuationNodeName == in.Node {
			out, seen[vmi.UID] = append(out, vmi), true
		}
	}
	var made v1.VirtualMachineInstanceMigrationList
	if err := e.r.Client.List(ctx, &made, client.MatchingFields{migrationByEvacuation: in.Node}, readOnly); err != nil {
		return nil, fmt.Errorf("migrationctrl: list the migrations away from node %s: %w", in.Node, err)
	}
	more, err := e.vmisOf(ctx, made.Items, seen)
	return append(out, more...), err
}

// strategy returns the cluster's eviction strategy.
func strategy(kv *v1.KubeVirt) *v1.EvictionStrategy {
	if kv == nil {
		return nil
	}
	return kv.Spec.Configuration.EvictionStrategy
}
