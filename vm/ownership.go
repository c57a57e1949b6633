// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"
)

// ownership is which VMI the VM has, and what keeps either of them from being removed.
type ownership struct{ *decision }

// adopt makes the VM the controller of a VMI of its name that has none.
func (d ownership) adopt() {
	if d.VMI == nil || d.vmi != nil || d.foreign != "" || d.VMI.DeletionTimestamp != nil {
		return
	}
	d.do(Action{Verb: AdoptVMI, Name: d.VMI.Name, If: Precondition{UID: d.VMI.UID, OwnerLive: true}, Why: "it has no controller"})
	d.halted = true
}

// end deletes the VMI of a VM that is being deleted, and then releases the VM. A VM whose dependents are orphaned is released at once.
func (d ownership) end() {
	if !slices.Contains(d.VM.Finalizers, v1.VirtualMachineControllerFinalizer) {
		return
	}
	orphan := slices.Contains(d.VM.Finalizers, metav1.FinalizerOrphanDependents)
	if d.vmi == nil && len(d.Pending) == 0 || orphan {
		d.plan.VM.Finalizers = withoutOurs(d.plan.VM.Finalizers)
		return
	}
	if len(d.Pending) == 0 {
		startStop(d).stop("the VirtualMachine is being deleted")
	}
}

// releaseVMI removes the VM's finalizer from a VMI that has ended, once the status that counts it is stored.
func (d ownership) releaseVMI() {
	if d.vmi == nil || len(d.Pending) > 0 {
		return
	}
	ended := d.vmi.IsFinal() || d.vmi.Status.Phase == v1.WaitingForSync && d.vmi.DeletionTimestamp != nil
	counted := lastFailedVMI(d.plan.VM.Status.StartFailure) == lastFailedVMI(d.VM.Status.StartFailure)
	// A VM that has run once under RerunOnFailure is not started again: the status says so.
	recorded := d.strategy != v1.RunStrategyRerunOnFailure || d.VM.Status.RunStrategy == d.strategy
	if ended && counted && recorded {
		d.next.Finalizers = withoutOurs(d.next.Finalizers)
	}
}

// withoutOurs removes the finalizer that VMs and their VMIs have until this controller releases them.
func withoutOurs(finalizers []string) []string {
	return slices.DeleteFunc(finalizers, func(s string) bool { return s == v1.VirtualMachineControllerFinalizer })
}

// lastFailedVMI returns the UID of the VMI that was counted last.
func lastFailedVMI(f *v1.VirtualMachineStartFailure) types.UID {
	if f == nil {
		return ""
	}
	return f.LastFailedVMIUID
}
