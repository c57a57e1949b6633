// SPDX-License-Identifier: Apache-2.0

package dump

import (
	"encoding/json"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	v1 "kubevirt.io/api/core/v1"
	instancetypeapi "kubevirt.io/api/instancetype"
	instancetypev1 "kubevirt.io/api/instancetype/v1beta1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/vm/instancetype"
)

// ofMachine redacts a VM and what it refers to.
func (r *redactor) ofMachine(o client.Object) {
	switch o := o.(type) {
	case *v1.VirtualMachine:
		r.machine(&o.Spec)
	case *appsv1.ControllerRevision:
		r.revision(o)
	case *instancetypev1.VirtualMachineInstancetype:
		r.keep(o.Spec.Annotations)
	case *instancetypev1.VirtualMachineClusterInstancetype:
		r.keep(o.Spec.Annotations)
	case *instancetypev1.VirtualMachinePreference:
		r.keep(o.Spec.Annotations)
	case *instancetypev1.VirtualMachineClusterPreference:
		r.keep(o.Spec.Annotations)
	}
}

// machine removes what guest removes from the template of a VM, and the sources of its DataVolumes.
func (r *redactor) machine(spec *v1.VirtualMachineSpec) {
	if t := spec.Template; t != nil {
		r.annotations(&t.ObjectMeta)
		t.ObjectMeta.ManagedFields = nil
		r.vmi(&t.Spec)
	}
	for i := range spec.DataVolumeTemplates {
		t := &spec.DataVolumeTemplates[i]
		r.annotations(t)
		t.ManagedFields, t.Spec = nil, cdiv1.DataVolumeSpec{}
	}
}

// revision redacts what a ControllerRevision holds: the spec of a VM, an instance type or a preference. Anything else is removed.
func (r *redactor) revision(rev *appsv1.ControllerRevision) {
	held := rev.Data.Raw
	rev.Data = runtime.RawExtension{}
	if rev.Labels[instancetypeapi.ControllerRevisionObjectKindLabel] != "" {
		whole := rev.DeepCopy()
		whole.Data.Raw = held
		if object, err := instancetype.Decode(whole); err == nil {
			r.hold(rev, object)
		}
		return
	}
	var started struct {
		Spec v1.VirtualMachineSpec `json:"spec"`
	}
	if json.Unmarshal(held, &started) == nil {
		r.machine(&started.Spec)
		if text, err := json.Marshal(started); err == nil {
			rev.Data.Raw = text
		}
	}
}

// hold stores the redacted instance type or preference in a revision.
func (r *redactor) hold(rev *appsv1.ControllerRevision, object metav1.Object) {
	o, is := object.(client.Object)
	if !is {
		return
	}
	kind := o.GetObjectKind().GroupVersionKind()
	o = r.redacted(o)
	if kind.Kind == "" { // an old release stored the spec alone
		kind = instancetypev1.SchemeGroupVersion.WithKind(rev.Labels[instancetypeapi.ControllerRevisionObjectKindLabel])
	}
	o.GetObjectKind().SetGroupVersionKind(kind)
	if text, err := json.Marshal(o); err == nil {
		rev.Data.Raw = text
	}
}
