// SPDX-License-Identifier: Apache-2.0

package migrationctrl

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// Indexes of the Evacuator, besides those of the Reconciler.
const (
	vmiByNode = "migrationctrl.guestByNode"
	// migrationByEvacuation has the unfinished migrations that were created to empty a node.
	migrationByEvacuation = "migrationctrl.migrationByEvacuation"
)

func indexEvacuations(ctx context.Context, ix client.FieldIndexer) error {
	byNode := func(o client.Object) []string { return named(o.(*v1.VirtualMachineInstance).Status.NodeName) }
	if err := ix.IndexField(ctx, &v1.VirtualMachineInstance{}, vmiByNode, byNode); err != nil {
		return fmt.Errorf("migrationctrl: index %s: %w", vmiByNode, err)
	}
	byEvacuation := func(o client.Object) []string {
		if m := o.(*v1.VirtualMachineInstanceMigration); m.IsFinal() {
			return nil
		}
		return named(o.GetAnnotations()[v1.EvacuationMigrationAnnotation])
	}
	if err := ix.IndexField(ctx, &v1.VirtualMachineInstanceMigration{}, migrationByEvacuation, byEvacuation); err != nil {
		return fmt.Errorf("migrationctrl: index %s: %w", migrationByEvacuation, err)
	}
	return nil
}

// named returns the name as a list; an empty name as nil.
func named(name string) []string {
	if name == "" {
		return nil
	}
	return []string{name}
}

// watch declares every kind of object that can change a decision. Most changes decide nothing and
// wake no node.
func (e *Evacuator) watch(b *builder.Builder) *builder.Builder {
	return e.gate.Attach(b).
		Watches(&corev1.Node{}, e.ofNodes(), builder.WithPredicates(changed(aspectsOfNode))).
		Watches(&v1.VirtualMachineInstance{}, ofBoth(nodesOfVMI), builder.WithPredicates(changed(aspectsOfVMI))).
		Watches(&v1.VirtualMachineInstanceMigration{}, handler.EnqueueRequestsFromMapFunc(e.ofMigration), builder.WithPredicates(changed(aspectsOfMigration))).
		Watches(&corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(e.ofPod), builder.WithPredicates(changed(aspectsOfPod))).
		Watches(&v1.KubeVirt{}, handler.EnqueueRequestsFromMapFunc(e.allNodes), builder.WithPredicates(predicate.GenerationChangedPredicate{}))
}

// changed passes updates that change one of the aspects, and all other events.
func changed(aspects func(client.Object) []any) predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		return !equality.Semantic.DeepEqual(aspects(e.ObjectOld), aspects(e.ObjectNew))
	}}
}

// aspectsOfVMI returns the fields of a VMI on which evacuations and updates depend.
func aspectsOfVMI(o client.Object) []any {
	vmi, ok := o.(*v1.VirtualMachineInstance)
	if !ok {
		return nil
	}
	st := &vmi.Status
	all := []any{
		vmi.DeletionTimestamp, vmi.Annotations[v1.EvictionSourceAnnotation], metav1.HasAnnotation(vmi.ObjectMeta, v1.WorkloadUpdateMigrationAbortionAnnotation),
		vmi.Spec, st.Phase, st.NodeName, st.EvacuationNodeName, st.LauncherContainerImageVersion, st.MigratedVolumes,
	}
	for i := range st.Conditions {
		switch c := &st.Conditions[i]; c.Type {
		case v1.VirtualMachineInstanceIsMigratable, v1.VirtualMachineInstanceIsStorageLiveMigratable, v1.VirtualMachineInstanceVCPUChange,
			v1.VirtualMachineInstanceMemoryChange, v1.VirtualMachineInstanceVolumesChange, v1.VirtualMachineInstanceMigrationRequired:
			all = append(all, c.Type, c.Status, c.Reason)
		}
	}
	for i := range st.VolumeStatus { // hotplugged volumes, and volumes shared between nodes
		v := &st.VolumeStatus[i]
		all = append(all, v.Name, v.HotplugVolume != nil, v.PersistentVolumeClaimInfo)
	}
	if ms := st.MigrationState; ms != nil {
		all = append(all, ms.MigrationUID, ms.StartTimestamp, ms.EndTimestamp, ms.TargetNodeDomainReadyTimestamp, ms.Completed)
	}
	return all
}

// aspectsOfMigration returns the fields of a migration on which they depend.
func aspectsOfMigration(o client.Object) []any {
	m, ok := o.(*v1.VirtualMachineInstanceMigration)
	if !ok {
		return nil
	}
	return []any{m.Status.Phase, m.DeletionTimestamp}
}

// aspectsOfPod returns the fields of a Pod on which they depend.
func aspectsOfPod(o client.Object) []any {
	p, ok := o.(*corev1.Pod)
	if !ok {
		return nil
	}
	return []any{ended(p), p.Spec.NodeName, p.DeletionTimestamp}
}

// ended reports whether the Pod has ended.
func ended(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// ofBoth maps the object of an event, for updates the old and the new one.
func ofBoth(names func(client.Object) []string) handler.EventHandler {
	add := func(o client.Object, q requestQueue) {
		for _, name := range names(o) {
			q.Add(nodeRequest(name))
		}
	}
	return handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, q requestQueue) { add(e.Object, q) },
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, q requestQueue) {
			add(e.ObjectOld, q)
			add(e.ObjectNew, q)
		},
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, q requestQueue) { add(e.Object, q) },
	}
}

func nodeRequest(name string) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Name: name}}
}

// nodesOfVMI returns the node of a VMI and the node that it must leave.
func nodesOfVMI(o client.Object) []string {
	vmi, ok := o.(*v1.VirtualMachineInstance)
	if !ok {
		return nil
	}
	return slices.Concat(named(vmi.Status.NodeName), named(vmi.Status.EvacuationNodeName))
}

// ofMigration maps a migration to the node that it empties and to that of its VMI.
func (e *Evacuator) ofMigration(ctx context.Context, o client.Object) []reconcile.Request {
	var out []reconcile.Request
	for _, name := range named(o.GetAnnotations()[v1.EvacuationMigrationAnnotation]) {
		out = append(out, nodeRequest(name))
	}
	m, ok := o.(*v1.VirtualMachineInstanceMigration)
	if !ok {
		return out
	}
	return append(out, e.ofVMINamed(ctx, m.Namespace, m.Spec.VMIName)...)
}

// ofPod maps a Pod to the node of its VMI.
func (e *Evacuator) ofPod(ctx context.Context, o client.Object) []reconcile.Request {
	if c := metav1.GetControllerOf(o); c != nil && c.Kind == vmiKind {
		return e.ofVMINamed(ctx, o.GetNamespace(), c.Name)
	}
	return nil
}

func (e *Evacuator) ofVMINamed(ctx context.Context, namespace, name string) []reconcile.Request {
	vmi := &v1.VirtualMachineInstance{}
	if err := e.r.Client.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, vmi, readOnly); err != nil {
		return nil // its events will follow
	}
	var out []reconcile.Request
	for _, node := range nodesOfVMI(vmi) {
		out = append(out, nodeRequest(node))
	}
	return out
}

// ofNodes enqueues a changed node, and all nodes if the change affects possible targets.
func (e *Evacuator) ofNodes() handler.EventHandler {
	all := func(ctx context.Context, o client.Object, q requestQueue) {
		e.nodes.changed()
		q.Add(nodeRequest(o.GetName()))
		for _, req := range e.allNodes(ctx, o) {
			q.Add(req)
		}
	}
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, ev event.CreateEvent, q requestQueue) {
			if ev.IsInInitialList {
				e.nodes.changed()
				q.Add(nodeRequest(ev.Object.GetName()))
				return
			}
			all(ctx, ev.Object, q)
		},
		UpdateFunc: func(ctx context.Context, ev event.UpdateEvent, q requestQueue) {
			all(ctx, ev.ObjectNew, q)
		},
		DeleteFunc: func(ctx context.Context, ev event.DeleteEvent, q requestQueue) { all(ctx, ev.Object, q) },
	}
}

// aspectsOfNode returns the fields of a node that decide where VMIs can run.
func aspectsOfNode(o client.Object) []any {
	n, ok := o.(*corev1.Node)
	if !ok {
		return nil
	}
	return []any{n.Labels, n.Spec.Taints, n.Spec.Unschedulable}
}

func (e *Evacuator) allNodes(ctx context.Context, _ client.Object) []reconcile.Request {
	var list corev1.NodeList
	if err := e.r.Client.List(ctx, &list, readOnly); err != nil {
		return nil
	}
	out := make([]reconcile.Request, 0, len(list.Items))
	for i := range list.Items {
		out = append(out, nodeRequest(list.Items[i].Name))
	}
	return out
}
