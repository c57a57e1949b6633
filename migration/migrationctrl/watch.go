// SPDX-License-Identifier: Apache-2.0

package migrationctrl

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"
	"kubevirt.io/api/migrations/v1alpha1"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/virtloom/virtloom/internal/backlog"
)

// Indexes of the caches of this controller. Values are UIDs and spec
// fields, never labels that hold names: a name may be longer than a label.
const (
	migrationByVMI = "migrationctrl.migrationByVMI"
	podByVMI       = "migrationctrl.podByVMI"
	// podByPod has the Pods that Pods control, by the UID of the controlling Pod.
	podByPod = "migrationctrl.podByPod"
	// mindful has, under the one value yes, the migrations for which minds is true.
	mindful = "migrationctrl.mindful"
	yes     = "yes"
)

const (
	vmiKind = "VirtualMachineInstance"
	podKind = "Pod"
)

// index registers the indexes.
func index(ctx context.Context, ix client.FieldIndexer) error {
	byVMI := func(o client.Object) []string {
		return []string{o.(*v1.VirtualMachineInstanceMigration).Spec.VMIName}
	}
	if err := ix.IndexField(ctx, &v1.VirtualMachineInstanceMigration{}, migrationByVMI, byVMI); err != nil {
		return fmt.Errorf("migrationctrl: index %s: %w", migrationByVMI, err)
	}
	byMind := func(o client.Object) []string {
		if minds(o.(*v1.VirtualMachineInstanceMigration)) {
			return []string{yes}
		}
		return nil
	}
	if err := ix.IndexField(ctx, &v1.VirtualMachineInstanceMigration{}, mindful, byMind); err != nil {
		return fmt.Errorf("migrationctrl: index %s: %w", mindful, err)
	}
	byGuest := func(o client.Object) []string {
		if uid := controlling(o); uid != "" {
			return []string{string(uid)}
		}
		return nil
	}
	if err := ix.IndexField(ctx, &corev1.Pod{}, podByVMI, byGuest); err != nil {
		return fmt.Errorf("migrationctrl: index %s: %w", podByVMI, err)
	}
	byPod := func(o client.Object) []string {
		if c := metav1.GetControllerOf(o); c != nil && c.Kind == podKind {
			return []string{string(c.UID)}
		}
		return nil
	}
	if err := ix.IndexField(ctx, &corev1.Pod{}, podByPod, byPod); err != nil {
		return fmt.Errorf("migrationctrl: index %s: %w", podByPod, err)
	}
	return nil
}

// controlling returns the UID of the VMI that controls a Pod, empty if none does. It does not
// use labels, which users may change.
func controlling(pod metav1.Object) types.UID {
	if c := metav1.GetControllerOf(pod); c != nil && c.Kind == v1.VirtualMachineInstanceGroupVersionKind.Kind {
		return c.UID
	}
	return ""
}

// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstances;virtualmachineinstancemigrations;kubevirts,verbs=list;watch
// +kubebuilder:rbac:groups=migrations.kubevirt.io,resources=migrationpolicies,verbs=list;watch
// +kubebuilder:rbac:groups="",resources=namespaces;nodes;pods;persistentvolumeclaims;resourcequotas,verbs=list;watch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// watcher maps events to migrations.
type watcher struct{ *Reconciler }

// watch declares every kind of object that can change a decision.
func (r watcher) watch(b *builder.Builder) *builder.Builder {
	return r.gate.Attach(b).
		WatchesRawSource(r.backlog.Source(r.Clock)).
		For(&v1.VirtualMachineInstanceMigration{}, builder.WithPredicates(noEvents)). // names the controller; see the next line
		Watches(&v1.VirtualMachineInstanceMigration{}, ranked{&handler.EnqueueRequestForObject{}, ranker(r).rankOfMigration}).
		Watches(&v1.VirtualMachineInstanceMigration{}, r.siblings()).
		Watches(&v1.VirtualMachineInstance{}, ranked{handler.EnqueueRequestsFromMapFunc(r.ofVMI), ranker(r).rankOfVMI}).
		Watches(&corev1.Pod{}, ranked{handler.EnqueueRequestsFromMapFunc(r.ofPod), ranker(r).rankOfPod}).
		Watches(&corev1.PersistentVolumeClaim{}, handler.EnqueueRequestsFromMapFunc(ofClaim)).
		Watches(&corev1.ResourceQuota{}, handler.EnqueueRequestsFromMapFunc(r.ofQuota)).
		Watches(&corev1.Node{}, handler.EnqueueRequestsFromMapFunc(r.ofNode), builder.WithPredicates(relabelled)).
		Watches(&v1.KubeVirt{}, handler.EnqueueRequestsFromMapFunc(r.ofKubeVirt)).
		Watches(&v1.KubeVirt{}, r.whenOptionsChange(migrationConfiguration)).
		Watches(&corev1.Namespace{}, r.whenOptionsChange(namespaceLabels)).
		Watches(&v1alpha1.MigrationPolicy{}, r.whenOptionsChange(policySpec))
}

// noEvents drops all events.
var noEvents = predicate.NewPredicateFuncs(func(client.Object) bool { return false })

type requestQueue = backlog.Queue

// siblings enqueues the other migrations of a VMI when one of them ends or is deleted: they may
// wait for it.
func (r watcher) siblings() handler.EventHandler {
	add := func(ctx context.Context, o client.Object, q requestQueue) {
		m, ok := o.(*v1.VirtualMachineInstanceMigration)
		if !ok {
			return
		}
		for _, req := range r.ofName(ctx, m.Namespace, m.Spec.VMIName) {
			if req.Name != m.Name {
				q.Add(req)
			}
		}
	}
	return handler.Funcs{
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q requestQueue) {
			was, ok := e.ObjectOld.(*v1.VirtualMachineInstanceMigration)
			is, isOK := e.ObjectNew.(*v1.VirtualMachineInstanceMigration)
			if ok && isOK && is.IsFinal() && !was.IsFinal() {
				add(ctx, is, q)
			}
		},
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q requestQueue) { add(ctx, e.Object, q) },
	}
}

// ofGuest maps a VMI to its migrations that are not done.
func (r watcher) ofVMI(ctx context.Context, o client.Object) []reconcile.Request {
	return r.ofName(ctx, o.GetNamespace(), o.GetName())
}

// ofPod maps a Pod to the migrations of its VMI, directly or through another Pod.
func (r watcher) ofPod(ctx context.Context, o client.Object) []reconcile.Request {
	switch c := metav1.GetControllerOf(o); {
	case c == nil:
		return nil
	case c.Kind == vmiKind:
		return r.ofName(ctx, o.GetNamespace(), c.Name)
	case c.Kind == podKind && o.GetLabels()[v1.MigrationJobLabel] != "":
		return r.ofName(ctx, o.GetNamespace(), o.GetAnnotations()[ownerName])
	}
	return nil
}

// ownerName is KubeVirt's annotation of an attachment Pod with the name of its VMI.
const ownerName = "kubevirt.io/owner-vmi-name"

// ofClaim maps a claim to the migration that it was created for. A migration with a name too
// long for the label is woken as the owner of the write alone.
func ofClaim(_ context.Context, o client.Object) []reconcile.Request {
	name := o.GetLabels()[v1.MigrationNameLabel]
	if name == "" {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: o.GetNamespace(), Name: name}}}
}

func (r watcher) ofName(ctx context.Context, namespace, guest string) []reconcile.Request {
	var list v1.VirtualMachineInstanceMigrationList
	if err := r.Client.List(ctx, &list, client.InNamespace(namespace), client.MatchingFields{migrationByVMI: guest}); err != nil {
		return nil
	}
	// Migrations of a VMI that is gone are to be deleted.
	err := r.Client.Get(ctx, types.NamespacedName{Namespace: namespace, Name: guest}, &v1.VirtualMachineInstance{})
	gone := apierrors.IsNotFound(err)
	var out []reconcile.Request
	for i := range list.Items {
		if m := &list.Items[i]; gone || !migrationDone(m) {
			out = append(out, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(m)})
		}
	}
	return out
}

// migrationDone reports whether nothing is left to do for the migration.
func migrationDone(m *v1.VirtualMachineInstanceMigration) bool {
	return m.IsFinal() && !slices.Contains(m.Finalizers, v1.VirtualMachineInstanceMigrationFinalizer)
}

// ofKubeVirt applies changed limits and maps to the migrations that may proceed
// because of it.
func (r watcher) ofKubeVirt(ctx context.Context, _ client.Object) []reconcile.Request {
	woken, err := capacity(r).limit(ctx)
	if err != nil {
		return nil
	}
	return append(requests(woken), r.between(ctx)...)
}

func requests(keys []types.NamespacedName) []reconcile.Request {
	out := make([]reconcile.Request, 0, len(keys))
	for _, k := range keys {
		out = append(out, reconcile.Request{NamespacedName: k})
	}
	return out
}

// wake enqueues migrations whose verdict from Admission changed.
func (r *Reconciler) wake(keys []types.NamespacedName) {
	for _, k := range keys {
		if r.gate != nil {
			r.gate.Wake(k)
		}
	}
}
