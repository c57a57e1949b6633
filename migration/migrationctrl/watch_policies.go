// SPDX-License-Identifier: Apache-2.0

package migrationctrl

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	v1 "kubevirt.io/api/core/v1"
	"kubevirt.io/api/migrations/v1alpha1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// part returns the fields of an object that options are resolved from.
type part func(client.Object) any

func policySpec(o client.Object) any {
	if p, ok := o.(*v1alpha1.MigrationPolicy); ok {
		return p.Spec
	}
	return nil
}

func namespaceLabels(o client.Object) any {
	if ns, ok := o.(*corev1.Namespace); ok {
		return ns.Labels
	}
	return nil
}

func migrationConfiguration(o client.Object) any {
	if kv, ok := o.(*v1.KubeVirt); ok {
		return kv.Spec.Configuration.MigrationConfiguration
	}
	return nil
}

// whenOptionsChange enqueues the migrations to which it matters when that part of an object
// changes, is added or deleted: of all namespaces, or of the object's own.
func (r watcher) whenOptionsChange(of part) handler.EventHandler {
	add := func(ctx context.Context, o client.Object, q requestQueue) {
		var within []client.ListOption
		switch o.(type) {
		case *v1alpha1.MigrationPolicy:
			r.policies.changed() // before any migration is woken by it
		case *corev1.Namespace:
			within = append(within, client.InNamespace(o.GetName()))
		}
		for _, req := range r.mindful(ctx, within...) {
			q.Add(req)
		}
	}
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q requestQueue) { add(ctx, e.Object, q) },
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q requestQueue) { add(ctx, e.Object, q) },
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q requestQueue) {
			if !equality.Semantic.DeepEqual(of(e.ObjectOld), of(e.ObjectNew)) {
				add(ctx, e.ObjectNew, q)
			}
		},
	}
}

// mindful lists the migrations for which minds is true.
func (r watcher) mindful(ctx context.Context, within ...client.ListOption) []reconcile.Request {
	var list v1.VirtualMachineInstanceMigrationList
	if err := r.Client.List(ctx, &list, append(within, client.MatchingFields{mindful: yes})...); err != nil {
		return nil
	}
	out := make([]reconcile.Request, 0, len(list.Items))
	for i := range list.Items {
		out = append(out, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
	}
	return out
}
