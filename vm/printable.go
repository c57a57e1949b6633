// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/virtloom/virtloom/internal/vmistatus"
	"github.com/virtloom/virtloom/internal/volumeclaim"
)

// appearance is what status.printableStatus depends on.
type appearance struct {
	// vm and vmi are the objects of the snapshot; vmi is nil without one.
	vm           *v1.VirtualMachine
	vmi          *v1.VirtualMachineInstance
	strategy     v1.VirtualMachineRunStrategy
	requests     stateChanges
	startFailure *v1.VirtualMachineStartFailure
	// creating and deleting report whether a VMI is being created or deleted that the cache shows otherwise.
	creating, deleting bool
	dataVolumes        map[string]*cdiv1.DataVolume
	claims             map[string]*corev1.PersistentVolumeClaim
	now                time.Time
}

// printables are the values of status.printableStatus; the first whose rule holds is the VM's.
var printables = []struct {
	value v1.VirtualMachinePrintableStatus
	holds func(*appearance) bool
}{
	{v1.VirtualMachineStatusTerminating, func(a *appearance) bool { return a.vm.DeletionTimestamp != nil }},
	{v1.VirtualMachineStatusStopping, (*appearance).stopping},
	{v1.VirtualMachineStatusMigrating, func(a *appearance) bool { return a.vmi != nil && migrating(a.vmi, a.now) }},
	{v1.VirtualMachineStatusPaused, func(a *appearance) bool {
		return inPhase(a.vmi, v1.Running) && vmistatus.IsTrue(a.vmi, v1.VirtualMachineInstancePaused)
	}},
	{v1.VirtualMachineStatusRunning, func(a *appearance) bool { return inPhase(a.vmi, v1.Running) }},
	{v1.VirtualMachineStatusPvcNotFound, func(a *appearance) bool { return a.unsynchronized("FailedPvcNotFound") }},
	{v1.VirtualMachineStatusDataVolumeError, func(a *appearance) bool { return a.anyDataVolume(dvFailed) }},
	{v1.VirtualMachineStatusUnschedulable, func(a *appearance) bool {
		return a.falseFor(v1.VirtualMachineInstanceConditionType(corev1.PodScheduled), corev1.PodReasonUnschedulable)
	}},
	{v1.VirtualMachineStatusProvisioning, func(a *appearance) bool { return a.anyDataVolume(dvProvisioning) }},
	{v1.VirtualMachineStatusWaitingForVolumeBinding, (*appearance).unbound},
	{v1.VirtualMachineStatusErrImagePull, func(a *appearance) bool { return a.unsynchronized("ErrImagePull") }},
	{v1.VirtualMachineStatusImagePullBackOff, func(a *appearance) bool { return a.unsynchronized("ImagePullBackOff") }},
	{v1.VirtualMachineStatusStarting, (*appearance).starting},
	{v1.VirtualMachineStatusCrashLoopBackOff, (*appearance).crashLooping},
	// Before Stopped, which a VM that waits for its receiver would otherwise be.
	{v1.VirtualMachineStatusWaitingForReceiver, func(a *appearance) bool {
		return a.strategy == v1.RunStrategyWaitAsReceiver && (a.vmi == nil || inPhase(a.vmi, v1.WaitingForSync))
	}},
	{v1.VirtualMachineStatusStopped, func(a *appearance) bool { return a.vmi == nil || a.vmi.IsFinal() }},
}

func (a appearance) printable() v1.VirtualMachinePrintableStatus {
	for _, p := range printables {
		if p.holds(&a) {
			return p.value
		}
	}
	return v1.VirtualMachineStatusUnknown
}

func (a *appearance) stopping() bool {
	return a.vmi != nil && !a.vmi.IsFinal() && (a.vmi.DeletionTimestamp != nil || a.deleting)
}

// migrating reports whether a migration of a VMI runs at a time.
func migrating(vmi *v1.VirtualMachineInstance, at time.Time) bool {
	m, now := vmi.Status.MigrationState, at.Unix()
	return m != nil && m.StartTimestamp != nil && m.StartTimestamp.Unix() <= now && (m.EndTimestamp == nil || m.EndTimestamp.Unix() > now)
}

// unsynchronized reports whether the VMI cannot progress for a reason.
func (a *appearance) unsynchronized(reason string) bool {
	return a.falseFor(v1.VirtualMachineInstanceSynchronized, reason)
}

// falseFor reports whether a condition of the VMI is false for a reason.
func (a *appearance) falseFor(t v1.VirtualMachineInstanceConditionType, reason string) bool {
	if a.vmi == nil {
		return false
	}
	c := vmistatus.Condition(a.vmi, t)
	return c != nil && c.Status == corev1.ConditionFalse && c.Reason == reason
}

// anyDataVolume reports whether one of the existing DataVolumes of the template's volumes is in a state.
func (a *appearance) anyDataVolume(is func(*cdiv1.DataVolume) bool) bool {
	return a.vm.Spec.Template != nil && slices.ContainsFunc(a.vm.Spec.Template.Spec.Volumes, func(v v1.Volume) bool {
		if v.DataVolume == nil {
			return false
		}
		dv := a.dataVolumes[v.DataVolume.Name]
		return dv != nil && is(dv)
	})
}

func dvFailed(dv *cdiv1.DataVolume) bool {
	c := dvCondition(dv, cdiv1.DataVolumeRunning)
	return dv.Status.Phase == cdiv1.Failed || c != nil && c.Status == corev1.ConditionFalse && (c.Reason == "Error" || c.Reason == "ImagePullFailed")
}

func dvProvisioning(dv *cdiv1.DataVolume) bool {
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

// unbound reports whether the VM is to run and waits for a claim.
func (a *appearance) unbound() bool {
	if !a.toRun() || a.vm.Spec.Template == nil {
		return false
	}
	return slices.ContainsFunc(a.vm.Spec.Template.Spec.Volumes, func(v v1.Volume) bool {
		claim := a.claims[volumeclaim.Of(&v)]
		return claim != nil && claim.Status.Phase != corev1.ClaimBound
	})
}

// toRun reports whether the VM is set to start.
func (a *appearance) toRun() bool {
	switch a.strategy {
	case v1.RunStrategyAlways:
		return true
	case v1.RunStrategyManual:
		return a.vmi != nil && !a.requests.stop(a.vmi) || a.vmi == nil && a.requests.start()
	case v1.RunStrategyRerunOnFailure:
		return a.vmi != nil && a.vmi.Status.Phase != v1.Succeeded || a.vmi == nil && (a.requests.start() || a.vm.Status.RunStrategy != a.strategy)
	case v1.RunStrategyOnce:
		return a.vmi == nil
	default:
		return false
	}
}

func (a *appearance) starting() bool {
	if a.vmi == nil {
		return a.creating
	}
	switch a.vmi.Status.Phase {
	case v1.VmPhaseUnset, v1.Pending, v1.Scheduling, v1.Scheduled:
		return true
	default:
		return false
	}
}

func (a *appearance) crashLooping() bool {
	f := a.startFailure
	return (a.vmi == nil || a.vmi.IsFinal()) && !a.creating && f != nil && f.ConsecutiveFailCount > 0 && startsUnasked(a.strategy)
}
