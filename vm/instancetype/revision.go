// SPDX-License-Identifier: Apache-2.0

package instancetype

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"
	api "kubevirt.io/api/instancetype"
	"kubevirt.io/api/instancetype/v1beta1"
)

// longestName is the length limit of names of objects.
const longestName = 253

// revisionName returns the name of the ControllerRevision of an object for a VM.
func revisionName(vm, object, version string, uid types.UID, generation string) string {
	return strings.Join([]string{vm, object, version, string(uid), generation}, "-")
}

// newRevision returns the ControllerRevision that stores an instance type or a preference for a VM.
func newRevision(vm *v1.VirtualMachine, object metav1.Object, origin map[string]string) (*appsv1.ControllerRevision, error) {
	kind := kindOf(object)
	labels := map[string]string{
		api.ControllerRevisionObjectGenerationLabel: fmt.Sprint(object.GetGeneration()), api.ControllerRevisionObjectKindLabel: kind,
		api.ControllerRevisionObjectNameLabel: object.GetName(), api.ControllerRevisionObjectUIDLabel: string(object.GetUID()),
		api.ControllerRevisionObjectVersionLabel: api.LatestVersion,
	}
	for key, value := range origin {
		labels[key] = value
	}
	name := revisionName(vm.Name, object.GetName(), api.LatestVersion, object.GetUID(), labels[api.ControllerRevisionObjectGenerationLabel])
	if len(name) > longestName {
		return nil, fmt.Errorf("metadata.name: the ControllerRevision %.40s... of %s %s would have a name of %d characters, at most %d are allowed; "+
			"use a shorter name for the VirtualMachine or the %s", name, kind, object.GetName(), len(name), longestName, kind)
	}
	raw, err := json.Marshal(stripped(object))
	if err != nil {
		return nil, fmt.Errorf("instancetype: encoding %s %s: %w", kind, object.GetName(), err)
	}
	return &appsv1.ControllerRevision{
		TypeMeta: metav1.TypeMeta{APIVersion: appsv1.SchemeGroupVersion.String(), Kind: KindRevision},
		ObjectMeta: metav1.ObjectMeta{Namespace: vm.Namespace, Name: name, Labels: labels,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(vm, v1.VirtualMachineGroupVersionKind)}},
		Data: runtime.RawExtension{Raw: raw},
	}, nil
}

// stripped returns the object without the metadata that does not belong to its content, and with its type.
func stripped(object metav1.Object) metav1.Object {
	types := metav1.TypeMeta{APIVersion: api.GroupName + "/" + api.LatestVersion, Kind: kindOf(object)}
	meta := metav1.ObjectMeta{Namespace: object.GetNamespace(), Name: object.GetName(), UID: object.GetUID(), Generation: object.GetGeneration()}
	switch o := object.(type) {
	case *v1beta1.VirtualMachineInstancetype:
		return &v1beta1.VirtualMachineInstancetype{TypeMeta: types, ObjectMeta: meta, Spec: o.Spec}
	case *v1beta1.VirtualMachineClusterInstancetype:
		return &v1beta1.VirtualMachineClusterInstancetype{TypeMeta: types, ObjectMeta: meta, Spec: o.Spec}
	case *v1beta1.VirtualMachinePreference:
		return &v1beta1.VirtualMachinePreference{TypeMeta: types, ObjectMeta: meta, Spec: o.Spec}
	case *v1beta1.VirtualMachineClusterPreference:
		return &v1beta1.VirtualMachineClusterPreference{TypeMeta: types, ObjectMeta: meta, Spec: o.Spec}
	default:
		return object
	}
}

// Decode returns the instance type or preference that a ControllerRevision holds, whatever release stored it: the
// object, or (v1alpha1) its version and its encoded spec.
func Decode(rev *appsv1.ControllerRevision) (metav1.Object, error) {
	raw, kind := rev.Data.Raw, rev.Labels[api.ControllerRevisionObjectKindLabel]
	if len(raw) == 0 {
		if object, ok := rev.Data.Object.(metav1.Object); ok && kindOf(object) != "" {
			return object, nil
		}
		return nil, undecodable(rev, fmt.Errorf("it is empty"))
	}
	var head struct {
		APIVersion string          `json:"apiVersion"`
		Kind       string          `json:"kind"`
		Spec       json.RawMessage `json:"spec"`
	}
	if err := json.Unmarshal(raw, &head); err != nil {
		return nil, undecodable(rev, err)
	}
	if head.Kind != "" {
		kind = head.Kind
	}
	group, version, _ := strings.Cut(head.APIVersion, "/")
	if head.APIVersion != "" && (group != api.GroupName || !known(version)) {
		return nil, undecodable(rev, fmt.Errorf("apiVersion %s is not supported", head.APIVersion))
	}
	if spec := bytes.TrimSpace(head.Spec); len(spec) > 0 && spec[0] == '"' {
		var inner []byte
		if err := json.Unmarshal(spec, &inner); err != nil {
			return nil, undecodable(rev, err)
		}
		raw = fmt.Appendf(nil, `{"metadata":{"name":%q},"spec":%s}`, rev.Labels[api.ControllerRevisionObjectNameLabel], inner)
	}
	return decode(rev, kind, raw)
}

// known reports whether the version is one whose fields the latest has too.
func known(version string) bool {
	return is(version, "v1alpha1", "v1alpha2", "v1beta1", "v1")
}

func decode(rev *appsv1.ControllerRevision, kind string, raw []byte) (metav1.Object, error) {
	var object metav1.Object
	switch kind {
	case KindInstancetype:
		object = &v1beta1.VirtualMachineInstancetype{}
	case KindClusterInstancetype:
		object = &v1beta1.VirtualMachineClusterInstancetype{}
	case KindPreference:
		object = &v1beta1.VirtualMachinePreference{}
	case KindClusterPreference:
		object = &v1beta1.VirtualMachineClusterPreference{}
	default:
		return nil, undecodable(rev, fmt.Errorf("kind %q is not supported", kind))
	}
	if err := json.Unmarshal(raw, object); err != nil {
		return nil, undecodable(rev, err)
	}
	return object, nil
}

func undecodable(rev *appsv1.ControllerRevision, err error) error {
	return fmt.Errorf("ControllerRevision %s/%s holds no instance type or preference: %w", rev.Namespace, rev.Name, err)
}

// outdated reports whether a revision holds an older version of the API than the latest.
func outdated(rev *appsv1.ControllerRevision) bool {
	return rev.Labels[api.ControllerRevisionObjectVersionLabel] != api.LatestVersion
}

// upgraded returns the revision in the latest version of the API.
func upgraded(vm *v1.VirtualMachine, rev *appsv1.ControllerRevision) (*appsv1.ControllerRevision, error) {
	object, err := Decode(rev)
	if err != nil {
		return nil, err
	}
	// A release that stored the spec alone left identity and generation in labels, at best.
	if name := rev.Labels[api.ControllerRevisionObjectNameLabel]; object.GetName() == "" {
		object.SetName(name)
	}
	origin := map[string]string{}
	for _, key := range []string{api.ControllerRevisionObjectGenerationLabel, api.ControllerRevisionObjectUIDLabel} {
		if value := rev.Labels[key]; value != "" {
			origin[key] = value
		}
	}
	if uid := origin[api.ControllerRevisionObjectUIDLabel]; uid != "" {
		object.SetUID(types.UID(uid))
	}
	if object.GetUID() == "" {
		return nil, fmt.Errorf("ControllerRevision %s/%s has no label %s", rev.Namespace, rev.Name, api.ControllerRevisionObjectUIDLabel)
	}
	return newRevision(vm, object, origin)
}

// sameContent reports whether two revisions hold equal specs.
func sameContent(a, b *appsv1.ControllerRevision) (bool, error) {
	first, err := Decode(a)
	if err != nil {
		return false, err
	}
	second, err := Decode(b)
	if err != nil {
		return false, err
	}
	var x, y Definitions
	put(&x, first, Ref{})
	put(&y, second, Ref{})
	return equality.Semantic.DeepEqual(x, y), nil
}
