// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/internal/vmistatus"
	"github.com/virtloom/virtloom/vm/instancetype"
	"github.com/virtloom/virtloom/vm/restart"
)

// effective returns the spec of the template of a VM with its instance type and preference; nil if they conflict or are
// being read.
func (d *decision) effective(vm *v1.VirtualMachine) *v1.VirtualMachineInstanceSpec {
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
func (d *decision) checkRestart() {
	if d.vmi == nil {
		return
	}
	spec := d.started()
	if spec == nil {
		return
	}
	before := d.VM.DeepCopy()
	before.Spec, before.Status = *spec, v1.VirtualMachineStatus{}
	old, current := d.effective(before), d.effective(d.VM)
	if old == nil || current == nil {
		return
	}
	firmware := d.VM.Spec.Template.Spec.Domain.Firmware
	same := d.vmi.Spec.Domain.Firmware != nil && firmware != nil && d.vmi.Spec.Domain.Firmware.UUID == firmware.UUID
	strategy := d.VM.Spec.UpdateVolumesStrategy
	rollout := restart.Rollout{Stage: d.Config.Stage, SameUUID: same, MigrateVolumes: strategy != nil && *strategy == v1.UpdateVolumesStrategyMigration}
	why := ""
	if restart.Required(old, current, rollout) {
		why = restart.Message
	} else if !d.Config.Stage {
		// Before the condition is removed: one that a live update sets anew keeps its time.
		why = d.refused(current)
	}
	if why == "" {
		dropCondition(d.plan.VM, v1.VirtualMachineRestartRequired)
		return
	}
	d.requireRestart(why)
}

// requireRestart sets the condition. Its message follows the cause, its time does not.
func (d *decision) requireRestart(why string) {
	for i := range d.plan.VM.Status.Conditions {
		if c := &d.plan.VM.Status.Conditions[i]; c.Type == v1.VirtualMachineRestartRequired && c.Status == corev1.ConditionTrue {
			c.Message = why
			return
		}
	}
	d.set(v1.VirtualMachineCondition{Type: v1.VirtualMachineRestartRequired, Status: corev1.ConditionTrue, Message: why})
}

// refused returns why a CPU or memory update cannot be made live; empty if it can, or there is none.
func (d *decision) refused(current *v1.VirtualMachineInstanceSpec) string {
	if d.vmi.DeletionTimestamp != nil || d.vmi.IsFinal() {
		return ""
	}
	if why := refusedCPU(d.vmi, current); why != "" {
		return why
	}
	return refusedMemory(d.vmi, current)
}

// updateLive brings a running VMI to what the template has by now.
func (d *decision) updateLive() {
	if d.vmi == nil || d.vmi.DeletionTimestamp != nil || d.vmi.IsFinal() || d.Config.Stage || conditionTrue(d.plan.VM, v1.VirtualMachineRestartRequired) {
		return
	}
	current := d.effective(d.VM)
	if current == nil {
		return
	}
	before := d.next.DeepCopy()
	for _, update := range []func(*v1.VirtualMachineInstanceSpec) *Failure{d.updateCPU, d.updatePlacement, d.updateTolerations, d.updateMemory} {
		if f := update(current); f != nil {
			d.next = before // all or nothing: the message names what blocks it
			d.fail(f.Reason, f.Message)
			return
		}
	}
}

func (d *decision) moving() bool { return migrating(d.vmi, d.now.Unix()) }

func refusedCPU(vmi *v1.VirtualMachineInstance, current *v1.VirtualMachineInstanceSpec) string {
	has, want := vmi.Spec.Domain.CPU, current.Domain.CPU
	switch {
	case has == nil || want == nil || has.Sockets == want.Sockets:
	case current.Architecture == "arm64":
		return "ARM doesn't support CPU hotplug"
	case has.MaxSockets != 0 && want.Sockets > has.MaxSockets:
		return "CPU sockets updated in template spec to a value higher than what's available"
	case want.Sockets < has.Sockets:
		return "Reduction of CPU socket count requires a restart"
	}
	return ""
}

func (d *decision) updateCPU(current *v1.VirtualMachineInstanceSpec) *Failure {
	has, want := d.vmi.Spec.Domain.CPU, current.Domain.CPU
	switch {
	case has == nil || want == nil || has.Sockets == want.Sockets:
		return nil
	case vmistatus.IsTrue(d.vmi, v1.VirtualMachineInstanceVCPUChange):
		return &Failure{"HotPlugCPUError", "another CPU hotplug is in progress"}
	case d.moving():
		return &Failure{"HotPlugCPUError", "CPU hotplug is not allowed while VMI is migrating"}
	}
	d.next.Spec.Domain.CPU.Sockets = want.Sockets
	added := (vCPUs(want) - vCPUs(has)) * (1000 / d.Config.CPURatio)
	delta := *resource.NewMilliQuantity(added, resource.DecimalSI)
	grow(d.next.Spec.Domain.Resources.Requests, current.Domain.Resources.Requests, corev1.ResourceCPU, delta)
	grow(d.next.Spec.Domain.Resources.Limits, current.Domain.Resources.Limits, corev1.ResourceCPU, delta)
	return nil
}

func vCPUs(c *v1.CPU) int64 {
	return int64(max(c.Sockets, 1)) * int64(max(c.Cores, 1)) * int64(max(c.Threads, 1))
}

// grow adds to a quantity of the VMI, if the template has one too.
func grow(own, template corev1.ResourceList, name corev1.ResourceName, delta resource.Quantity) {
	if _, set := template[name]; !set || own == nil {
		return
	}
	q := own[name]
	q.Add(delta)
	own[name] = q
}

func (d *decision) updatePlacement(current *v1.VirtualMachineInstanceSpec) *Failure {
	if equality.Semantic.DeepEqual(d.vmi.Spec.Affinity, current.Affinity) && equality.Semantic.DeepEqual(d.vmi.Spec.NodeSelector, current.NodeSelector) {
		return nil
	}
	if d.moving() {
		return &Failure{"AffinityChangeError", "Node affinity should not be changed during VMI migration"}
	}
	d.next.Spec.Affinity, d.next.Spec.NodeSelector = current.Affinity, current.NodeSelector
	return nil
}

func (d *decision) updateTolerations(current *v1.VirtualMachineInstanceSpec) *Failure {
	if equality.Semantic.DeepEqual(d.vmi.Spec.Tolerations, current.Tolerations) {
		return nil
	}
	if d.moving() {
		return &Failure{"TolerationsChangeError", "tolerations should not be changed during VMI migration"}
	}
	d.next.Spec.Tolerations = current.Tolerations
	return nil
}

// memoryChange returns the sizes of a memory update; ok is false if there is none.
func memoryChange(vmi *v1.VirtualMachineInstance, current *v1.VirtualMachineInstanceSpec) (has, want *resource.Quantity, ok bool) {
	if m := current.Domain.Memory; m == nil || m.Guest == nil || vmi.Spec.Domain.Memory == nil || vmi.Spec.Domain.Memory.Guest == nil ||
		vmi.Status.Memory == nil || vmi.Status.Memory.GuestCurrent == nil {
		return nil, nil, false
	}
	has, want = vmi.Spec.Domain.Memory.Guest, current.Domain.Memory.Guest
	return has, want, true
}

func refusedMemory(vmi *v1.VirtualMachineInstance, current *v1.VirtualMachineInstanceSpec) string {
	const changed = "memory updated in template spec"
	has, want, ok := memoryChange(vmi, current)
	if !ok {
		return ""
	}
	if c := vmistatus.Condition(vmi, v1.VirtualMachineInstanceMemoryChange); c != nil && c.Status == corev1.ConditionFalse {
		return changed + ". Memory-hotplug failed and is not available for this VM configuration"
	}
	most := vmi.Spec.Domain.Memory.MaxGuest
	switch {
	case has.Equal(*want):
		return ""
	case !vmistatus.IsTrue(vmi, v1.VirtualMachineInstanceIsMigratable):
		return changed + ". Memory-hotplug is only available for migratable VMs"
	case most == nil:
		return changed + ". Memory-hotplug is not available for this VM configuration"
	}
	if why := hotplugRule(current, want, most); why != "" {
		return "memory hotplug not supported, " + why
	}
	if boot := vmi.Status.Memory.GuestAtBoot; boot != nil && want.Cmp(*boot) < 0 {
		return changed + " to a value lower than what the VM started with"
	}
	return ""
}

// hotplugRule returns why memory of a spec cannot change to a size; empty if it can.
func hotplugRule(s *v1.VirtualMachineInstanceSpec, want, most *resource.Quantity) string {
	align := int64(2 << 20)
	if h := s.Domain.Memory.Hugepages; h != nil && h.PageSize == "1Gi" {
		align = 1 << 30
	}
	switch {
	case pinned(s.Domain.CPU) != "":
		return pinned(s.Domain.CPU)
	case s.Domain.LaunchSecurity != nil:
		return "spec.domain.launchSecurity is set"
	case want.Cmp(*most) > 0:
		return fmt.Sprintf("spec.domain.memory.guest %s is greater than the maximum %s", want, most)
	case want.Value()%align != 0 || most.Value()%align != 0:
		return fmt.Sprintf("spec.domain.memory.guest %s and its maximum %s must be multiples of %dMi", want, most, align>>20)
	case s.Architecture != "" && s.Architecture != "amd64":
		return "spec.architecture is not amd64"
	case want.Value() < 1<<30:
		return fmt.Sprintf("spec.domain.memory.guest %s is less than 1Gi", want)
	}
	return ""
}

// pinned returns why a CPU ties the memory of the guest to a place; empty if it does not.
func pinned(cpu *v1.CPU) string {
	switch {
	case cpu == nil:
		return ""
	case cpu.Realtime != nil:
		return "spec.domain.cpu.realtime is set"
	case cpu.NUMA != nil && cpu.NUMA.GuestMappingPassthrough != nil:
		return "spec.domain.cpu.numa.guestMappingPassthrough is set"
	default:
		return ""
	}
}

func (d *decision) updateMemory(current *v1.VirtualMachineInstanceSpec) *Failure {
	has, want, ok := memoryChange(d.vmi, current)
	switch {
	case !ok || has.Equal(*want):
		return nil
	case vmistatus.IsTrue(d.vmi, v1.VirtualMachineInstanceMemoryChange):
		return &Failure{"HotPlugMemoryError", "another memory hotplug is in progress"}
	case d.moving():
		return &Failure{"HotPlugMemoryError", "memory hotplug is not allowed while VMI is migrating"}
	}
	guest := want.DeepCopy()
	d.next.Spec.Domain.Memory.Guest = &guest
	delta := want.DeepCopy()
	delta.Sub(*d.vmi.Status.Memory.GuestCurrent)
	own := &d.next.Spec.Domain.Resources
	if q, set := own.Requests[corev1.ResourceMemory]; set && !q.IsZero() {
		q.Add(delta)
		if q.Cmp(guest) < 0 {
			q = guest.DeepCopy()
		}
		own.Requests[corev1.ResourceMemory] = q
	}
	grow(own.Limits, current.Domain.Resources.Limits, corev1.ResourceMemory, delta)
	return nil
}
