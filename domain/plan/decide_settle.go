// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain/internal/xmlspec"
	"github.com/virtloom/virtloom/domain/status"
	"github.com/virtloom/virtloom/internal/vmistatus"
)

// settleCPUs ends a change of the number of CPUs, as KubeVirt does: with or without success,
// its migration is over.
func (d finalization) settleCPUs() {
	vmi := d.plan.VMI
	if vmistatus.Condition(vmi, v1.VirtualMachineInstanceVCPUChange) == nil {
		return
	}
	if why := d.overCPUs(); why != "" {
		d.emit(true, string(v1.SyncFailed), "vCPU hotplug failed: "+why)
	}
	delete(vmi.Labels, v1.VirtualMachinePodCPULimitsLabel)
	vmistatus.RemoveCondition(vmi, v1.VirtualMachineInstanceVCPUChange)
}

// overCPUs returns why the CPUs of the spec exceed the limit of the launcher Pod; empty if they
// do not. There is a limit for dedicated CPUs only.
func (d finalization) overCPUs() string {
	if !d.VMI.IsCPUDedicated() {
		return ""
	}
	label := d.VMI.Labels[v1.VirtualMachinePodCPULimitsLabel]
	limit, err := strconv.ParseUint(label, 10, 32)
	if err != nil {
		return fmt.Sprintf("label %s: Invalid value: %q: must be the CPU limit of the Pod", v1.VirtualMachinePodCPULimitsLabel, label)
	}
	if want := xmlspec.TopologyOf(&d.VMI.Spec.Domain).Count(); want > limit {
		return fmt.Sprintf("%d CPUs requested, limit of the Pod is %d", want, limit)
	}
	return ""
}

// settleMemory ends a change of the amount of memory. A failed change stays visible in the
// condition, which is False, so that nothing waits for it.
func (d finalization) settleMemory() {
	vmi := d.plan.VMI
	delete(vmi.Labels, v1.VirtualMachinePodMemoryRequestsLabel)
	open := vmistatus.Condition(vmi, v1.VirtualMachineInstanceMemoryChange)
	if open == nil || open.Status == corev1.ConditionFalse {
		return
	}
	why := d.overMemory()
	if why == "" {
		why = "the guest does not accept it while it runs"
	}
	vmistatus.SetCondition(vmi, v1.VirtualMachineInstanceCondition{
		Type: v1.VirtualMachineInstanceMemoryChange, Status: corev1.ConditionFalse,
		Reason: status.ReasonMemoryHotplugFailed, Message: "memory hotplug failed: " + why,
	}, d.now)
	d.emit(true, string(v1.SyncFailed), "memory hotplug failed: "+why)
}

// overMemory returns why the memory of the spec exceeds the request of the launcher Pod; empty
// if it does not. That request must cover the VMI's own and the memory overhead.
func (d finalization) overMemory() string {
	label := d.VMI.Labels[v1.VirtualMachinePodMemoryRequestsLabel]
	has, err := resource.ParseQuantity(label)
	if err != nil {
		return fmt.Sprintf("label %s: Invalid value: %q: must be the memory request of the Pod", v1.VirtualMachinePodMemoryRequestsLabel, label)
	}
	need := d.VMI.Spec.Domain.Resources.Requests.Memory().DeepCopy()
	if m := d.VMI.Status.Memory; m != nil && m.MemoryOverhead != nil {
		need.Add(*m.MemoryOverhead)
	}
	if has.Cmp(need) < 0 {
		return fmt.Sprintf("%s of memory required, request of the Pod is %s", need.String(), has.String())
	}
	return ""
}

// settleVolumes ends the migration of volumes, and restarts changed block tracking, whose data
// stays at the source.
func (d finalization) settleVolumes() {
	vmi := d.plan.VMI
	vmi.Status.MigratedVolumes = nil
	vmistatus.RemoveCondition(vmi, v1.VirtualMachineInstanceVolumesChange)
	if c := vmi.Status.ChangedBlockTracking; c != nil && c.State == v1.ChangedBlockTrackingEnabled {
		c.State = v1.ChangedBlockTrackingInitializing
	}
}
