// SPDX-License-Identifier: Apache-2.0

package instancetype

import (
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"
	api "kubevirt.io/api/instancetype"
	"kubevirt.io/api/instancetype/v1beta1"
)

// Reasons of an [Error].
const (
	ReasonFailedFindInstancetype = "FailedFindInstancetype"
	ReasonFailedFindPreference   = "FailedFindPreference"
	reasonFailedCreate           = "FailedCreate"
)

// Error is a problem with the reason that condition Failure of the VM has.
type Error struct{ Reason, Message string }

// Error returns the message.
func (e *Error) Error() string { return e.Message }

// Definitions are the instance type and the preference of a VM; nil where the VM has none.
type Definitions struct {
	Instancetype *v1beta1.VirtualMachineInstancetypeSpec
	Preference   *v1beta1.VirtualMachinePreferenceSpec
	// InstancetypeFrom and PreferenceFrom are the objects they were read from.
	InstancetypeFrom, PreferenceFrom Ref
}

// Find returns the instance type and the preference of a VM: those of the revision that the matcher names, else those of
// the revision recorded in the status, else the current ones. The refs are what must be read before the result counts.
func Find(vm *v1.VirtualMachine, objects Objects) (Definitions, []Ref, error) {
	var d Definitions
	r := &reading{objects: objects}
	for _, m := range matchers(vm) {
		object, from, err := r.find(m, vm)
		if err != nil {
			return Definitions{}, r.missing, &Error{Reason: m.reason, Message: err.Error()}
		}
		if object == nil {
			continue
		}
		put(&d, object, from)
	}
	return d, r.missing, nil
}

// matcher is a matcher of either kind.
type matcher struct {
	field, what, reason                  string
	name, kind, revision, infer          string
	policy                               *v1.InferFromVolumeFailurePolicy
	stored                               *v1.InstancetypeStatusRef
	namespaced, cluster                  string
	namespacedSpellings, clusterSpelling []string
}

// matchers returns the matchers that a VM has.
func matchers(vm *v1.VirtualMachine) (all []matcher) {
	if m := vm.Spec.Instancetype; m != nil {
		all = append(all, matcher{field: "spec.instancetype", what: "InstancetypeMatcher", reason: ReasonFailedFindInstancetype,
			name: m.Name, kind: m.Kind, revision: m.RevisionName, infer: m.InferFromVolume, policy: m.InferFromVolumeFailurePolicy,
			stored: vm.Status.InstancetypeRef, namespaced: KindInstancetype, cluster: KindClusterInstancetype,
			namespacedSpellings: []string{api.SingularResourceName, api.PluralResourceName},
			clusterSpelling:     []string{"", api.ClusterSingularResourceName, api.ClusterPluralResourceName}})
	}
	if m := vm.Spec.Preference; m != nil {
		all = append(all, matcher{field: "spec.preference", what: "PreferenceMatcher", reason: ReasonFailedFindPreference,
			name: m.Name, kind: m.Kind, revision: m.RevisionName, infer: m.InferFromVolume, policy: m.InferFromVolumeFailurePolicy,
			stored: vm.Status.PreferenceRef, namespaced: KindPreference, cluster: KindClusterPreference,
			namespacedSpellings: []string{api.SingularPreferenceResourceName, api.PluralPreferenceResourceName},
			clusterSpelling:     []string{"", api.ClusterSingularPreferenceResourceName, api.ClusterPluralPreferenceResourceName}})
	}
	return all
}

// forInstancetype reports which of the two it is.
func (m matcher) forInstancetype() bool { return m.namespaced == KindInstancetype }

// live returns the current object.
func (m matcher) live(namespace string) (Ref, error) {
	switch {
	case is(m.kind, m.namespacedSpellings...):
		return Ref{Kind: m.namespaced, Namespace: namespace, Name: m.name}, nil
	case is(m.kind, m.clusterSpelling...):
		return Ref{Kind: m.cluster, Name: m.name}, nil
	default:
		return Ref{}, fmt.Errorf("got unexpected kind in %s: %s", m.what, m.kind)
	}
}

// find returns the object that a matcher means, nil while something must be read first.
func (r *reading) find(m matcher, vm *v1.VirtualMachine) (metav1.Object, Ref, error) {
	if m.revision != "" {
		return r.revision(m, vm, m.revision, m.field+".revisionName")
	}
	if m.stored != nil && m.stored.ControllerRevisionRef != nil && m.stored.ControllerRevisionRef.Name != "" {
		ref := Ref{Kind: KindRevision, Namespace: vm.Namespace, Name: m.stored.ControllerRevisionRef.Name}
		object, read := r.get(ref)
		if !read {
			return nil, ref, nil
		}
		if rev, ok := as[appsv1.ControllerRevision](object); ok && m.owns(vm, rev) {
			return decodedFor(m, ref, rev, m.field)
		}
	}
	return r.current(m, vm.Namespace)
}

// current returns the object that a matcher names.
func (r *reading) current(m matcher, namespace string) (metav1.Object, Ref, error) {
	ref, err := m.live(namespace)
	if err != nil {
		return nil, ref, err
	}
	object, read := r.get(ref)
	if read && object == nil {
		return nil, ref, fmt.Errorf("%s not found; create it, or correct %s", ref, m.field)
	}
	if read && !m.fits(object) {
		return nil, ref, fmt.Errorf("%s is a %T; %s needs a %s", ref, object, m.field, m.namespaced)
	}
	return object, ref, nil
}

// owns reports whether a revision is the VM's own, of the object that the matcher names.
func (m matcher) owns(vm *v1.VirtualMachine, rev *appsv1.ControllerRevision) bool {
	return metav1.IsControlledBy(rev, vm) && rev.Labels[api.ControllerRevisionObjectNameLabel] == m.name
}

// revision returns the content of the revision with a name.
func (r *reading) revision(m matcher, vm *v1.VirtualMachine, name, field string) (metav1.Object, Ref, error) {
	ref := Ref{Kind: KindRevision, Namespace: vm.Namespace, Name: name}
	object, read := r.get(ref)
	if !read {
		return nil, ref, nil
	}
	rev, ok := as[appsv1.ControllerRevision](object)
	if !ok {
		return nil, ref, fmt.Errorf("%s not found; correct %s, or remove it to use the current object", ref, field)
	}
	return decodedFor(m, ref, rev, field)
}

// decodedFor returns the content of a revision, which must be what the matcher selects.
func decodedFor(m matcher, ref Ref, rev *appsv1.ControllerRevision, field string) (metav1.Object, Ref, error) {
	decoded, err := Decode(rev)
	if err == nil && !m.fits(decoded) {
		err = fmt.Errorf("%s holds a %s, not a %s; correct %s", ref, kindOf(decoded), m.namespaced, field)
	}
	return decoded, ref, err
}

// fits reports whether the object is of one of the kinds that the matcher selects.
func (m matcher) fits(object metav1.Object) bool {
	kind := kindOf(object)
	return kind == m.namespaced || kind == m.cluster
}

// kindOf returns the kind of a decoded object; empty for a foreign one.
func kindOf(object metav1.Object) string {
	switch object.(type) {
	case *v1beta1.VirtualMachineInstancetype:
		return KindInstancetype
	case *v1beta1.VirtualMachineClusterInstancetype:
		return KindClusterInstancetype
	case *v1beta1.VirtualMachinePreference:
		return KindPreference
	case *v1beta1.VirtualMachineClusterPreference:
		return KindClusterPreference
	default:
		return ""
	}
}

// put stores the spec of an object in the definitions.
func put(d *Definitions, object metav1.Object, from Ref) {
	switch o := object.(type) {
	case *v1beta1.VirtualMachineInstancetype:
		d.Instancetype, d.InstancetypeFrom = o.Spec.DeepCopy(), from
	case *v1beta1.VirtualMachineClusterInstancetype:
		d.Instancetype, d.InstancetypeFrom = o.Spec.DeepCopy(), from
	case *v1beta1.VirtualMachinePreference:
		d.Preference, d.PreferenceFrom = o.Spec.DeepCopy(), from
	case *v1beta1.VirtualMachineClusterPreference:
		d.Preference, d.PreferenceFrom = o.Spec.DeepCopy(), from
	}
}
