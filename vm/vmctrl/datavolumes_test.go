// SPDX-License-Identifier: Apache-2.0

package vmctrl_test

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// withDisk gives a VM a disk from a DataVolume of a template.
func withDisk(spec cdiv1.DataVolumeSpec) func(*v1.VirtualMachine) {
	return func(vm *v1.VirtualMachine) {
		vm.Spec.DataVolumeTemplates = []v1.DataVolumeTemplateSpec{{ObjectMeta: metav1.ObjectMeta{Name: "disk"}, Spec: spec}}
		vm.Spec.Template.Spec.Volumes = []v1.Volume{{Name: "disk", VolumeSource: v1.VolumeSource{DataVolume: &v1.DataVolumeSource{Name: "disk"}}}}
	}
}

// disk returns the DataVolume of a VM with a disk; nil if there is none.
func (w *world) disk() *cdiv1.DataVolume {
	w.t.Helper()
	dv := &cdiv1.DataVolume{}
	switch err := w.Get(w.t.Context(), client.ObjectKey{Namespace: w.ns, Name: "disk"}, dv); {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		w.t.Fatal(err)
	}
	return dv
}

func (w *world) awaitDisk(vm *v1.VirtualMachine) (dv *cdiv1.DataVolume) {
	w.t.Helper()
	w.eventually(func() string {
		if dv = w.disk(); dv == nil {
			return "there is no DataVolume: " + w.describe(vm)
		}
		return ""
	})
	return dv
}

func provisioned(w *world) {
	w.start()
	vm := w.machine("vm", v1.RunStrategyAlways, withDisk(cdiv1.DataVolumeSpec{Source: &cdiv1.DataVolumeSource{Blank: &cdiv1.DataVolumeBlankImage{}}}))
	dv := w.awaitDisk(vm)
	if !metav1.IsControlledBy(dv, vm) {
		w.t.Errorf("the DataVolume has the owners %v", dv.OwnerReferences)
	}
	w.awaitStatus(vm, v1.VirtualMachineStatusProvisioning)
	w.awaitEvent(vm, "SuccessfulDataVolumeCreate", "disk")
	if w.vmi(vm) != nil {
		w.t.Error("the VMI did not wait for its DataVolume")
	}
	w.change(dv, false, func() { dv.Status.Phase = cdiv1.Succeeded })
	vmi := w.awaitVMI(vm)
	w.change(vm, false, func() { vm.Spec.RunStrategy = new(v1.RunStrategyHalted) })
	w.ended(vm, vmi)
	w.awaitStatus(vm, v1.VirtualMachineStatusStopped)
	if now := w.disk(); now == nil || now.UID != dv.UID {
		w.t.Errorf("the DataVolume became %+v", now)
	}
}

// cloned copies a claim of another namespace, which the tenant's own rights have to allow: those of the controller do not count.
func cloned(w *world) {
	other := w.cluster.world(w.t)
	source := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: other.ns, Name: "golden"}, Spec: corev1.PersistentVolumeClaimSpec{
		AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Mi")}},
	}}
	w.create(source)
	w.start()
	for name, spec := range map[string]cdiv1.DataVolumeSpec{
		"claim":     {Source: &cdiv1.DataVolumeSource{PVC: &cdiv1.DataVolumeSourcePVC{Namespace: other.ns, Name: "golden"}}},
		"reference": {SourceRef: &cdiv1.DataVolumeSourceRef{Kind: "DataSource", Name: "golden"}},
	} {
		w.create(&cdiv1.DataSource{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "golden"}, Spec: cdiv1.DataSourceSpec{
			Source: cdiv1.DataSourceSource{PVC: &cdiv1.DataVolumeSourcePVC{Namespace: other.ns, Name: "golden"}}}})
		vm := w.machine("from-"+name, v1.RunStrategyAlways, withDisk(spec))
		w.awaitFailure(vm, "FailedCreate", fmt.Sprintf("system:serviceaccount:%s:default has insufficient permissions in clone source namespace %s", w.ns, other.ns))
		w.awaitEvent(vm, "UnauthorizedDataVolumeCreate", "disk")
		if w.disk() != nil {
			w.t.Errorf("%s: the controller lent its rights", name)
		}
		role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: other.ns, Name: "clones"}, Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{cdiv1.SchemeGroupVersion.Group}, Resources: []string{"datavolumes/source"}, Verbs: []string{"create"}}}}
		w.create(role)
		binding := &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: other.ns, Name: "clones"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "clones"},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: w.ns, Name: "default"}}}
		w.create(binding)
		w.eventually(func() string { // a right has no event: it is looked for once a minute, or with any other
			w.change(vm, false, func() {
				metav1.SetMetaDataAnnotation(&vm.ObjectMeta, "example.test/poked", fmt.Sprint(metav1.Now().UnixNano()))
			})
			if w.disk() == nil {
				return w.describe(vm)
			}
			return ""
		})
		if s := w.disk().Spec; s.SourceRef != nil || s.Source.PVC == nil || s.Source.PVC.Namespace != other.ns || s.Source.PVC.Name != "golden" {
			w.t.Errorf("%s: the DataVolume copies %+v, %+v", name, s.Source, s.SourceRef)
		}
		w.delete(vm)
		w.delete(w.disk())
		w.delete(binding)
		w.delete(role)
		w.delete(&cdiv1.DataSource{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "golden"}})
	}
}
