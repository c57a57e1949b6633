// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/internal/vmistatus"
)

// ownConditions are the conditions of a VM that are not copied from its VMI.
var ownConditions = []v1.VirtualMachineConditionType{v1.VirtualMachineReady, v1.VirtualMachineFailure, v1.VirtualMachineRestartRequired, v1.VirtualMachineManualRecoveryRequired}

// conditions are those of the VM.
type conditions struct{ *decision }

// update mirrors those of the VMI, and reports failures.
func (d conditions) update() {
	vm := d.plan.VM
	if !d.creates() {
		setCondition(vm, ready(d.vmi), d.now)
	}
	switch f := d.currentFailure(); {
	case f != nil:
		setCondition(vm, v1.VirtualMachineCondition{Type: v1.VirtualMachineFailure, Status: corev1.ConditionTrue, Reason: f.Reason, Message: f.Message}, d.now)
	case len(d.Pending) == 0:
		dropCondition(vm, v1.VirtualMachineFailure)
	}
	if d.vmi == nil {
		return
	}
	vm.Status.Conditions = slices.DeleteFunc(vm.Status.Conditions, func(c v1.VirtualMachineCondition) bool {
		return !slices.Contains(ownConditions, c.Type) && vmistatus.Condition(d.vmi, v1.VirtualMachineInstanceConditionType(c.Type)) == nil
	})
	for _, c := range d.vmi.Status.Conditions {
		if !slices.Contains(ownConditions, v1.VirtualMachineConditionType(c.Type)) {
			setCondition(vm, mirrored(c), d.now)
		}
	}
}

// ready returns condition Ready of the VM of a VMI.
func ready(vmi *v1.VirtualMachineInstance) v1.VirtualMachineCondition {
	c := v1.VirtualMachineCondition{Type: v1.VirtualMachineReady, Status: corev1.ConditionFalse}
	if vmi == nil {
		c.Reason, c.Message = "VMINotExists", "VMI does not exist"
		return c
	}
	if of := vmistatus.Condition(vmi, v1.VirtualMachineInstanceReady); of != nil {
		return mirrored(*of)
	}
	c.Reason, c.Message = "VMIConditionMissing", "VMI is missing the Ready condition"
	return c
}

func mirrored(c v1.VirtualMachineInstanceCondition) v1.VirtualMachineCondition {
	return v1.VirtualMachineCondition{Type: v1.VirtualMachineConditionType(c.Type), Status: c.Status, Reason: c.Reason, Message: c.Message,
		LastProbeTime: c.LastProbeTime, LastTransitionTime: c.LastTransitionTime}
}

// setCondition adds a condition, or replaces it if status or reason differ: a message or a time alone is no change.
func setCondition(vm *v1.VirtualMachine, c v1.VirtualMachineCondition, now time.Time) {
	if c.LastTransitionTime.IsZero() {
		c.LastTransitionTime = metav1.NewTime(now)
	}
	list := &vm.Status.Conditions
	for i, was := range *list {
		if was.Type == c.Type {
			if was.Status != c.Status || was.Reason != c.Reason {
				(*list)[i] = c
			}
			return
		}
	}
	*list = append(*list, c)
}

func dropCondition(vm *v1.VirtualMachine, t v1.VirtualMachineConditionType) {
	vm.Status.Conditions = slices.DeleteFunc(vm.Status.Conditions, func(c v1.VirtualMachineCondition) bool { return c.Type == t })
}

func conditionTrue(vm *v1.VirtualMachine, t v1.VirtualMachineConditionType) bool {
	return slices.ContainsFunc(vm.Status.Conditions, func(c v1.VirtualMachineCondition) bool { return c.Type == t && c.Status == corev1.ConditionTrue })
}
