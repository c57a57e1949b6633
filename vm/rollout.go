// SPDX-License-Identifier: Apache-2.0

package vm

import (
	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/vm/instancetype"
	"github.com/virtloom/virtloom/vm/liveupdate"
	"github.com/virtloom/virtloom/vm/restart"
)

// rollout brings changes of the template to a running VMI, or reports that they need a restart.
type rollout struct{ *decision }

// effective returns the spec of the template of a VM with its instance type and preference; nil if they conflict or are
// being read.
func (d rollout) effective(vm *v1.VirtualMachine) *v1.VirtualMachineInstanceSpec {
	found, missing, err := instancetype.Find(vm, d.Objects)
	d.plan.Need = append(d.plan.Need, missing...)
	if err != nil || len(missing) > 0 || vm.Spec.Template == nil {
		return nil
	}
	template := vm.Spec.Template.DeepCopy()
	if instancetype.ToTemplate(template, found) != nil {
		return nil
	}
	return &template.Spec
}

// checkRestart sets or removes RestartRequired, by comparison with what the VMI was started with.
func (d rollout) checkRestart() {
	if d.vmi == nil {
		return
	}
	spec := startRevisions{d.VM, d.Revisions}.started()
	if spec == nil {
		return
	}
	before := d.VM.DeepCopy()
	before.Spec, before.Status = *spec, v1.VirtualMachineStatus{}
	old, current := d.effective(before), d.effective(d.VM)
	if old == nil || current == nil {
		return
	}
	why := ""
	if restart.Required(old, current, d.kind()) {
		why = restart.Message
	} else if !d.Config.Stage && running(d.vmi) {
		// Before the condition is removed: one that a live update sets anew keeps its time.
		why = liveupdate.Blocked(d.vmi, current)
	}
	if why == "" {
		dropCondition(d.plan.VM, v1.VirtualMachineRestartRequired)
		return
	}
	d.requireRestart(why)
}

// kind returns how changes reach the VMI.
func (d rollout) kind() restart.Rollout {
	own, firmware := d.vmi.Spec.Domain.Firmware, d.VM.Spec.Template.Spec.Domain.Firmware
	same := own != nil && firmware != nil && own.UUID == firmware.UUID
	strategy := d.VM.Spec.UpdateVolumesStrategy
	return restart.Rollout{Stage: d.Config.Stage, SameUUID: same, MigrateVolumes: strategy != nil && *strategy == v1.UpdateVolumesStrategyMigration}
}

// requireRestart sets the condition. Its message follows the cause, its time does not.
func (d rollout) requireRestart(why string) {
	for i := range d.plan.VM.Status.Conditions {
		if c := &d.plan.VM.Status.Conditions[i]; c.Type == v1.VirtualMachineRestartRequired && c.Status == corev1.ConditionTrue {
			c.Message = why
			return
		}
	}
	setCondition(d.plan.VM, v1.VirtualMachineCondition{Type: v1.VirtualMachineRestartRequired, Status: corev1.ConditionTrue, Message: why}, d.now)
}

// updateLive brings a running VMI to what the template has by now.
func (d rollout) updateLive() {
	if !running(d.vmi) || d.Config.Stage || conditionTrue(d.plan.VM, v1.VirtualMachineRestartRequired) {
		return
	}
	current := d.effective(d.VM)
	if current == nil {
		return
	}
	updated, conflict := liveupdate.Apply(d.next, current, liveupdate.Options{CPURatio: d.Config.CPURatio, Migrating: migrating(d.vmi, d.now)})
	if conflict != nil {
		d.fail(conflict.Reason, conflict.Message)
		return
	}
	d.next = updated
}
