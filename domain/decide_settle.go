// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/internal/vmistatus"
)

// settleCPUs ends a change of the number of CPUs, as KubeVirt does: with success or
// without, the migration that it waited for is over.
func (d *decision) settleCPUs() {
	vmi := d.plan.VMI
	if conditionOf(vmi, v1.VirtualMachineInstanceVCPUChange) == nil {
		return
	}
	if why := d.overCPUs(); why != "" {
		d.tell(true, string(v1.SyncFailed), "CPUs cannot be plugged: "+why)
	}
	delete(vmi.Labels, v1.VirtualMachinePodCPULimitsLabel)
	vmistatus.RemoveCondition(vmi, v1.VirtualMachineInstanceVCPUChange)
}

// overCPUs says why the guest's Pod has no room for the CPUs it shall have, empty if it
// has. Only where they are the guest's own is there a limit.
func (d *decision) overCPUs() string {
	if !d.VMI.IsCPUDedicated() {
		return ""
	}
	label := d.VMI.Labels[v1.VirtualMachinePodCPULimitsLabel]
	limit, err := strconv.ParseUint(label, 10, 32)
	if err != nil {
		return fmt.Sprintf("label %s does not say how many its Pod has: %q", v1.VirtualMachinePodCPULimitsLabel, label)
	}
	if want := topologyOf(&d.VMI.Spec.Domain).count(); want > limit {
		return fmt.Sprintf("%d are asked for, and its Pod has %d", want, limit)
	}
	return ""
}

// settleMemory ends a change of the amount of memory. One that the guest could not be
// given stays in the status as failed, so that somebody sees it and nothing waits.
func (d *decision) settleMemory() {
	vmi := d.plan.VMI
	delete(vmi.Labels, v1.VirtualMachinePodMemoryRequestsLabel)
	open := conditionOf(vmi, v1.VirtualMachineInstanceMemoryChange)
	if open == nil || open.Status == corev1.ConditionFalse {
		return
	}
	why := d.overMemory()
	if why == "" {
		why = "the guest cannot take it while it runs"
	}
	vmistatus.SetCondition(vmi, v1.VirtualMachineInstanceCondition{
		Type: v1.VirtualMachineInstanceMemoryChange, Status: corev1.ConditionFalse,
		Reason: ReasonMemoryHotplugFailed, Message: "memory cannot be plugged: " + why,
	}, d.now)
	d.tell(true, string(v1.SyncFailed), "memory cannot be plugged: "+why)
}

// overMemory says why the guest's Pod has no room for the memory it shall have, empty if
// it has: what it requests must cover the guest's own request and what runs it.
func (d *decision) overMemory() string {
	label := d.VMI.Labels[v1.VirtualMachinePodMemoryRequestsLabel]
	has, err := resource.ParseQuantity(label)
	if err != nil {
		return fmt.Sprintf("label %s does not say how much its Pod has: %q", v1.VirtualMachinePodMemoryRequestsLabel, label)
	}
	need := d.VMI.Spec.Domain.Resources.Requests.Memory().DeepCopy()
	if m := d.VMI.Status.Memory; m != nil && m.MemoryOverhead != nil {
		need.Add(*m.MemoryOverhead)
	}
	if has.Cmp(need) < 0 {
		return fmt.Sprintf("%s are needed, and its Pod has %s", need.String(), has.String())
	}
	return ""
}

// settleVolumes ends what the migration was for in the guest's volumes: those that it
// replaced are the guest's now, and what noted changed blocks was left behind.
func (d *decision) settleVolumes() {
	vmi := d.plan.VMI
	vmi.Status.MigratedVolumes = nil
	vmistatus.RemoveCondition(vmi, v1.VirtualMachineInstanceVolumesChange)
	if c := vmi.Status.ChangedBlockTracking; c != nil && c.State == v1.ChangedBlockTrackingEnabled {
		c.State = v1.ChangedBlockTrackingInitializing
	}
}
