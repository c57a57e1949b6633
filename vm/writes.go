// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	v1 "kubevirt.io/api/core/v1"
)

// writes are the updates of VM and VMI that the stages have collected.
type writes struct{ *decision }

// collect adds them to the actions. An object without finalizer is completed before anything is created for it; any other update
// of the VM comes last, when what it records has happened.
func (d writes) collect() {
	if d.next != nil && !d.does(DeleteVMI) && !equality.Semantic.DeepEqual(d.next, d.vmi) {
		d.do(Action{Verb: PatchVMI, Name: d.next.Name, VMI: d.next, If: Precondition{UID: d.vmi.UID, ResourceVersion: d.vmi.ResourceVersion},
			Why: "it follows the VirtualMachine", Fault: Failure{reasonFailedCreate, "Error encountered while updating the VMI: "}})
	}
	if !specChanged(d.VM, d.plan.VM) && equality.Semantic.DeepEqual(d.plan.VM.ObjectMeta, d.VM.ObjectMeta) {
		return
	}
	update := Action{Verb: UpdateVM, Name: d.VM.Name, If: Precondition{UID: d.VM.UID, ResourceVersion: d.VM.ResourceVersion}, Why: "metadata or spec change",
		Fault: Failure{"FailedUpdateError", "Error encountered when trying to update vm according to add volume and/or memory dump requests: "}}
	if slices.Contains(d.VM.Finalizers, v1.VirtualMachineControllerFinalizer) {
		d.do(update)
		return
	}
	d.plan.Actions = slices.Insert(d.plan.Actions, 0, update)
}

func specChanged(before, after *v1.VirtualMachine) bool {
	return !equality.Semantic.DeepEqual(after.Spec, before.Spec)
}
