// SPDX-License-Identifier: Apache-2.0

package webhook_test

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	v1 "kubevirt.io/api/core/v1"
	"kubevirt.io/api/instancetype/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/internal/rig/rigtest"
)

func machine(name string, edit ...func(*v1.VirtualMachine)) *v1.VirtualMachine {
	vm := &v1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: name}, Spec: v1.VirtualMachineSpec{
		RunStrategy: ptr.To(v1.RunStrategyHalted), Template: &v1.VirtualMachineInstanceTemplateSpec{Spec: guest(name, "64Mi").Spec}}}
	for _, e := range edit {
		e(vm)
	}
	return vm
}

// testMachines goes through the life of VirtualMachines; the rules in detail are tested with package vm/admit.
func (w *world) testMachines(t *testing.T) {
	bare := func(vm *v1.VirtualMachine) { vm.Spec.RunStrategy = nil }
	must(t, rigtest.Poll(t.Context(), patience, func(ctx context.Context) (bool, error) {
		err := w.Create(ctx, machine("probe", bare), client.DryRunAll)
		return apierrors.IsInvalid(err) && strings.Contains(err.Error(), "spec.runStrategy: Required value: RunStrategy must be specified"), nil
	}))

	// The type is there for as long as the request needs it, and named by a label of the volume.
	small := &v1beta1.VirtualMachineInstancetype{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "small"}}
	small.Spec.CPU.Guest, small.Spec.Memory.Guest = 1, resource.MustParse("64Mi")
	must(t, w.Create(t.Context(), small))
	must(t, w.Create(t.Context(), &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "root", Labels: map[string]string{
			"instancetype.kubevirt.io/default-instancetype": "small", "instancetype.kubevirt.io/default-instancetype-kind": "VirtualMachineInstancetype"}},
		Spec: corev1.PersistentVolumeClaimSpec{AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Mi")}}},
	}))
	inferred := func(vm *v1.VirtualMachine) {
		vm.Spec.Instancetype = &v1.InstancetypeMatcher{InferFromVolume: "root"}
		source := &v1.PersistentVolumeClaimVolumeSource{}
		source.ClaimName = "root"
		vm.Spec.Template.Spec = v1.VirtualMachineInstanceSpec{Volumes: []v1.Volume{{Name: "root", VolumeSource: v1.VolumeSource{PersistentVolumeClaim: source}}}}
	}
	vm := machine("inferred", inferred)
	must(t, w.Create(t.Context(), vm))
	if m := vm.Spec.Instancetype; m.Name != "small" || m.InferFromVolume != "" || vm.Spec.Template.Spec.Architecture != "amd64" || vm.Spec.Template.Spec.Domain.Firmware.UUID == "" {
		t.Errorf("the VM is stored with %+v and %+v", m, vm.Spec.Template.Spec)
	}
	if err := w.Create(t.Context(), machine("missing", func(vm *v1.VirtualMachine) {
		vm.Spec.Instancetype = &v1.InstancetypeMatcher{Name: "large"}
	})); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "spec.instancetype") || !strings.Contains(err.Error(), "large") {
		t.Errorf("an instance type that is not there: %v", err)
	}
	if err := w.Create(t.Context(), machine("forged", func(vm *v1.VirtualMachine) {
		vm.Spec.Template.ObjectMeta.Labels = map[string]string{v1.NodeNameLabel: "sim-0"}
	})); err == nil || !strings.Contains(err.Error(), v1.NodeNameLabel) {
		t.Errorf("a reserved label in the template: %v", err)
	}

	// A status by which a running VMI would become invalid is refused, too. The controller is not asked about its own.
	patch := []byte(`{"status":{"volumeRequests":[{}]}}`)
	if err := w.Status().Patch(t.Context(), vm, client.RawPatch("application/merge-patch+json", patch)); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "status.volumeRequests[0]") {
		t.Errorf("a volume request without options: %v", err)
	}
	must(t, w.Delete(t.Context(), vm))
}
