// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/virtloom/virtloom/internal/vmistatus"
)

// printables are the values of status.printableStatus; the first whose rule holds is the VM's.
var printables = []struct {
	value v1.VirtualMachinePrintableStatus
	holds func(*decision) bool
}{
	{v1.VirtualMachineStatusTerminating, func(d *decision) bool { return d.VM.DeletionTimestamp != nil }},
	{v1.VirtualMachineStatusStopping, (*decision).stopping},
	{v1.VirtualMachineStatusMigrating, func(d *decision) bool { return d.vmi != nil && migrating(d.vmi, d.now.Unix()) }},
	{v1.VirtualMachineStatusPaused, func(d *decision) bool {
		return d.phase(v1.Running) && vmistatus.IsTrue(d.vmi, v1.VirtualMachineInstancePaused)
	}},
	{v1.VirtualMachineStatusRunning, func(d *decision) bool { return d.phase(v1.Running) }},
	{v1.VirtualMachineStatusPvcNotFound, func(d *decision) bool { return d.unsynchronized("FailedPvcNotFound") }},
	{v1.VirtualMachineStatusDataVolumeError, func(d *decision) bool { return slices.ContainsFunc(d.usedDataVolumes(), dvFailed) }},
	{v1.VirtualMachineStatusUnschedulable, (*decision).unschedulable},
	{v1.VirtualMachineStatusProvisioning, func(d *decision) bool { return slices.ContainsFunc(d.usedDataVolumes(), provisioning) }},
	{v1.VirtualMachineStatusWaitingForVolumeBinding, (*decision).binding},
	{v1.VirtualMachineStatusErrImagePull, func(d *decision) bool { return d.unsynchronized("ErrImagePull") }},
	{v1.VirtualMachineStatusImagePullBackOff, func(d *decision) bool { return d.unsynchronized("ImagePullBackOff") }},
	{v1.VirtualMachineStatusStarting, (*decision).starting},
	{v1.VirtualMachineStatusCrashLoopBackOff, (*decision).crashing},
	// Before Stopped, which a VM that waits for its receiver would otherwise be.
	{v1.VirtualMachineStatusWaitingForReceiver, func(d *decision) bool {
		return d.strategy == v1.RunStrategyWaitAsReceiver && (d.vmi == nil || d.phase(v1.WaitingForSync))
	}},
	{v1.VirtualMachineStatusStopped, func(d *decision) bool { return d.vmi == nil || d.vmi.IsFinal() }},
	{v1.VirtualMachineStatusUnknown, func(*decision) bool { return true }},
}

func (d *decision) printable() v1.VirtualMachinePrintableStatus {
	for _, p := range printables {
		if p.holds(d) {
			return p.value
		}
	}
	return v1.VirtualMachineStatusUnknown
}

// creating and deleting report whether a VMI is being created or deleted that the cache shows otherwise.
func (d *decision) creating() bool {
	return d.Failure == nil && d.does(CreateVMI) || d.expects(CreateVMI)
}
func (d *decision) deleting() bool {
	return d.Failure == nil && d.does(DeleteVMI) || d.expects(DeleteVMI)
}

func (d *decision) stopping() bool {
	return d.vmi != nil && !d.vmi.IsFinal() && (d.vmi.DeletionTimestamp != nil || d.deleting())
}

func (d *decision) phase(p v1.VirtualMachineInstancePhase) bool {
	return d.vmi != nil && d.vmi.Status.Phase == p
}

// migrating reports whether a migration of the VMI runs at a time.
func migrating(vmi *v1.VirtualMachineInstance, now int64) bool {
	m := vmi.Status.MigrationState
	return m != nil && m.StartTimestamp != nil && m.StartTimestamp.Unix() <= now && (m.EndTimestamp == nil || m.EndTimestamp.Unix() > now)
}

// unsynchronized reports whether the VMI cannot progress for a reason.
func (d *decision) unsynchronized(reason string) bool {
	if d.vmi == nil {
		return false
	}
	c := vmistatus.Condition(d.vmi, v1.VirtualMachineInstanceSynchronized)
	return c != nil && c.Status == corev1.ConditionFalse && c.Reason == reason
}

func (d *decision) unschedulable() bool {
	if d.vmi == nil {
		return false
	}
	c := vmistatus.Condition(d.vmi, v1.VirtualMachineInstanceConditionType(corev1.PodScheduled))
	return c != nil && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable
}

// usedDataVolumes returns the existing DataVolumes of the template's volumes.
func (d *decision) usedDataVolumes() (all []*cdiv1.DataVolume) {
	if d.VM.Spec.Template == nil {
		return nil
	}
	for _, v := range d.VM.Spec.Template.Spec.Volumes {
		if v.DataVolume != nil {
			if dv := d.DataVolumes[v.DataVolume.Name]; dv != nil {
				all = append(all, dv)
			}
		}
	}
	return all
}

func dvFailed(dv *cdiv1.DataVolume) bool {
	c := dvCondition(dv, cdiv1.DataVolumeRunning)
	return dv.Status.Phase == cdiv1.Failed || c != nil && c.Status == corev1.ConditionFalse && (c.Reason == "Error" || c.Reason == "ImagePullFailed")
}

func provisioning(dv *cdiv1.DataVolume) bool {
	switch dv.Status.Phase {
	case cdiv1.Succeeded, cdiv1.PendingPopulation:
		return false
	case cdiv1.WaitForFirstConsumer:
		c := dvCondition(dv, cdiv1.DataVolumeBound)
		return c != nil && c.Status == corev1.ConditionTrue
	default:
		return true
	}
}

// binding reports whether the VM is to run and waits for a claim.
func (d *decision) binding() bool {
	if !d.wanted() || d.VM.Spec.Template == nil {
		return false
	}
	for i := range d.VM.Spec.Template.Spec.Volumes {
		v := &d.VM.Spec.Template.Spec.Volumes[i]
		if claim := d.Claims[claimOf(v)]; claim != nil && claim.Status.Phase != corev1.ClaimBound {
			return true
		}
	}
	return false
}

// claimOf returns the name of the claim of a volume; empty if it has none.
func claimOf(v *v1.Volume) string {
	switch {
	case v.PersistentVolumeClaim != nil:
		return v.PersistentVolumeClaim.ClaimName
	case v.DataVolume != nil:
		return v.DataVolume.Name
	default:
		return ""
	}
}

// wanted reports whether the VM is set to start.
func (d *decision) wanted() bool {
	switch d.strategy {
	case v1.RunStrategyAlways:
		return true
	case v1.RunStrategyManual:
		return d.vmi != nil && !d.stopRequested() || d.vmi == nil && d.startRequested()
	case v1.RunStrategyRerunOnFailure:
		return d.vmi != nil && d.vmi.Status.Phase != v1.Succeeded || d.vmi == nil && (d.startRequested() || d.VM.Status.RunStrategy != d.strategy)
	case v1.RunStrategyOnce:
		return d.vmi == nil
	default:
		return false
	}
}

func (d *decision) starting() bool {
	if d.vmi == nil {
		return d.creating()
	}
	switch d.vmi.Status.Phase {
	case v1.VmPhaseUnset, v1.Pending, v1.Scheduling, v1.Scheduled:
		return true
	default:
		return false
	}
}

func (d *decision) crashing() bool {
	f := d.plan.VM.Status.StartFailure
	return (d.vmi == nil || d.vmi.IsFinal()) && !d.creating() && f != nil && f.ConsecutiveFailCount > 0 && retries(d.strategy)
}

// retries reports whether the run strategy starts a VMI without being asked.
func retries(s v1.VirtualMachineRunStrategy) bool {
	return s == v1.RunStrategyAlways || s == v1.RunStrategyRerunOnFailure || s == v1.RunStrategyOnce
}
