// SPDX-License-Identifier: Apache-2.0

package vmictrl

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/virtloom/virtloom/expectations/expectationsctrl"
	"github.com/virtloom/virtloom/vmi"
)

// Indexes of the caches this controller reads by.
const (
	podByController = "vmictrl.podByController"
	migrationByVMI  = "vmictrl.migrationByVMI"
	vmiByClaim      = "vmictrl.vmiByClaim"
)

// vmiKind is the kind of the primary object.
const vmiKind = "VirtualMachineInstance"

// index registers the indexes.
func index(ctx context.Context, ix client.FieldIndexer) error {
	for _, i := range []struct {
		obj  client.Object
		name string
		keys client.IndexerFunc
	}{
		{&corev1.Pod{}, podByController, func(o client.Object) []string {
			if c := metav1.GetControllerOf(o); c != nil && c.Kind == vmiKind {
				return []string{string(c.UID)}
			}
			return nil
		}},
		{&v1.VirtualMachineInstanceMigration{}, migrationByVMI, func(o client.Object) []string {
			return []string{o.(*v1.VirtualMachineInstanceMigration).Spec.VMIName}
		}},
		{&v1.VirtualMachineInstance{}, vmiByClaim, func(o client.Object) []string {
			return claimNames(o.(*v1.VirtualMachineInstance))
		}},
	} {
		if err := ix.IndexField(ctx, i.obj, i.name, i.keys); err != nil {
			return fmt.Errorf("vmictrl: index %s: %w", i.name, err)
		}
	}
	return nil
}

func claimNames(obj *v1.VirtualMachineInstance) []string {
	var names []string
	for i := range obj.Spec.Volumes {
		if name, _ := vmi.ClaimName(&obj.Spec.Volumes[i]); name != "" {
			names = append(names, name)
		}
	}
	return names
}

// watch declares every kind of object that can change a decision.
func (r *Reconciler) watch(b *builder.Builder) *builder.Builder {
	vmis := schema.GroupKind{Group: v1.GroupVersion.Group, Kind: vmiKind}
	pods := schema.GroupKind{Kind: "Pod"}
	return b.
		For(&v1.VirtualMachineInstance{}, builder.WithPredicates(expectationsctrl.ObservePredicate(r.tracker, vmis))).
		Watches(&corev1.Pod{}, expectationsctrl.Observing(r.tracker, pods, handler.EnqueueRequestsFromMapFunc(controllerOf))).
		Watches(&v1.VirtualMachineInstanceMigration{}, handler.EnqueueRequestsFromMapFunc(migrated)).
		Watches(&corev1.PersistentVolumeClaim{}, handler.EnqueueRequestsFromMapFunc(r.claimants)).
		WatchesRawSource(r.waker)
}

// controllerOf maps a Pod to the VirtualMachineInstance that controls it.
func controllerOf(_ context.Context, o client.Object) []reconcile.Request {
	c := metav1.GetControllerOf(o)
	if c == nil || c.Kind != vmiKind {
		return nil
	}
	return []reconcile.Request{request(o.GetNamespace(), c.Name)}
}

// migrated maps a migration to the VirtualMachineInstance it names.
func migrated(_ context.Context, o client.Object) []reconcile.Request {
	m, ok := o.(*v1.VirtualMachineInstanceMigration)
	if !ok {
		return nil
	}
	return []reconcile.Request{request(m.Namespace, m.Spec.VMIName)}
}

// claimants maps a claim to the VirtualMachineInstances whose volumes name it.
func (r *Reconciler) claimants(ctx context.Context, o client.Object) []reconcile.Request {
	var list v1.VirtualMachineInstanceList
	err := r.Client.List(ctx, &list, client.InNamespace(o.GetNamespace()), client.MatchingFields{vmiByClaim: o.GetName()})
	if err != nil {
		return nil
	}
	requests := make([]reconcile.Request, 0, len(list.Items))
	for i := range list.Items {
		requests = append(requests, request(list.Items[i].Namespace, list.Items[i].Name))
	}
	return requests
}

func request(namespace, name string) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Namespace: namespace, Name: name}}
}
