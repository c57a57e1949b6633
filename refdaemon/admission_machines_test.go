// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	webhookadmission "sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

// An update of a VM that is being deleted, such as the removal of one of its finalizers, is admitted as it is.
func TestMachineAdmission_UpdateWhileDeleted(t *testing.T) {
	a, scheme := admissionOf(t, interceptor.Funcs{})
	vm := &v1.VirtualMachine{TypeMeta: metav1.TypeMeta{APIVersion: v1.GroupVersion.String(), Kind: "VirtualMachine"}, ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: "vm", Labels: map[string]string{"a": "b"}, Finalizers: []string{"example.com/hold"},
		DeletionTimestamp: new(metav1.NewTime(time.Unix(1e9, 0))),
	}}
	vm.Spec.Template = &v1.VirtualMachineInstanceTemplateSpec{}
	raw, err := json.Marshal(vm)
	if err != nil {
		t.Fatal(err)
	}
	answer := webhookadmission.WithDefaulter(scheme, &machineAdmission{admission: a}).Handle(t.Context(), webhookadmission.Request{AdmissionRequest: admissionv1.AdmissionRequest{
		Operation: admissionv1.Update, Object: runtime.RawExtension{Raw: raw}, OldObject: runtime.RawExtension{Raw: raw},
	}})
	if !answer.Allowed || len(answer.Patches) > 0 {
		t.Errorf("allowed %v, patches %v", answer.Allowed, answer.Patches)
	}
}
