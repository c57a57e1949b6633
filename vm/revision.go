// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	v1 "kubevirt.io/api/core/v1"
)

// startRevisions are the ControllerRevisions of a VM that hold the specs its VMIs were started with, one for each generation.
type startRevisions struct {
	vm  *v1.VirtualMachine
	all []*appsv1.ControllerRevision
}

// prefix is the beginning of their names.
func (r startRevisions) prefix() string { return "revision-start-vm-" + string(r.vm.UID) + "-" }

// current returns the name of the revision of the current generation.
func (r startRevisions) current() string { return r.prefix() + strconv.FormatInt(r.vm.Generation, 10) }

// generationOf returns the generation in the name of a start revision.
func (r startRevisions) generationOf(name string) (int64, bool) {
	number, ok := strings.CutPrefix(name, r.prefix())
	if !ok {
		return 0, false
	}
	generation, err := strconv.ParseInt(number, 10, 64)
	return generation, err == nil
}

// named returns the revision of a name; nil if it does not exist.
func (r startRevisions) named(name string) *appsv1.ControllerRevision {
	for _, rev := range r.all {
		if rev.Name == name {
			return rev
		}
	}
	return nil
}

// outdated returns the revisions of other generations.
func (r startRevisions) outdated() (revisions []*appsv1.ControllerRevision) {
	for _, rev := range r.all {
		if rev.Name != r.current() && strings.HasPrefix(rev.Name, r.prefix()) {
			revisions = append(revisions, rev)
		}
	}
	return revisions
}

// started returns the spec that the VMI was started with: that of the latest start revision; nil if there is none.
func (r startRevisions) started() *v1.VirtualMachineSpec {
	var latest *appsv1.ControllerRevision
	var highest int64
	for _, rev := range r.all {
		if generation, ok := r.generationOf(rev.Name); ok && (latest == nil || generation > highest) {
			latest, highest = rev, generation
		}
	}
	return specOf(latest)
}

// startedWith is the content of a start revision.
type startedWith struct {
	Spec v1.VirtualMachineSpec `json:"spec"`
}

// specOf returns the spec in a start revision; nil if there is none that can be read.
func specOf(rev *appsv1.ControllerRevision) *v1.VirtualMachineSpec {
	var content startedWith
	if rev == nil || json.Unmarshal(rev.Data.Raw, &content) != nil {
		return nil
	}
	return &content.Spec
}

// create returns the revision of the current generation, with the revisions of instance type and preference that a status names.
func (r startRevisions) create(status *v1.VirtualMachineStatus) (*appsv1.ControllerRevision, error) {
	spec := r.vm.Spec.DeepCopy()
	if ref := status.InstancetypeRef; spec.Instancetype != nil && ref != nil && ref.ControllerRevisionRef != nil {
		spec.Instancetype.RevisionName = ref.ControllerRevisionRef.Name
	}
	if ref := status.PreferenceRef; spec.Preference != nil && ref != nil && ref.ControllerRevisionRef != nil {
		spec.Preference.RevisionName = ref.ControllerRevisionRef.Name
	}
	raw, err := json.Marshal(startedWith{Spec: *spec})
	if err != nil {
		return nil, fmt.Errorf("vm: encoding the spec of %s/%s: %w", r.vm.Namespace, r.vm.Name, err)
	}
	return &appsv1.ControllerRevision{
		ObjectMeta: metav1.ObjectMeta{Namespace: r.vm.Namespace, Name: r.current(),
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(r.vm, v1.VirtualMachineGroupVersionKind)}},
		Revision: r.vm.Generation, Data: runtime.RawExtension{Raw: raw}}, nil
}

// generation is that of the VM which its VMI has.
type generation struct{ *decision }

func (d generation) revisions() startRevisions { return startRevisions{d.VM, d.Revisions} }

// follow records the current generation on a VMI whose template has not changed since.
func (d generation) follow() {
	current := strconv.FormatInt(d.VM.Generation, 10)
	if d.vmi == nil || d.vmi.Annotations[v1.VirtualMachineGenerationAnnotation] == current {
		return
	}
	name := d.vmi.Status.VirtualMachineRevisionName
	if _, err := strconv.ParseInt(d.vmi.Annotations[v1.VirtualMachineGenerationAnnotation], 10, 64); err != nil {
		if started, ok := d.revisions().generationOf(name); ok {
			annotate(&d.next.ObjectMeta, v1.VirtualMachineGenerationAnnotation, strconv.FormatInt(started, 10))
		}
	}
	if spec := specOf(d.revisions().named(name)); spec != nil && equality.Semantic.DeepEqual(spec.Template, d.VM.Spec.Template) {
		annotate(&d.next.ObjectMeta, v1.VirtualMachineGenerationAnnotation, current)
	}
}

// report records in the status which generation the VMI has. An annotation that is missing or no number is replaced by the
// generation of its revision.
func (d generation) report() {
	if d.next == nil {
		return
	}
	st := &d.plan.VM.Status
	observed, err := strconv.ParseInt(d.next.Annotations[v1.VirtualMachineGenerationAnnotation], 10, 64)
	if err != nil {
		started, ok := d.revisions().generationOf(d.vmi.Status.VirtualMachineRevisionName)
		if !ok {
			return
		}
		observed = started
	}
	st.ObservedGeneration, st.DesiredGeneration = observed, d.VM.Generation
}
