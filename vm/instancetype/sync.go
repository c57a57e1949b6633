// SPDX-License-Identifier: Apache-2.0

package instancetype

import (
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"
)

// Policy is what becomes of the matchers of a VM. (KubeVirt: instancetype.referencePolicy)
type Policy string

// Policies of a cluster; empty means Reference.
const (
	// Reference keeps the matchers, and stores revisions of the objects they name.
	Reference Policy = "reference"
	// Expand writes the objects into a VM that has no revisions yet, and removes the matchers.
	Expand Policy = "expand"
	// ExpandAll does so for all VMs.
	ExpandAll Policy = "expandAll"
)

// Change is what must be written for the matchers of a VM.
type Change struct {
	// Definitions are those of the VM now.
	Definitions Definitions
	// Create are the ControllerRevisions to create first.
	Create []*appsv1.ControllerRevision
	// InstancetypeRef and PreferenceRef are the refs that the status must have next.
	InstancetypeRef, PreferenceRef *v1.InstancetypeStatusRef
	// Expanded is the VM without matchers that replaces the VM; nil unless the policy asks for it.
	Expanded *v1.VirtualMachine
	// Obsolete are revisions of the VM that nothing in Expanded refers to; they are deleted once that is stored.
	Obsolete []Ref
}

// Sync decides about the revisions of a VM, or its expansion. The refs must be read before the change counts; an error is of type
// *[Error].
func Sync(vm *v1.VirtualMachine, objects Objects, policy Policy, c Cluster) (Change, []Ref, error) {
	change := Change{InstancetypeRef: vm.Status.InstancetypeRef, PreferenceRef: vm.Status.PreferenceRef}
	if vm.Spec.Instancetype == nil && vm.Spec.Preference == nil {
		return change, nil, nil
	}
	renewed := resetStale(vm)
	found, missing, err := Find(renewed, objects)
	if err != nil || len(missing) > 0 {
		return change, missing, err
	}
	change.Definitions = found
	if policy == ExpandAll || policy == Expand && !hasRevision(vm) {
		return change.expand(vm, c)
	}
	return change.store(renewed, &reading{objects: objects})
}

// store adds the revisions of both matchers.
func (c Change) store(vm *v1.VirtualMachine, r *reading) (Change, []Ref, error) {
	// A template that conflicts gets no revisions: they would freeze what cannot be used.
	if vm.Spec.Template != nil {
		if err := ToTemplate(vm.Spec.Template.DeepCopy(), c.Definitions); err != nil {
			return c, nil, storing("storing", err)
		}
	}
	for _, m := range matchers(vm) {
		ref, create, err := r.store(vm, m)
		if err != nil {
			return c, nil, err
		}
		c.Create = append(c.Create, create...)
		if m.forInstancetype() {
			c.InstancetypeRef = ref
		} else {
			c.PreferenceRef = ref
		}
	}
	return c, r.missing, nil
}

// storing returns an error of the given operation.
func storing(operation string, err error) error {
	return &Error{Reason: reasonFailedCreate,
		Message: fmt.Sprintf("error encountered while %s instancetype.kubevirt.io controllerRevisions: %v", operation, err)}
}

// hasRevision reports whether the status refers to a revision.
func hasRevision(vm *v1.VirtualMachine) bool {
	return revisionOf(vm.Status.InstancetypeRef) != "" || revisionOf(vm.Status.PreferenceRef) != ""
}

func revisionOf(ref *v1.InstancetypeStatusRef) string {
	if ref == nil || ref.ControllerRevisionRef == nil {
		return ""
	}
	return ref.ControllerRevisionRef.Name
}

// resetStale returns the VM with refs in its status that follow its matchers: a matcher that names something else
// has no revision yet.
func resetStale(vm *v1.VirtualMachine) *v1.VirtualMachine {
	next := vm.DeepCopy()
	for _, m := range matchers(vm) {
		ref := &v1.InstancetypeStatusRef{Name: m.name, Kind: m.kind, InferFromVolume: m.infer, InferFromVolumeFailurePolicy: m.policy}
		if old := m.stored; old != nil && old.Name == m.name && old.Kind == m.kind && old.InferFromVolume == m.infer {
			ref.ControllerRevisionRef = old.ControllerRevisionRef
		}
		if m.revision != "" {
			ref.ControllerRevisionRef = &v1.ControllerRevisionRef{Name: m.revision}
		}
		if m.forInstancetype() {
			next.Status.InstancetypeRef = ref
		} else {
			next.Status.PreferenceRef = ref
		}
	}
	return next
}

// store returns the ref of one matcher with a revision, and the revisions that it needs.
func (r *reading) store(vm *v1.VirtualMachine, m matcher) (*v1.InstancetypeStatusRef, []*appsv1.ControllerRevision, error) {
	ref := m.stored.DeepCopy()
	if name := revisionOf(ref); name != "" {
		object, read := r.get(Ref{KindRevision, vm.Namespace, name})
		rev, ok := as[appsv1.ControllerRevision](object)
		switch {
		case !read:
			return ref, nil, nil
		case ok && (m.revision != "" || m.owns(vm, rev)):
			return r.upgrade(vm, ref, rev)
		}
	}
	live, err := m.live(vm.Namespace)
	if err != nil {
		return nil, nil, &Error{Reason: m.reason, Message: err.Error()}
	}
	object, read := r.get(live)
	if !read {
		return ref, nil, nil
	}
	if object == nil || !m.fits(object) {
		return nil, nil, &Error{Reason: m.reason, Message: fmt.Sprintf("%s not found; create it, or correct %s", live, m.field)}
	}
	rev, err := newRevision(vm, object, nil)
	if err != nil {
		return nil, nil, storing("storing", err)
	}
	return r.record(vm, ref, rev, "storing")
}

// record returns the ref to a revision, which is created unless it exists with equal content.
func (r *reading) record(vm *v1.VirtualMachine, ref *v1.InstancetypeStatusRef, rev *appsv1.ControllerRevision, operation string) (*v1.InstancetypeStatusRef, []*appsv1.ControllerRevision, error) {
	object, read := r.get(Ref{KindRevision, rev.Namespace, rev.Name})
	if !read {
		return ref, nil, nil
	}
	ref.ControllerRevisionRef = &v1.ControllerRevisionRef{Name: rev.Name}
	existing, ok := as[appsv1.ControllerRevision](object)
	if !ok {
		return ref, []*appsv1.ControllerRevision{rev}, nil
	}
	equal, err := sameContent(existing, rev)
	if err == nil && (!equal || !metav1.IsControlledBy(existing, vm)) {
		err = fmt.Errorf("found existing ControllerRevision with unexpected data: %s", rev.Name)
	}
	if err != nil {
		return nil, nil, storing(operation, err)
	}
	return ref, nil, nil
}

// upgrade returns the ref to the revision in the latest version. One that the user names stays as it is.
func (r *reading) upgrade(vm *v1.VirtualMachine, ref *v1.InstancetypeStatusRef, rev *appsv1.ControllerRevision) (*v1.InstancetypeStatusRef, []*appsv1.ControllerRevision, error) {
	if !outdated(rev) || !metav1.IsControlledBy(rev, vm) {
		return ref, nil, nil
	}
	next, err := upgraded(vm, rev)
	if err != nil {
		return nil, nil, storing("upgrading", err)
	}
	return r.record(vm, ref, next, "upgrading")
}

// expand returns the VM with the definitions in its template, and without matchers.
func (c Change) expand(vm *v1.VirtualMachine, cluster Cluster) (Change, []Ref, error) {
	expanded, err := expandedVM(vm, c.Definitions, cluster)
	if err != nil {
		return c, nil, storing("storing", err)
	}
	c.Expanded, c.InstancetypeRef, c.PreferenceRef = expanded, nil, nil
	for _, ref := range []*v1.InstancetypeStatusRef{vm.Status.InstancetypeRef, vm.Status.PreferenceRef} {
		if name := revisionOf(ref); name != "" {
			c.Obsolete = append(c.Obsolete, Ref{KindRevision, vm.Namespace, name})
		}
	}
	return c, nil, nil
}

// expandedVM returns a copy of the VM with the definitions and the default devices in its template, without matchers.
func expandedVM(vm *v1.VirtualMachine, d Definitions, c Cluster) (*v1.VirtualMachine, error) {
	vm = vm.DeepCopy()
	if vm.Spec.Template == nil {
		return nil, fmt.Errorf("spec.template: missing virtual machine template")
	}
	if err := Complete(&vm.Spec.Template.Spec, d, c); err != nil {
		return nil, err
	}
	if err := ToTemplate(vm.Spec.Template, d); err != nil {
		return nil, err
	}
	vm.Spec.Instancetype, vm.Spec.Preference = nil, nil
	vm.Status.InstancetypeRef, vm.Status.PreferenceRef = nil, nil
	return vm, nil
}
