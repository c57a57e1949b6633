// SPDX-License-Identifier: Apache-2.0

package vmictrl

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/virtloom/virtloom/template"
	"github.com/virtloom/virtloom/template/templatectrl"
)

// Indexes of the caches this controller reads by.
const (
	podByController = "vmictrl.podByController"
	migrationByVMI  = "vmictrl.migrationByVMI"
	vmiByClaim      = "vmictrl.vmiByClaim"
	// vmiWaiting has every guest without a Pod, under the value yes, and
	// vmiByPodName the same ones under the name their Pod will have.
	vmiWaiting   = "vmictrl.vmiWaiting"
	vmiByPodName = "vmictrl.vmiByPodName"
)

const yes = "yes"

// vmiKind is the kind of the primary object.
const vmiKind = "VirtualMachineInstance"

var vmiGroupKind = schema.GroupKind{Group: v1.GroupVersion.Group, Kind: vmiKind}

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
			return templatectrl.ClaimNames(o.(*v1.VirtualMachineInstance))
		}},
		{&v1.VirtualMachineInstance{}, vmiByNode, leasedTo},
		{&v1.VirtualMachineInstance{}, vmiWaiting, func(o client.Object) []string {
			if waiting(o) {
				return []string{yes}
			}
			return nil
		}},
		{&v1.VirtualMachineInstance{}, vmiByPodName, func(o client.Object) []string {
			if waiting(o) {
				return []string{template.LauncherName(o.(*v1.VirtualMachineInstance))}
			}
			return nil
		}},
	} {
		if err := ix.IndexField(ctx, i.obj, i.name, i.keys); err != nil {
			return fmt.Errorf("vmictrl: index %s: %w", i.name, err)
		}
	}
	return nil
}

// waiting tells whether the guest has no Pod yet. It does not ask whether one was
// refused: that may be known to this process and not to its cache.
func waiting(o client.Object) bool {
	p := o.(*v1.VirtualMachineInstance).Status.Phase
	return o.GetDeletionTimestamp() == nil && (p == v1.VmPhaseUnset || p == v1.Pending)
}

// watch declares every kind of object that can change a decision.
func (r *Reconciler) watch(b *builder.Builder) *builder.Builder {
	return r.gate.Attach(b).
		For(&v1.VirtualMachineInstance{}).
		Watches(&corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(r.ofPod)).
		Watches(&v1.VirtualMachineInstanceMigration{}, handler.EnqueueRequestsFromMapFunc(migrated)).
		Watches(&corev1.PersistentVolumeClaim{}, handler.EnqueueRequestsFromMapFunc(r.claimants)).
		Watches(&corev1.ResourceQuota{}, handler.EnqueueRequestsFromMapFunc(r.ofNamespaced), builder.WithPredicates(relief())).
		Watches(&corev1.Namespace{}, handler.EnqueueRequestsFromMapFunc(r.ofNamespace), builder.WithPredicates(predicate.LabelChangedPredicate{})).
		Watches(&v1.KubeVirt{}, handler.EnqueueRequestsFromMapFunc(r.ofKubeVirt), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		WatchesRawSource(r.nodes.source())
}

// relief passes changes of a ResourceQuota after which it may let a Pod through
// that it refused.
func relief() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc: func(event.CreateEvent) bool { return false },
		UpdateFunc: func(e event.UpdateEvent) bool {
			was, ok := e.ObjectOld.(*corev1.ResourceQuota)
			is, isOK := e.ObjectNew.(*corev1.ResourceQuota)
			return ok && isOK && relieved(was, is)
		},
	}
}

func relieved(was, is *corev1.ResourceQuota) bool {
	if !equality.Semantic.DeepEqual(was.Spec, is.Spec) || !equality.Semantic.DeepEqual(was.Status.Hard, is.Status.Hard) {
		return true
	}
	for name, used := range is.Status.Used {
		if before, known := was.Status.Used[name]; known && used.Cmp(before) < 0 {
			return true
		}
	}
	return false
}

// ofPod maps a Pod to the VirtualMachineInstance that controls it; one of
// another owner to the VirtualMachineInstance that waits for its name.
func (r *Reconciler) ofPod(ctx context.Context, o client.Object) []reconcile.Request {
	if c := metav1.GetControllerOf(o); c != nil && c.Kind == vmiKind {
		return []reconcile.Request{request(o.GetNamespace(), c.Name)}
	}
	return r.guests(ctx, client.InNamespace(o.GetNamespace()), client.MatchingFields{vmiByPodName: o.GetName()})
}

// migrated maps a migration to the VirtualMachineInstance it names.
func migrated(_ context.Context, o client.Object) []reconcile.Request {
	m, ok := o.(*v1.VirtualMachineInstanceMigration)
	if !ok {
		return nil
	}
	return []reconcile.Request{request(m.Namespace, m.Spec.VMIName)}
}

// claimants maps a claim to the VirtualMachineInstances that name it, and to the
// one it is labelled for.
func (r *Reconciler) claimants(ctx context.Context, o client.Object) []reconcile.Request {
	requests := r.guests(ctx, client.InNamespace(o.GetNamespace()), client.MatchingFields{vmiByClaim: o.GetName()})
	if name := o.GetLabels()[templatectrl.PersistentStateLabel]; name != "" {
		requests = append(requests, request(o.GetNamespace(), name))
	}
	return requests
}

// ofNamespaced maps an object to the guests of its namespace that have no Pod.
func (r *Reconciler) ofNamespaced(ctx context.Context, o client.Object) []reconcile.Request {
	return r.guests(ctx, client.InNamespace(o.GetNamespace()), client.MatchingFields{vmiWaiting: yes})
}

// ofNamespace maps a Namespace to its guests that have no Pod: Pod security is
// ruled by its labels.
func (r *Reconciler) ofNamespace(ctx context.Context, o client.Object) []reconcile.Request {
	return r.guests(ctx, client.InNamespace(o.GetName()), client.MatchingFields{vmiWaiting: yes})
}

// ofKubeVirt maps the cluster's configuration to all guests that have no Pod: it
// may have been what their Pod could not be rendered with.
func (r *Reconciler) ofKubeVirt(ctx context.Context, _ client.Object) []reconcile.Request {
	return r.guests(ctx, client.MatchingFields{vmiWaiting: yes})
}

// guests lists VirtualMachineInstances from the cache.
func (r *Reconciler) guests(ctx context.Context, opts ...client.ListOption) []reconcile.Request {
	var list v1.VirtualMachineInstanceList
	if err := r.Client.List(ctx, &list, opts...); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Could not tell which guests an event concerns")
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
