// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/virtloom/virtloom/handoff"
)

const (
	allowClaimAdoption = "cdi.kubevirt.io/allowClaimAdoption"
	failedImport       = "FailedDataVolumeImport"
)

// dataVolumes are those of the VM's dataVolumeTemplates.
type dataVolumes struct{ *decision }

// provision creates them, also for a VM that does not run, unless the VM asks to wait for the start. They delay a start.
func (d dataVolumes) provision() {
	if d.onStart() {
		return
	}
	ready := d.ready()
	d.halted = d.halted || !ready && d.strategy != v1.RunStrategyHalted && d.vmi == nil
}

// onStart reports whether they are created when the VM is started.
func (d dataVolumes) onStart() bool {
	return d.VM.Annotations[v1.ImmediateDataVolumeCreation] == "false"
}

// lackForStart creates those that are created on start, and reports whether they are not ready.
func (d dataVolumes) lackForStart() bool { return d.onStart() && !d.ready() }

// ready creates what is missing, and reports whether all can be used.
func (d dataVolumes) ready() bool {
	ready := true
	for i := range d.VM.Spec.DataVolumeTemplates {
		t := &d.VM.Spec.DataVolumeTemplates[i]
		dv := d.DataVolumes[t.Name]
		if dv == nil {
			d.create(t)
			ready = false
			continue
		}
		if metav1.GetControllerOf(dv) == nil && dv.DeletionTimestamp == nil {
			d.do(Action{Verb: AdoptDataVolume, Name: dv.Name, If: Precondition{UID: dv.UID, OwnerLive: true}, Why: "it has no controller",
				Fault: Failure{reasonFailedCreate, "Error encountered while creating DataVolumes: "}})
		}
		ready = d.usable(dv) && ready
	}
	return ready
}

// usable reports whether a DataVolume can be used.
func (d dataVolumes) usable(dv *cdiv1.DataVolume) bool {
	object := "DataVolume " + dv.Namespace + "/" + dv.Name
	switch dv.Status.Phase {
	case cdiv1.Succeeded, cdiv1.WaitForFirstConsumer, cdiv1.PendingPopulation:
		return true
	case cdiv1.Failed:
		message := fmt.Sprintf("DataVolume %s failed to import disk image", dv.Name)
		if d.VM.Status.PrintableStatus != v1.VirtualMachineStatusDataVolumeError {
			d.warn(failedImport, message)
		}
		d.wait(Wait{Reason: failedImport, Message: message, Object: object, Until: "the DataVolume is recreated", Responsible: handoff.ByUser})
		return false
	}
	if b := dvCondition(dv, cdiv1.DataVolumeBound); dv.Status.Phase == cdiv1.Pending && b != nil && b.Status != corev1.ConditionTrue && b.Reason == "ErrExceededQuota" {
		message := fmt.Sprintf("DataVolume %s exceeds quota limits", dv.Name)
		if !conditionTrue(d.VM, v1.VirtualMachineFailure) {
			d.warn(failedImport, message)
		}
		d.fail(reasonFailedCreate, "Error encountered while creating DataVolumes: "+message)
		return false
	}
	d.wait(Wait{Reason: string(v1.VirtualMachineStatusProvisioning), Message: fmt.Sprintf("%s is in phase %s", object, dv.Status.Phase), Object: object,
		Until: "the DataVolume is populated", Responsible: handoff.ByStorage})
	return false
}

// create creates the DataVolume of a template, if the service account of the VM may.
func (d dataVolumes) create(t *v1.DataVolumeTemplateSpec) {
	if why, denied := d.Denied[t.Name]; denied {
		if !conditionTrue(d.VM, v1.VirtualMachineFailure) {
			d.warn("UnauthorizedDataVolumeCreate", fmt.Sprintf("Not authorized to create DataVolume %s: %s", t.Name, why))
		}
		d.fail(reasonFailedCreate, "Error encountered while creating DataVolumes: not authorized to create DataVolume: "+why)
		return
	}
	if source := d.NoSource[t.Name]; source != "" {
		d.warn("SourcePVCNotAvailabe", fmt.Sprintf("Source PVC %s not available: Target PVC %s will remain unpopulated until source is created", source, t.Name))
	}
	dv := newDataVolume(d.VM, t)
	d.do(Action{Verb: CreateDataVolume, Name: dv.Name, DataVolume: dv, If: Precondition{OwnerLive: true}, Why: "the template has no DataVolume",
		Fault:  Failure{reasonFailedCreate, "Error encountered while creating DataVolumes: "},
		Done:   &Event{Reason: "SuccessfulDataVolumeCreate", Message: "Created DataVolume " + dv.Name},
		Failed: &Event{Warning: true, Reason: "FailedDataVolumeCreate", Message: fmt.Sprintf("Error creating DataVolume %s: ", dv.Name)}})
}

// newDataVolume returns the DataVolume of a template.
func newDataVolume(vm *v1.VirtualMachine, t *v1.DataVolumeTemplateSpec) *cdiv1.DataVolume {
	dv := &cdiv1.DataVolume{
		ObjectMeta: metav1.ObjectMeta{Namespace: vm.Namespace, Name: t.Name, Labels: maps.Clone(t.Labels), Annotations: maps.Clone(t.Annotations),
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(vm, v1.VirtualMachineGroupVersionKind)}},
		Spec: *t.Spec.DeepCopy(),
	}
	if dv.Labels == nil {
		dv.Labels = map[string]string{}
	}
	dv.Labels[v1.CreatedByLabel] = string(vm.UID)
	annotate(&dv.ObjectMeta, allowClaimAdoption, "true")
	if dv.Spec.PriorityClassName == "" {
		dv.Spec.PriorityClassName = vm.Spec.Template.Spec.PriorityClassName
	}
	return dv
}

func dvCondition(dv *cdiv1.DataVolume, t cdiv1.DataVolumeConditionType) *cdiv1.DataVolumeCondition {
	for i := range dv.Status.Conditions {
		if dv.Status.Conditions[i].Type == t {
			return &dv.Status.Conditions[i]
		}
	}
	return nil
}
