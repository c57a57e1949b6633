// SPDX-License-Identifier: Apache-2.0

package instancetype_test

import (
	"encoding/json"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	v1 "kubevirt.io/api/core/v1"
	api "kubevirt.io/api/instancetype"
	"kubevirt.io/api/instancetype/v1beta1"

	"github.com/virtloom/virtloom/vm/instancetype"
)

type (
	typeSpec = v1beta1.VirtualMachineInstancetypeSpec
	prefSpec = v1beta1.VirtualMachinePreferenceSpec
	objects  = instancetype.Objects
	ref      = instancetype.Ref
)

var (
	largeRef  = ref{Kind: instancetype.KindClusterInstancetype, Name: "large"}
	linuxRef  = ref{Kind: instancetype.KindClusterPreference, Name: "linux"}
	revRef    = ref{Kind: instancetype.KindRevision, Namespace: "ns", Name: "vm-large-v1beta1-uid-large-3"}
	linuxRev  = ref{Kind: instancetype.KindRevision, Namespace: "ns", Name: "vm-linux-v1beta1-uid-linux-2"}
	chosenRef = ref{Kind: instancetype.KindRevision, Namespace: "ns", Name: "chosen"}
)

// newVM returns a VM with a matcher for the cluster-wide instance type large.
func newVM(change ...func(*v1.VirtualMachine)) *v1.VirtualMachine {
	vm := &v1.VirtualMachine{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "vm", UID: "uid-vm"},
		Spec: v1.VirtualMachineSpec{Instancetype: &v1.InstancetypeMatcher{Name: "large"},
			Template: &v1.VirtualMachineInstanceTemplateSpec{}},
	}
	for _, c := range change {
		c(vm)
	}
	return vm
}

func withPreference(vm *v1.VirtualMachine) {
	vm.Spec.Preference = &v1.PreferenceMatcher{Name: "linux"}
}

func large(guest uint32, memory string) *v1beta1.VirtualMachineClusterInstancetype {
	return &v1beta1.VirtualMachineClusterInstancetype{
		ObjectMeta: metav1.ObjectMeta{Name: "large", UID: "uid-large", Generation: 3, Labels: map[string]string{"a": "b"}, ResourceVersion: "9"},
		Spec:       typeSpec{CPU: v1beta1.CPUInstancetype{Guest: guest}, Memory: v1beta1.MemoryInstancetype{Guest: resource.MustParse(memory)}},
	}
}

func linux(spec prefSpec) *v1beta1.VirtualMachineClusterPreference {
	return &v1beta1.VirtualMachineClusterPreference{ObjectMeta: metav1.ObjectMeta{Name: "linux", UID: "uid-linux", Generation: 2}, Spec: spec}
}

// revisionOf returns a revision of the VM that holds an object in a version.
func revisionOf(t *testing.T, vm *v1.VirtualMachine, name, version string, object metav1.Object) *appsv1.ControllerRevision {
	t.Helper()
	raw, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	kind := instancetype.KindClusterInstancetype
	if _, ok := object.(*v1beta1.VirtualMachineClusterPreference); ok {
		kind = instancetype.KindClusterPreference
	}
	return &appsv1.ControllerRevision{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(vm, v1.VirtualMachineGroupVersionKind)},
			Labels: map[string]string{api.ControllerRevisionObjectNameLabel: object.GetName(), api.ControllerRevisionObjectKindLabel: kind,
				api.ControllerRevisionObjectVersionLabel: version, api.ControllerRevisionObjectUIDLabel: string(object.GetUID()),
				api.ControllerRevisionObjectGenerationLabel: "3"}},
		Data: runtime.RawExtension{Raw: raw},
	}
}

func quantity(s string) *resource.Quantity {
	q := resource.MustParse(s)
	return &q
}

func requests(name corev1.ResourceName, s string) corev1.ResourceList {
	return corev1.ResourceList{name: resource.MustParse(s)}
}
