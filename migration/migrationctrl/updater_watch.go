// SPDX-License-Identifier: Apache-2.0

package migrationctrl

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/virtloom/virtloom/migration/evacuation"
)

// Indexes of the Updater, besides those of the Reconciler: objects that concern it, all under the
// one value yes.
const (
	vmiNeedsUpdate    = "migrationctrl.guestNeedsUpdate"
	migrationOfUpdate = "migrationctrl.migrationOfUpdate"
	migrationRunning  = "migrationctrl.migrationRunning"
)

// updateSettle is how long changes are collected before a pass over all VMIs.
const updateSettle = time.Second

func (u *Updater) index(ctx context.Context, ix client.FieldIndexer) error {
	value := func(is bool) []string {
		if is {
			return []string{yes}
		}
		return nil
	}
	image := u.r.LauncherImage
	for _, i := range []struct {
		name string
		of   client.Object
		by   client.IndexerFunc
	}{
		{vmiNeedsUpdate, &v1.VirtualMachineInstance{}, func(o client.Object) []string {
			return value(evacuation.NeedsUpdate(o.(*v1.VirtualMachineInstance), image))
		}},
		{migrationOfUpdate, &v1.VirtualMachineInstanceMigration{}, func(o client.Object) []string {
			m := o.(*v1.VirtualMachineInstanceMigration)
			return value(!m.IsFinal() && metav1.HasAnnotation(m.ObjectMeta, v1.WorkloadUpdateMigrationAnnotation))
		}},
		{migrationRunning, &v1.VirtualMachineInstanceMigration{}, func(o client.Object) []string {
			return value(o.(*v1.VirtualMachineInstanceMigration).IsRunning())
		}},
	} {
		if err := ix.IndexField(ctx, i.of, i.name, i.by); err != nil {
			return fmt.Errorf("migrationctrl: index %s: %w", i.name, err)
		}
	}
	return nil
}

// watch declares every kind of object that can change a decision. Most changes of most objects wake
// nothing.
func (u *Updater) watch(b *builder.Builder) *builder.Builder {
	image := u.r.LauncherImage
	return u.gate.Attach(b).
		Watches(&v1.VirtualMachineInstance{}, toWorkloads(func(o client.Object) bool {
			vmi, ok := o.(*v1.VirtualMachineInstance)
			return ok && evacuation.NeedsUpdate(vmi, image)
		}), builder.WithPredicates(changed(aspectsOfVMI))).
		Watches(&v1.VirtualMachineInstanceMigration{}, toWorkloads(nil), builder.WithPredicates(changed(aspectsOfMigration))).
		Watches(&corev1.Pod{}, toWorkloads(ofVMI), builder.WithPredicates(changed(aspectsOfPod))).
		Watches(&corev1.Node{}, u.ofNodes(), builder.WithPredicates(changed(aspectsOfNode))).
		Watches(&v1.KubeVirt{}, toWorkloads(nil))
}

// ofNodes maps Nodes, which always concern it, and records that they have changed.
func (u *Updater) ofNodes() handler.EventHandler {
	return toWorkloads(func(client.Object) bool {
		u.nodes.changed()
		return true
	})
}

// ofVMI reports whether the object is a VMI's.
func ofVMI(o client.Object) bool {
	c := metav1.GetControllerOf(o)
	return c != nil && c.Kind == vmiKind
}

// toWorkloads maps events to the one key, updates if either object concerns it; nil means that all
// do.
func toWorkloads(concerns func(client.Object) bool) handler.EventHandler {
	add := func(q requestQueue, all ...client.Object) {
		for _, o := range all {
			if concerns == nil || concerns(o) {
				q.AddAfter(reconcile.Request{NamespacedName: workloads}, updateSettle)
				return
			}
		}
	}
	return handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, q requestQueue) { add(q, e.Object) },
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, q requestQueue) { add(q, e.ObjectOld, e.ObjectNew) },
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, q requestQueue) { add(q, e.Object) },
	}
}
