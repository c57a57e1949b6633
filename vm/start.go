// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/vm/instancetype"
)

// startStop creates and deletes the VMI.
type startStop struct{ *decision }

// start creates the VMI, and the revision that remembers what it was made from.
func (d startStop) start() {
	if d.prevented() {
		return
	}
	dropCondition(d.plan.VM, v1.VirtualMachineRestartRequired)
	vmi, err := NewVMI(d.VM, d.definitions, d.Config.Cluster)
	if err != nil {
		d.fail(reasonFailedCreate, "Failure while starting VMI: "+err.Error())
		d.warnOnce(reasonFailedCreate, "Error creating virtual machine instance: "+err.Error())
		return
	}
	if err := d.storeRevision(); err != nil {
		d.fail(reasonFailedCreate, "Failure while starting VMI: "+err.Error())
		return
	}
	d.do(Action{Verb: CreateVMI, Name: vmi.Name, VMI: vmi, If: Precondition{OwnerLive: true}, Why: fmt.Sprintf("the run strategy is %s", d.strategy),
		Fault:  Failure{reasonFailedCreate, "Failure while starting VMI: "},
		Done:   &Event{Reason: "SuccessfulCreate", Message: "Started the virtual machine by creating the new virtual machine instance " + vmi.Name},
		Failed: &Event{Warning: true, Reason: reasonFailedCreate, Message: "Error creating virtual machine instance: "}})
}

// prevented reports whether the VMI cannot be created now, and records why.
func (d startStop) prevented() bool {
	switch {
	case d.foreign != "":
		d.fail(reasonFailedCreate, fmt.Sprintf("Failure while starting VMI: VirtualMachineInstance %s/%s exists and is controlled by %s; delete it, or rename the VirtualMachine",
			d.VM.Namespace, d.VM.Name, d.foreign))
	case d.VMI != nil: // it is being deleted
		d.wait(Wait{Reason: "VMITerminating", Object: vmiObject(d.VMI), Responsible: handoff.ByController,
			Message: "a VirtualMachineInstance of this name is being deleted", Until: "it is deleted"})
	case specChanged(d.VM, d.plan.VM):
		// The VMI belongs to a generation, which only the stored spec has.
		d.wait(Wait{Reason: "WaitingForSpec", Object: vmObject(d.VM), Responsible: handoff.ByController, Message: "the spec is not stored yet", Until: "the cache observes the write"})
	case dataVolumes(d).lackForStart():
	case conditionTrue(d.VM, v1.VirtualMachineManualRecoveryRequired):
		d.wait(Wait{Reason: string(v1.VirtualMachineManualRecoveryRequired), Object: vmObject(d.VM), Responsible: handoff.ByUser,
			Message: "the VMI ended during the migration of its volumes", Until: "the volumes of the template are corrected"})
	default:
		return false
	}
	return true
}

// storeRevision creates the start revision of the current generation, and deletes those of others. By a stale cache, the current
// one would be of another generation.
func (d startStop) storeRevision() error {
	revisions := startRevisions{d.VM, d.Revisions}
	for _, rev := range revisions.outdated() {
		d.do(Action{Verb: DeleteRevision, Name: rev.Name, If: Precondition{UID: rev.UID, OwnerLive: true}, Why: "it is of another generation",
			Fault: Failure{reasonFailedCreate, "Failure while starting VMI: "}})
	}
	if revisions.named(revisions.current()) != nil {
		return nil
	}
	rev, err := revisions.create(&d.plan.VM.Status)
	if err != nil {
		return err
	}
	d.do(Action{Verb: CreateRevision, Name: rev.Name, If: Precondition{OwnerLive: true}, Why: "it remembers what the VMI is made from", Fault: Failure{reasonFailedCreate, "Failure while starting VMI: "}, Revision: rev})
	return nil
}

// NewVMI returns the VMI that a VM is started with: its template with the firmware UUID of the VM, the default devices, the
// instance type and the preference. A conflict of the template with the instance type is an error wrapping
// *[instancetype.Conflicts].
func NewVMI(vm *v1.VirtualMachine, d instancetype.Definitions, c instancetype.Cluster) (*v1.VirtualMachineInstance, error) {
	strategy, err := vm.RunStrategy()
	if err != nil {
		return nil, err
	}
	if vm.Spec.Template == nil {
		return nil, errNoTemplate
	}
	template := vm.Spec.Template.DeepCopy()
	identify(&template.Spec, vm.Name)
	vmi := &v1.VirtualMachineInstance{
		ObjectMeta: metav1.ObjectMeta{Namespace: vm.Namespace, Name: vm.Name, Labels: template.ObjectMeta.Labels, Annotations: template.ObjectMeta.Annotations,
			Finalizers:      append(template.ObjectMeta.Finalizers, v1.VirtualMachineControllerFinalizer),
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(vm, v1.VirtualMachineGroupVersionKind)}},
		Spec: template.Spec,
	}
	slices.Sort(vmi.Finalizers)
	vmi.Finalizers = slices.Compact(vmi.Finalizers)
	vmi.Status.VirtualMachineRevisionName = startRevisions{vm: vm}.current()
	annotate(&vmi.ObjectMeta, v1.VirtualMachineGenerationAnnotation, fmt.Sprint(vm.Generation))
	if strategy == v1.RunStrategyWaitAsReceiver {
		annotate(&vmi.ObjectMeta, v1.CreateMigrationTarget, "true")
	}
	if stateChanges(vm.Status.StateChangeRequests).startPaused() {
		vmi.Spec.StartStrategy = new(v1.StartStrategyPaused)
	}
	dropEndedDump(&vmi.Spec, vm.Status.MemoryDumpRequest)
	if err := instancetype.Complete(&vmi.Spec, d, c); err != nil {
		return nil, err
	}
	if err := instancetype.ToVMI(vm, vmi, d); err != nil {
		return nil, fmt.Errorf("Failed to apply instancetype: %w", err) //nolint:staticcheck // KubeVirt's words
	}
	return vmi, nil
}

// stop deletes the VMI, once.
func (d startStop) stop(why string) {
	if d.vmi == nil || d.vmi.DeletionTimestamp != nil {
		return
	}
	dropCondition(d.plan.VM, v1.VirtualMachineRestartRequired)
	// A stale cache must not end a guest that is to run by now, nor one whose next start is not requested any more. A
	// deletion of the VM is final.
	live := d.VM.DeletionTimestamp == nil
	d.do(Action{Verb: DeleteVMI, Name: d.vmi.Name, If: Precondition{UID: d.vmi.UID, OwnerLive: live}, Why: why,
		Fault:  Failure{reasonFailedDelete, "Failure attempting to delete VMI: "},
		Done:   &Event{Reason: "SuccessfulDelete", Message: fmt.Sprintf("Stopped the virtual machine by deleting the virtual machine instance %s", d.vmi.UID)},
		Failed: &Event{Warning: true, Reason: reasonFailedDelete, Message: fmt.Sprintf("Error deleting virtual machine instance %s: ", d.vmi.Name)}})
}
