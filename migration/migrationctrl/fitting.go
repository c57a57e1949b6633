// SPDX-License-Identifier: Apache-2.0

package migrationctrl

import (
	"context"
	"errors"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/virtloom/virtloom/migration"
	"github.com/virtloom/virtloom/migration/placement"
	"github.com/virtloom/virtloom/template/render"
)

// fitter renders target Pods, and checks that nodes and quotas take them.
type fitter struct{ *Reconciler }

// render returns the target Pod to create.
func (r fitter) render(ctx context.Context, g *gathered) (*corev1.Pod, error) {
	in, err := gatherer(r).input(ctx, g)
	if err != nil {
		return nil, err
	}
	pod, err := r.Renderer.MigrationTarget(in)
	switch {
	case errors.Is(err, render.ErrMissingFact):
		return nil, fmt.Errorf("migrationctrl: render the target Pod: %w", err)
	case err != nil:
		return nil, fmt.Errorf("%w: %w", migration.ErrRender, err)
	}
	return pod, nil
}

// fits checks, from caches alone, whether any node can match the Pod and whether the
// quotas have room for it.
func (r fitter) fits(ctx context.Context, g *gathered, pod *corev1.Pod) error {
	if g.Config.AwaitNodes >= 0 {
		var list corev1.NodeList
		if err := r.Client.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
			return fmt.Errorf("migrationctrl: list Nodes: %w", err)
		}
		if f := placement.Fit(pod, g.VMI.Status.NodeName, pointers(list.Items)); f.Static() {
			return &migration.NoNodeError{Fitness: f}
		}
	}
	var list corev1.ResourceQuotaList
	if err := r.Client.List(ctx, &list, client.InNamespace(pod.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("migrationctrl: list the ResourceQuotas of %s: %w", pod.Namespace, err)
	}
	if short := placement.CheckQuota(pod, pointers(list.Items)); len(short) > 0 {
		return &placement.QuotaError{Shortages: short}
	}
	return nil
}

func pointers[T any](items []T) []*T {
	out := make([]*T, len(items))
	for i := range items {
		out[i] = &items[i]
	}
	return out
}

// rehearse repeats the checks that prevented the creation of the target Pod. While they
// still do, the migration requests no slot.
func (r fitter) rehearse(ctx context.Context, g *gathered) {
	m := g.Migration
	if g.Pending != "" || g.VMI == nil || g.TargetPod != nil || m.DeletionTimestamp != nil || m.Status.Phase != v1.MigrationPending || !turnedDown(m) {
		return
	}
	pod, err := r.render(ctx, g)
	if err != nil {
		return // the creation reports it
	}
	if err := r.fits(ctx, g, pod); err != nil {
		g.Failures = map[migration.Verb]error{migration.CreateTarget: err}
	}
}

// turnedDown reports whether the target Pod could not be created for lack of quota or nodes.
func turnedDown(m *v1.VirtualMachineInstanceMigration) bool {
	return migration.Condition(m.Status, v1.VirtualMachineInstanceMigrationRejectedByResourceQuota) != nil ||
		migration.Condition(m.Status, migration.ConditionNoNode) != nil
}

// awaitsEvent reports whether an action failed for a reason that only a change of nodes or
// quotas lifts.
func awaitsEvent(err error) bool {
	var node *migration.NoNodeError
	var quota *placement.QuotaError
	return errors.As(err, &node) || errors.As(err, &quota)
}

// relabelled passes events that may let a Pod match that matched no node: new nodes and labels.
var relabelled = predicate.Funcs{
	UpdateFunc: func(e event.UpdateEvent) bool {
		return !maps.Equal(e.ObjectOld.GetLabels(), e.ObjectNew.GetLabels())
	},
	DeleteFunc:  func(event.DeleteEvent) bool { return false },
	GenericFunc: func(event.GenericEvent) bool { return false },
}

// ofNode maps a node to the migrations that wait for a matching one.
func (r watcher) ofNode(ctx context.Context, _ client.Object) []reconcile.Request {
	if r.configured().AwaitNodes <= 0 {
		return nil
	}
	return r.waiting(ctx, migration.ConditionNoNode)
}

// ofQuota maps a ResourceQuota to the migrations that a quota has rejected.
func (r watcher) ofQuota(ctx context.Context, o client.Object) []reconcile.Request {
	return r.waiting(ctx, v1.VirtualMachineInstanceMigrationRejectedByResourceQuota, client.InNamespace(o.GetNamespace()))
}

// waiting returns the migrations with the condition.
func (r watcher) waiting(ctx context.Context, t v1.VirtualMachineInstanceMigrationConditionType, where ...client.ListOption) []reconcile.Request {
	var list v1.VirtualMachineInstanceMigrationList
	if err := r.Client.List(ctx, &list, append(where, client.UnsafeDisableDeepCopy)...); err != nil {
		return nil
	}
	var out []reconcile.Request
	for i := range list.Items {
		if m := &list.Items[i]; migration.Condition(m.Status, t) != nil {
			out = append(out, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(m)})
		}
	}
	return out
}
