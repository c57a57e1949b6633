// SPDX-License-Identifier: Apache-2.0

package vmctrl

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"
	"kubevirt.io/api/instancetype/v1beta1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/virtloom/virtloom/internal/optional"
	"github.com/virtloom/virtloom/vm/instancetype"
)

// Indexes of the caches.
const (
	// revisionByVM indexes ControllerRevisions by the UID of the VM that controls them.
	revisionByVM = "vmctrl.revisionByVM"
	// vmByVolume indexes VMs by the names of their DataVolumes and claims.
	vmByVolume = "vmctrl.vmByVolume"
	// vmByMatcher indexes VMs by the instance type and the preference that they name.
	vmByMatcher = "vmctrl.vmByMatcher"
)

// Kinds that a cluster need not serve.
var (
	dvKind      = cdiv1.SchemeGroupVersion.WithKind("DataVolume")
	definitions = map[string]client.Object{
		instancetype.KindInstancetype:        &v1beta1.VirtualMachineInstancetype{},
		instancetype.KindClusterInstancetype: &v1beta1.VirtualMachineClusterInstancetype{},
		instancetype.KindPreference:          &v1beta1.VirtualMachinePreference{},
		instancetype.KindClusterPreference:   &v1beta1.VirtualMachineClusterPreference{},
	}
)

// watcher maps events of other objects to VMs.
type watcher struct{ *Reconciler }

// index registers the indexes.
func index(ctx context.Context, ix client.FieldIndexer) error {
	for _, i := range []struct {
		obj  client.Object
		name string
		keys client.IndexerFunc
	}{
		{&appsv1.ControllerRevision{}, revisionByVM, ofControllingVM},
		{&v1.VirtualMachine{}, vmByVolume, func(o client.Object) []string { return volumeNames(o.(*v1.VirtualMachine)) }},
		{&v1.VirtualMachine{}, vmByMatcher, func(o client.Object) []string { return matcherNames(o.(*v1.VirtualMachine)) }},
	} {
		if err := ix.IndexField(ctx, i.obj, i.name, i.keys); err != nil {
			return fmt.Errorf("vmctrl: index %s: %w", i.name, err)
		}
	}
	return nil
}

// ofControllingVM returns the UID of the VM that controls an object.
func ofControllingVM(o client.Object) []string {
	if c := controllingVM(o); c != nil {
		return []string{string(c.UID)}
	}
	return nil
}

// controllingVM returns the reference to the VM that controls an object; nil if there is none.
func controllingVM(o client.Object) *metav1.OwnerReference {
	if c := metav1.GetControllerOf(o); c != nil && c.Kind == v1.VirtualMachineGroupVersionKind.Kind {
		return c
	}
	return nil
}

// volumeNames returns the names of all DataVolumes and claims that a VM names; those of both kinds have one name
// space, as a DataVolume is populated into the claim of its name.
func volumeNames(vm *v1.VirtualMachine) (names []string) {
	for i := range vm.Spec.DataVolumeTemplates {
		names = append(names, vm.Spec.DataVolumeTemplates[i].Name)
	}
	if vm.Spec.Template != nil {
		for _, v := range vm.Spec.Template.Spec.Volumes {
			switch {
			case v.DataVolume != nil:
				names = append(names, v.DataVolume.Name)
			case v.PersistentVolumeClaim != nil:
				names = append(names, v.PersistentVolumeClaim.ClaimName)
			}
		}
	}
	if dump := vm.Status.MemoryDumpRequest; dump != nil {
		names = append(names, dump.ClaimName)
	}
	return names
}

// matcherNames returns the names of the instance type and the preference of a VM; their kinds are ignored.
func matcherNames(vm *v1.VirtualMachine) (names []string) {
	if m := vm.Spec.Instancetype; m != nil && m.Name != "" {
		names = append(names, m.Name)
	}
	if m := vm.Spec.Preference; m != nil && m.Name != "" {
		names = append(names, m.Name)
	}
	return names
}

// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachines;virtualmachineinstances;kubevirts,verbs=list;watch
// +kubebuilder:rbac:groups=apps,resources=controllerrevisions,verbs=list;watch
// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims,verbs=list;watch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// watch declares watches of all kinds that can change a decision, except those of optional.
func (r watcher) watch(b *builder.Builder) *builder.Builder {
	return r.Gate.Attach(b).
		For(&v1.VirtualMachine{}).
		Watches(&v1.VirtualMachineInstance{}, handler.EnqueueRequestsFromMapFunc(ofVMI)).
		Watches(&appsv1.ControllerRevision{}, handler.EnqueueRequestsFromMapFunc(ofOwned)).
		Watches(&corev1.PersistentVolumeClaim{}, handler.EnqueueRequestsFromMapFunc(r.ofVolume)).
		Watches(&v1.KubeVirt{}, handler.EnqueueRequestsFromMapFunc(r.all), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		WatchesRawSource(r.backlog.Source(r.Clock))
}

// +kubebuilder:rbac:groups=apiextensions.k8s.io,resources=customresourcedefinitions,verbs=list;watch
// +kubebuilder:rbac:groups=cdi.kubevirt.io,resources=datavolumes,verbs=list;watch
// +kubebuilder:rbac:groups=instancetype.kubevirt.io,resources=virtualmachineinstancetypes;virtualmachineclusterinstancetypes;virtualmachinepreferences;virtualmachineclusterpreferences,verbs=list;watch

// optional lists the optional kinds and their map functions.
func (r watcher) optional() []optional.Kind {
	kinds := []optional.Kind{{Definition: "datavolumes.cdi.kubevirt.io", Kind: dvKind, Object: &cdiv1.DataVolume{}, Wakes: r.ofVolume}}
	for kind, plural := range map[string]string{
		instancetype.KindInstancetype:        "virtualmachineinstancetypes",
		instancetype.KindClusterInstancetype: "virtualmachineclusterinstancetypes",
		instancetype.KindPreference:          "virtualmachinepreferences",
		instancetype.KindClusterPreference:   "virtualmachineclusterpreferences",
	} {
		kinds = append(kinds, optional.Kind{
			Definition: plural + "." + v1beta1.SchemeGroupVersion.Group, Kind: v1beta1.SchemeGroupVersion.WithKind(kind),
			Object: definitions[kind], Wakes: r.ofDefinition,
		})
	}
	return kinds
}

// unserved enqueues all VMs, as one may depend on the kind that is no longer served.
func (r watcher) unserved(ctx context.Context) {
	q := r.backlog.Queue()
	if q == nil {
		return
	}
	for _, req := range r.all(ctx, nil) {
		q.Add(req)
	}
}

// ofVMI maps a VMI to the VM of its name, which may have to adopt it, and to the one that controls it.
func ofVMI(ctx context.Context, o client.Object) []reconcile.Request {
	requests := []reconcile.Request{request(o.GetNamespace(), o.GetName())}
	if c := controllingVM(o); c != nil && c.Name != o.GetName() {
		requests = append(requests, ofOwned(ctx, o)...)
	}
	return requests
}

// ofOwned maps an object to the VM that controls it.
func ofOwned(_ context.Context, o client.Object) []reconcile.Request {
	if c := controllingVM(o); c != nil {
		return []reconcile.Request{request(o.GetNamespace(), c.Name)}
	}
	return nil
}

// ofVolume maps a DataVolume or a claim to the VMs that name it, and to the one that controls it.
func (r watcher) ofVolume(ctx context.Context, o client.Object) []reconcile.Request {
	return append(r.vms(ctx, client.InNamespace(o.GetNamespace()), client.MatchingFields{vmByVolume: o.GetName()}), ofOwned(ctx, o)...)
}

// ofDefinition maps an instance type or a preference to the VMs that name it.
func (r watcher) ofDefinition(ctx context.Context, o client.Object) []reconcile.Request {
	return r.vms(ctx, client.InNamespace(o.GetNamespace()), client.MatchingFields{vmByMatcher: o.GetName()})
}

// all maps an object to all VMs.
func (r watcher) all(ctx context.Context, _ client.Object) []reconcile.Request { return r.vms(ctx) }

// vms lists VMs from the cache.
func (r watcher) vms(ctx context.Context, opts ...client.ListOption) []reconcile.Request {
	var list v1.VirtualMachineList
	if err := r.Client.List(ctx, &list, opts...); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Listing VirtualMachines failed, event ignored")
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
