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
	api "kubevirt.io/api/instancetype"
)

// startRevisions is the beginning of the names of a VM's start revisions.
func startRevisions(vm *v1.VirtualMachine) string { return "revision-start-vm-" + string(vm.UID) + "-" }

// startRevisionName returns the name of the revision of the current generation.
func startRevisionName(vm *v1.VirtualMachine) string {
	return startRevisions(vm) + strconv.FormatInt(vm.Generation, 10)
}

// stored is the content of a start revision.
type stored struct {
	Spec v1.VirtualMachineSpec `json:"spec"`
}

// storeRevision creates the start revision of the current generation, and deletes those of others.
func (d *decision) storeRevision() error {
	name, exists := startRevisionName(d.VM), false
	for _, rev := range d.Revisions {
		switch {
		case rev.Name == name:
			exists = true
		case strings.HasPrefix(rev.Name, startRevisions(d.VM)):
			d.do(Action{Verb: DeleteRevision, Name: rev.Name, If: Precondition{UID: rev.UID}, Why: "it is of another generation",
				Fault: Failure{reasonFailedCreate, "Failure while starting VMI: "}})
		}
	}
	if exists {
		return nil
	}
	spec := d.VM.Spec.DeepCopy()
	if ref := d.plan.VM.Status.InstancetypeRef; spec.Instancetype != nil && ref != nil && ref.ControllerRevisionRef != nil {
		spec.Instancetype.RevisionName = ref.ControllerRevisionRef.Name
	}
	if ref := d.plan.VM.Status.PreferenceRef; spec.Preference != nil && ref != nil && ref.ControllerRevisionRef != nil {
		spec.Preference.RevisionName = ref.ControllerRevisionRef.Name
	}
	raw, err := json.Marshal(stored{Spec: *spec})
	if err != nil {
		return fmt.Errorf("vm: encoding the spec of %s/%s: %w", d.VM.Namespace, d.VM.Name, err)
	}
	d.do(Action{Verb: CreateRevision, Name: name, Why: "it remembers what the VMI is made from", Fault: Failure{reasonFailedCreate, "Failure while starting VMI: "},
		Revision: &appsv1.ControllerRevision{
			ObjectMeta: metav1.ObjectMeta{Namespace: d.VM.Namespace, Name: name,
				OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(d.VM, v1.VirtualMachineGroupVersionKind)}},
			Revision: d.VM.Generation, Data: runtime.RawExtension{Raw: raw}}})
	return nil
}

// forget deletes revisions of instance types and preferences that nothing refers to any more. The spec that a running VMI was
// started with may refer to an older one.
func (d *decision) forget() {
	if d.vmi != nil {
		return
	}
	used := map[string]bool{}
	for _, st := range []*v1.VirtualMachineStatus{&d.VM.Status, &d.plan.VM.Status} {
		for _, ref := range []*v1.InstancetypeStatusRef{st.InstancetypeRef, st.PreferenceRef} {
			if ref != nil && ref.ControllerRevisionRef != nil {
				used[ref.ControllerRevisionRef.Name] = true
			}
		}
	}
	for _, rev := range d.Revisions {
		if rev.Labels[api.ControllerRevisionObjectVersionLabel] != "" && !used[rev.Name] {
			d.do(Action{Verb: DeleteRevision, Name: rev.Name, If: Precondition{UID: rev.UID}, Why: "nothing refers to it",
				Fault: Failure{reasonFailedCreate, "error encountered cleaning controllerRevision " + rev.Name + ": "}})
		}
	}
}

// generationOf returns the generation in the name of a start revision.
func (d *decision) generationOf(name string) (int64, bool) {
	number, ok := strings.CutPrefix(name, startRevisions(d.VM))
	if !ok {
		return 0, false
	}
	generation, err := strconv.ParseInt(number, 10, 64)
	return generation, err == nil
}

// started returns the spec that the VMI was started with: that of the latest start revision; nil if there is none.
func (d *decision) started() *v1.VirtualMachineSpec {
	var latest *appsv1.ControllerRevision
	var highest int64
	for _, rev := range d.Revisions {
		if generation, ok := d.generationOf(rev.Name); ok && (latest == nil || generation > highest) {
			latest, highest = rev, generation
		}
	}
	return specOf(latest)
}

// specOf returns the spec in a start revision; nil if there is none that can be read.
func specOf(rev *appsv1.ControllerRevision) *v1.VirtualMachineSpec {
	var content stored
	if rev == nil || json.Unmarshal(rev.Data.Raw, &content) != nil {
		return nil
	}
	return &content.Spec
}

// bump records the current generation on a VMI whose template has not changed since.
func (d *decision) bump() {
	if d.vmi == nil || d.vmi.Annotations[v1.VirtualMachineGenerationAnnotation] == strconv.FormatInt(d.VM.Generation, 10) {
		return
	}
	if _, err := strconv.ParseInt(d.vmi.Annotations[v1.VirtualMachineGenerationAnnotation], 10, 64); err != nil {
		if generation, ok := d.generationOf(d.vmi.Status.VirtualMachineRevisionName); ok {
			annotate(&d.next.ObjectMeta, v1.VirtualMachineGenerationAnnotation, strconv.FormatInt(generation, 10))
		}
	}
	for _, rev := range d.Revisions {
		if rev.Name != d.vmi.Status.VirtualMachineRevisionName {
			continue
		}
		if spec := specOf(rev); spec != nil && equality.Semantic.DeepEqual(spec.Template, d.VM.Spec.Template) {
			annotate(&d.next.ObjectMeta, v1.VirtualMachineGenerationAnnotation, strconv.FormatInt(d.VM.Generation, 10))
		}
	}
}

// generations records which generation the VMI has. An annotation that is missing or no number is replaced by the
// generation of its revision.
func (d *decision) generations() {
	if d.next == nil {
		return
	}
	st := &d.plan.VM.Status
	observed, err := strconv.ParseInt(d.next.Annotations[v1.VirtualMachineGenerationAnnotation], 10, 64)
	if err != nil {
		generation, ok := d.generationOf(d.vmi.Status.VirtualMachineRevisionName)
		if !ok {
			return
		}
		observed = generation
	}
	st.ObservedGeneration, st.DesiredGeneration = observed, d.VM.Generation
}
