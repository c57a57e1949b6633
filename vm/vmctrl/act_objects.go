// SPDX-License-Identifier: Apache-2.0

package vmctrl

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/vm"
)

// The reference to the VM has blockOwnerDeletion, which requires a permission of its own where
// OwnerReferencesPermissionEnforcement is enabled.
//
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachines/finalizers,verbs=update
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstances,verbs=create;get
// +kubebuilder:rbac:groups=apps,resources=controllerrevisions,verbs=create;get
// +kubebuilder:rbac:groups=cdi.kubevirt.io,resources=datavolumes,verbs=create;get

// create creates an object that the VM controls. One that exists under this name and is the VM's own was created by an earlier
// pass, whose answer or event has not arrived.
func (r actor) create(ctx context.Context, g *gathered, o client.Object) error {
	err := r.Gate.For(g.owner).Create(ctx, o)
	switch {
	case meta.IsNoMatchError(err):
		return fmt.Errorf("the cluster does not serve %T; install what defines it: %w", o, err)
	case !apierrors.IsAlreadyExists(err):
		return err
	}
	live, _ := o.DeepCopyObject().(client.Object)
	if err := r.APIReader.Get(ctx, client.ObjectKeyFromObject(o), live); err != nil {
		return fmt.Errorf("read what exists: %w", err)
	}
	if !metav1.IsControlledBy(live, g.VM) {
		return fmt.Errorf("%w, and the VirtualMachine does not control it; delete it", err)
	}
	return nil
}

// createVMI creates the VMI, which the status then follows.
func (r actor) createVMI(ctx context.Context, g *gathered, vmi *v1.VirtualMachineInstance) error {
	err := r.create(ctx, g, vmi)
	if err == nil && vmi.UID != "" { // otherwise it existed
		g.created = vmi
	}
	return err
}

// CDI checks the rights of whoever creates a DataVolume, too.
//
// +kubebuilder:rbac:groups=cdi.kubevirt.io,resources=datavolumes/source,verbs=create

// createDataVolume creates a DataVolume with the source that was checked in place of a reference to it: a DataSource may have
// been changed since.
func (r actor) createDataVolume(ctx context.Context, g *gathered, a vm.Action) error {
	dv := a.DataVolume.DeepCopy()
	if source := g.copied[dv.Name]; source != nil {
		dv.Spec.Source, dv.Spec.SourceRef = source, nil
	}
	return r.create(ctx, g, dv)
}

// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstances,verbs=patch
// +kubebuilder:rbac:groups=cdi.kubevirt.io,resources=datavolumes,verbs=patch

// adopt makes the VM the controller of an object that has none.
func (r actor) adopt(ctx context.Context, g *gathered, o client.Object) error {
	owned, _ := o.DeepCopyObject().(client.Object)
	owned.SetOwnerReferences(append(owned.GetOwnerReferences(), *metav1.NewControllerRef(g.VM, v1.VirtualMachineGroupVersionKind)))
	return r.patch(ctx, g, o, owned)
}

// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims,verbs=patch

// patch sends what changes of an object, which must not have changed since it was read.
func (r actor) patch(ctx context.Context, g *gathered, was, want client.Object) error {
	next, _ := want.DeepCopyObject().(client.Object)
	err := r.Gate.For(g.owner).Patch(ctx, next, client.MergeFromWithOptions(was, client.MergeFromWithOptimisticLock{}))
	if apierrors.IsNotFound(err) {
		return errOutdated // its deletion is an event
	}
	return err
}

// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstances,verbs=delete
// +kubebuilder:rbac:groups=apps,resources=controllerrevisions,verbs=delete

// delete deletes exactly the object that was read. That it is gone is a success.
func (r actor) delete(ctx context.Context, g *gathered, o client.Object) error {
	doomed, _ := o.DeepCopyObject().(client.Object)
	if err := r.Gate.For(g.owner).Delete(ctx, doomed); err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return err
	}
	return nil
}

// deleteRevision deletes a revision that the VM controls.
func (r actor) deleteRevision(ctx context.Context, g *gathered, a vm.Action) error {
	return r.delete(ctx, g, &appsv1.ControllerRevision{ObjectMeta: metav1.ObjectMeta{Namespace: g.VM.Namespace, Name: a.Name, UID: a.If.UID}})
}
