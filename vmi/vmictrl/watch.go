// SPDX-License-Identifier: Apache-2.0

package vmictrl

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
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

	"github.com/virtloom/virtloom/internal/backlog"
	"github.com/virtloom/virtloom/template"
	"github.com/virtloom/virtloom/template/templatectrl"
	"github.com/virtloom/virtloom/vmi"
)

// Indexes of the caches.
const (
	podByController = "vmictrl.podByController"
	podByVMIName    = "vmictrl.podByGuestName"
	migrationByVMI  = "vmictrl.migrationByVMI"
	vmiByClaim      = "vmictrl.vmiByClaim"
	// claimByState indexes backend storage claims by their VMI.
	claimByState = "vmictrl.claimByState"
	// vmiTimed indexes VMIs that wait for topology hints.
	vmiTimed = "vmictrl.vmiTimed"
	// vmiWaiting indexes VMIs without a Pod under the value yes, and
	// vmiByPodName indexes them by their future Pod's name.
	vmiWaiting   = "vmictrl.vmiWaiting"
	vmiByPodName = "vmictrl.vmiByPodName"
)

const yes = "yes"

// vmiKind is the kind of the primary object, podKind that of its Pods.
const (
	vmiKind = "VirtualMachineInstance"
	podKind = "Pod"
)

var vmiGroupKind = schema.GroupKind{Group: v1.GroupVersion.Group, Kind: vmiKind}

// watcher maps events of other objects to VMIs.
type watcher struct{ *Reconciler }

// controllerUID is the index function of podByController.
func controllerUID(o client.Object) []string {
	if c := metav1.GetControllerOf(o); c != nil && (c.Kind == vmiKind || c.Kind == podKind) {
		return []string{string(c.UID)}
	}
	return nil
}

// vmiName is the index function of podByVMIName.
func vmiName(o client.Object) []string {
	if c := metav1.GetControllerOf(o); c != nil && c.Kind == vmiKind {
		return []string{c.Name}
	}
	return nil
}

// index registers the indexes.
func index(ctx context.Context, ix client.FieldIndexer) error {
	for _, i := range []struct {
		obj  client.Object
		name string
		keys client.IndexerFunc
	}{
		{&corev1.Pod{}, podByController, controllerUID},
		{&corev1.Pod{}, podByVMIName, vmiName},
		{&corev1.PersistentVolumeClaim{}, claimByState, func(o client.Object) []string {
			if name := o.GetLabels()[templatectrl.PersistentStateLabel]; name != "" {
				return []string{name}
			}
			return nil
		}},
		{&v1.VirtualMachineInstanceMigration{}, migrationByVMI, func(o client.Object) []string {
			return []string{o.(*v1.VirtualMachineInstanceMigration).Spec.VMIName}
		}},
		{&v1.VirtualMachineInstance{}, vmiByClaim, func(o client.Object) []string {
			g := o.(*v1.VirtualMachineInstance)
			names := templatectrl.ClaimNames(g)
			if vmi.KeepsState(g) { // otherwise an old claim is found by its label
				names = append(names, vmi.StateClaimName(g))
			}
			return names
		}},
		{&v1.VirtualMachineInstance{}, vmiByNode, leasedTo},
		{&v1.VirtualMachineInstance{}, vmiTimed, func(o client.Object) []string {
			if timed(o.(*v1.VirtualMachineInstance)) {
				return []string{yes}
			}
			return nil
		}},
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

// waiting reports whether the VMI has no Pod yet. A failed creation does not matter: this process
// may know of it before its cache.
func waiting(o client.Object) bool {
	p := o.(*v1.VirtualMachineInstance).Status.Phase
	return o.GetDeletionTimestamp() == nil && (p == v1.VmPhaseUnset || p == v1.Pending)
}

// timed reports whether the VMI waits for topology hints.
func timed(g *v1.VirtualMachineInstance) bool {
	return waiting(g) && g.Status.TopologyHints == nil && vmi.TSCRequirement(g) != vmi.TSCNotRequired
}

// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstances;virtualmachineinstancemigrations;kubevirts,verbs=list;watch
// +kubebuilder:rbac:groups="",resources=namespaces;nodes;pods;persistentvolumeclaims;resourcequotas,verbs=list;watch
// +kubebuilder:rbac:groups=storage.k8s.io,resources=storageclasses,verbs=list;watch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// watch declares watches of all kinds that can change a decision, except those of optional and
// the Nodes.
func (r watcher) watch(b *builder.Builder) *builder.Builder {
	return r.Gate.Attach(b).
		For(&v1.VirtualMachineInstance{}).
		Watches(&corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(r.ofPod)).
		Watches(&v1.VirtualMachineInstanceMigration{}, handler.EnqueueRequestsFromMapFunc(migrated)).
		Watches(&corev1.PersistentVolumeClaim{}, handler.EnqueueRequestsFromMapFunc(r.claimants)).
		Watches(&storagev1.StorageClass{}, r.spread()).
		Watches(&corev1.ResourceQuota{}, handler.EnqueueRequestsFromMapFunc(r.ofNamespaced), builder.WithPredicates(relief())).
		Watches(&corev1.Namespace{}, handler.EnqueueRequestsFromMapFunc(r.ofNamespace), builder.WithPredicates(predicate.LabelChangedPredicate{})).
		Watches(&v1.KubeVirt{}, r.spread(), builder.WithPredicates(predicate.Or[client.Object](
			predicate.GenerationChangedPredicate{}, predicate.AnnotationChangedPredicate{}))).
		WatchesMetadata(&corev1.Node{}, handler.EnqueueRequestsFromMapFunc(r.allTimed), builder.WithPredicates(predicate.LabelChangedPredicate{})).
		WatchesRawSource(r.backlog.Source(r.Clock))
}

// relief passes changes of a ResourceQuota after which it may admit a Pod that it rejected.
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

// ofPod maps a Pod to the VirtualMachineInstance that controls it or its controlling Pod, and a
// Pod of another owner to the VirtualMachineInstance that waits for its name.
func (r watcher) ofPod(ctx context.Context, o client.Object) []reconcile.Request {
	requests := r.vmis(ctx, client.InNamespace(o.GetNamespace()), client.MatchingFields{vmiByPodName: o.GetName()})
	c := metav1.GetControllerOf(o)
	switch {
	case c == nil:
	case c.Kind == vmiKind:
		requests = append(requests, request(o.GetNamespace(), c.Name))
	case c.Kind == podKind:
		// The annotation is set at creation: the Pod's controller may be deleted before it.
		if name := o.GetAnnotations()[ownerName]; name != "" {
			return append(requests, request(o.GetNamespace(), name))
		}
		requests = append(requests, r.ofPodsPod(ctx, o.GetNamespace(), c)...)
	}
	return requests
}

// ownerName is the annotation of attachment and trigger Pods with the VMI's name.
const ownerName = "kubevirt.io/owner-vmi-name"

func (r watcher) ofPodsPod(ctx context.Context, namespace string, c *metav1.OwnerReference) []reconcile.Request {
	pod := &corev1.Pod{}
	if err := r.Client.Get(ctx, types.NamespacedName{Namespace: namespace, Name: c.Name}, pod); err != nil || pod.UID != c.UID {
		return nil // the Pod belongs to no VMI, or is about to be garbage-collected
	}
	if c := metav1.GetControllerOf(pod); c != nil && c.Kind == vmiKind {
		return []reconcile.Request{request(namespace, c.Name)}
	}
	return nil
}

// migrated maps a migration to the VirtualMachineInstance it names.
func migrated(_ context.Context, o client.Object) []reconcile.Request {
	m, ok := o.(*v1.VirtualMachineInstanceMigration)
	if !ok {
		return nil
	}
	return []reconcile.Request{request(m.Namespace, m.Spec.VMIName)}
}

// claimants maps a claim to the VirtualMachineInstances that name it, and to the one in its label.
func (r watcher) claimants(ctx context.Context, o client.Object) []reconcile.Request {
	requests := r.vmis(ctx, client.InNamespace(o.GetNamespace()), client.MatchingFields{vmiByClaim: o.GetName()})
	if name := o.GetLabels()[templatectrl.PersistentStateLabel]; name != "" {
		requests = append(requests, request(o.GetNamespace(), name))
	}
	return requests
}

// ofNamespaced maps an object to the VMIs of its namespace that have no Pod.
func (r watcher) ofNamespaced(ctx context.Context, o client.Object) []reconcile.Request {
	return r.vmis(ctx, client.InNamespace(o.GetNamespace()), client.MatchingFields{vmiWaiting: yes})
}

// ofNamespace maps a Namespace to its VMIs without a Pod: its labels configure Pod security.
func (r watcher) ofNamespace(ctx context.Context, o client.Object) []reconcile.Request {
	return r.vmis(ctx, client.InNamespace(o.GetName()), client.MatchingFields{vmiWaiting: yes})
}

// allWaiting maps an object to all VMIs without a Pod.
func (r watcher) allWaiting(ctx context.Context, _ client.Object) []reconcile.Request {
	return r.vmis(ctx, client.MatchingFields{vmiWaiting: yes})
}

// allTimed maps a Node to all VMIs that wait for topology hints.
func (r watcher) allTimed(ctx context.Context, _ client.Object) []reconcile.Request {
	return r.vmis(ctx, client.MatchingFields{vmiTimed: yes})
}

// spread maps the cluster's configuration to all VMIs.
func (r watcher) spread() handler.EventHandler {
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q backlog.Queue) {
			if !e.IsInInitialList {
				r.wakeAll(ctx, q) // the initial list enqueues every VMI anyway
			}
		},
		UpdateFunc: func(ctx context.Context, _ event.UpdateEvent, q backlog.Queue) { r.wakeAll(ctx, q) },
		DeleteFunc: func(ctx context.Context, _ event.DeleteEvent, q backlog.Queue) { r.wakeAll(ctx, q) },
	}
}

// guests lists VirtualMachineInstances from the cache.
func (r watcher) vmis(ctx context.Context, opts ...client.ListOption) []reconcile.Request {
	var list v1.VirtualMachineInstanceList
	if err := r.Client.List(ctx, &list, opts...); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Listing VirtualMachineInstances failed, event ignored")
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
