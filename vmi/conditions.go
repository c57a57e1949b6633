// SPDX-License-Identifier: Apache-2.0

package vmi

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/internal/vmistatus"
)

// Reasons of the Synchronized condition set by this controller, as KubeVirt
// spells them.
const (
	// ReasonFailedCreate: the launcher Pod could not be rendered or created.
	ReasonFailedCreate = "FailedCreate"
	// ReasonFailedCreateValidation: the spec is invalid or not supported by this cluster.
	ReasonFailedCreateValidation = "FailedCreateValidation"
	// ReasonFailedDelete: a Pod of the VMI could not be deleted.
	ReasonFailedDelete = "FailedDelete"
	// ReasonFailedPodPatch: the launcher Pod could not be patched.
	ReasonFailedPodPatch = "FailedPodPatch"
	// ReasonPvcNotFound: a PersistentVolumeClaim does not exist.
	ReasonPvcNotFound = "FailedPvcNotFound"
	// ReasonContainerPathVolumesDisabled: a volume needs a disabled feature gate.
	ReasonContainerPathVolumesDisabled = "ContainerPathVolumesDisabled"
	// ReasonMissingVirtiofsContainers: the Pod lacks virtiofs containers of the VMI's
	// file systems.
	ReasonMissingVirtiofsContainers = "MissingVirtiofsContainers"
	// ReasonFailedGuaranteeResources: the VMI requests dedicated CPUs and its Pod is not
	// of QoS class Guaranteed.
	ReasonFailedGuaranteeResources = "FailedGuaranteeResources"
	// ReasonFailedTopologyHints: no node has the required TSC frequency; the event has
	// KubeVirt's spelling.
	ReasonFailedTopologyHints = "FailedGatherhingClusterTopologyHints"
	// ReasonNodeUnresponsive: the node did not answer in time; also the value of
	// status.reason, as set by KubeVirt's node controller.
	ReasonNodeUnresponsive = "NodeUnresponsive"
)

// conditionUnderstood is False while this controller does not act on the VMI because its
// lease or phase is invalid; it is absent otherwise. KubeVirt has no such condition: it
// retries forever.
const conditionUnderstood v1.VirtualMachineInstanceConditionType = "virtloom.dev/Understood"

// Reasons of the condition virtloom.dev/Understood.
const (
	// ReasonInvalidLease: the lease annotation cannot be parsed.
	ReasonInvalidLease = "InvalidLease"
	// ReasonUnknownPhase: status.phase is not a KubeVirt phase.
	ReasonUnknownPhase = "UnknownPhase"
	// ReasonFailedHandover: the lease does not allow the transition that the phase requires.
	ReasonFailedHandover = "FailedHandover"
)

// reasonGatesClosed is the kubelet's reason for a Pod with a false readiness gate.
const reasonGatesClosed = "ReadinessGatesNotReady"

const podScheduledCondition = v1.VirtualMachineInstanceConditionType(corev1.PodScheduled)

// rule computes one condition.
type rule func(conditions) conditionChange

// rules lists all conditions that this controller writes.
// (specs: VMI reconciliation 4)
var rules = []rule{
	conditions.ready,
	conditions.imported,
	conditions.provisioning,
	conditions.scheduled,
	conditions.synchronized,
	conditions.evictionRequested,
	conditions.vcpuChange,
	conditions.memoryChange,
	conditions.volumesChange,
	conditions.migrationRequired,
	conditions.understood,
}

// conditions computes the conditions of the VMI.
type conditions struct{ *decision }

// update applies the rules.
func (d conditions) update() {
	for _, of := range rules {
		c := of(d)
		c.apply(d.plan.VMI, d.now)
		if !c.RequeueAt.IsZero() {
			d.requeue(c.RequeueAt)
		}
	}
}

func putCondition(of v1.VirtualMachineInstanceConditionType, status corev1.ConditionStatus, reason, message string) conditionChange {
	return conditionChange{Type: of, Set: &v1.VirtualMachineInstanceCondition{Type: of, Status: status, Reason: reason, Message: message}}
}

func removeCondition(of v1.VirtualMachineInstanceConditionType) conditionChange {
	return conditionChange{Type: of, Remove: true}
}

// leave keeps a condition unchanged.
var leave = conditionChange{}

// mirror copies a Pod's condition to the VMI. A change of the message alone is not copied:
// the scheduler's message differs with every attempt.
func (d conditions) mirror(of v1.VirtualMachineInstanceConditionType, c *corev1.PodCondition) conditionChange {
	if have := vmistatus.Condition(d.VMI, of); have != nil && have.Status == c.Status && have.Reason == c.Reason {
		return leave
	}
	return putCondition(of, c.Status, c.Reason, c.Message)
}

// ready derives Ready from Pod and phase. While own writes are unobserved, a missing Pod is
// not reported: the Pod may be one of those writes.
func (d conditions) ready() conditionChange {
	const of = v1.VirtualMachineInstanceReady
	switch {
	case d.pod == nil && len(d.Pending) > 0:
		return leave
	case d.pod == nil:
		return putCondition(of, corev1.ConditionFalse, v1.PodNotExistsReason, "virt-launcher pod has not yet been scheduled")
	case podGoingDown(d.pod):
		return putCondition(of, corev1.ConditionFalse, v1.PodTerminatingReason, "virt-launcher pod is terminating")
	case d.VMI.Status.Phase != v1.Running:
		return putCondition(of, corev1.ConditionFalse, v1.GuestNotRunningReason, "Guest VM is not reported as running")
	}
	if c := podCondition(d.pod, corev1.PodReady); c != nil {
		if until := d.opening(c); !until.IsZero() {
			return conditionChange{RequeueAt: until}
		}
		return d.mirror(of, c)
	}
	return putCondition(of, corev1.ConditionFalse, v1.PodConditionMissingReason, "virt-launcher pod is missing the Ready condition")
}

// gateWithin is how long a ready VMI stays Ready after its migration while the readiness gate of
// the target Pod is false: the gate opens on arrival, and the kubelet follows at once.
const gateWithin = 5 * time.Second

// opening returns the time until which an unready Pod is not reported because its gate was just
// opened, or will be in this pass; zero if it must be reported.
func (d conditions) opening(ready *corev1.PodCondition) time.Time {
	have := vmistatus.Condition(d.VMI, v1.VirtualMachineInstanceReady)
	if ready.Status != corev1.ConditionFalse || ready.Reason != reasonGatesClosed || d.Failure != nil ||
		have == nil || have.Status != corev1.ConditionTrue || vmistatus.IsTrue(d.VMI, v1.VirtualMachineInstancePaused) {
		return time.Time{}
	}
	until := d.now.Add(gateWithin)
	if gate := podCondition(d.pod, v1.VirtualMachineUnpaused); gate != nil && gate.Status == corev1.ConditionTrue {
		until = gate.LastTransitionTime.Add(gateWithin)
	}
	if !until.After(d.now) {
		return time.Time{}
	}
	return until
}

// synchronized reports why the VMI does not start. After the handoff the condition belongs
// to the node agent.
func (d conditions) synchronized() conditionChange {
	const of = v1.VirtualMachineInstanceSynchronized
	switch {
	case d.VMI.Status.Phase == v1.Scheduled, d.VMI.Status.Phase == v1.Running:
		return leave
	case d.plan.VMI.Status.Phase == v1.Scheduled:
		return removeCondition(of) // from now on the node agent owns the condition
	case d.VMI.Status.Reason == ReasonNodeUnresponsive && d.Failure == nil:
		return leave // keep the cause of the failure readable
	case d.VMI.IsFinal() && d.lease.Epoch > 0 && d.byNode():
		return leave // the node agent would set it again at once
	}
	switch reason, message := problem(d).current(); {
	case reason != "":
		if !problem(d).isNew(reason, message) {
			return leave
		}
		problem(d).announce(reason, message)
		return putCondition(of, corev1.ConditionFalse, reason, message)
	case len(d.Pending) > 0:
		return leave // nothing was tried, so no improvement is known
	default:
		return removeCondition(of)
	}
}

// own lists this controller's reasons for a VMI in a final phase.
var own = []string{
	ReasonFailedCreate, ReasonFailedDelete, ReasonFailedPodPatch, ReasonFailedHotplugSync, ReasonNodeUnresponsive,
	ReasonBackendStorageCreate, ReasonBackendStorageProbe, ReasonBackendStorageNotReady, ReasonBackendStorageDelete,
}

// byNode reports whether the node agent set the condition: an unresponsive hypervisor prevents it
// from cleaning up after a VMI in a final phase.
func (d conditions) byNode() bool {
	c := problem(d).stored()
	return c != nil && c.Status == corev1.ConditionFalse && !slices.Contains(own, c.Reason)
}

// scheduled reports a Pod that cannot be scheduled or created.
func (d conditions) scheduled() conditionChange {
	switch d.plan.VMI.Status.Phase {
	case v1.VmPhaseUnset, v1.Pending:
		c := unplaceable(d.Snapshot, d.plan.Blocked())
		if have := vmistatus.Condition(d.VMI, podScheduledCondition); c.Set != nil && have != nil && have.Reason == c.Set.Reason {
			return leave // as in mirror
		}
		return c
	case v1.Scheduling:
		if d.pod == nil {
			return leave
		}
		if c := podCondition(d.pod, corev1.PodScheduled); c != nil && c.Status == corev1.ConditionFalse {
			return d.mirror(podScheduledCondition, c)
		}
		return removeCondition(podScheduledCondition)
	case v1.Scheduled:
		return removeCondition(podScheduledCondition)
	default:
		return leave
	}
}

func (d conditions) imported() conditionChange { return dataVolumesReady(d.Snapshot) }

func (d conditions) provisioning() conditionChange {
	switch d.plan.VMI.Status.Phase {
	case v1.VmPhaseUnset, v1.Pending:
		return provisioning(d.Snapshot)
	case v1.Scheduling, v1.Scheduled:
		return removeCondition(v1.VirtualMachineInstanceProvisioning)
	default:
		return leave
	}
}

func (d conditions) evictionRequested() conditionChange { return evictionRequested(d.VMI) }

// live reports whether the VMI runs and a live update of its spec may be pending.
func (d conditions) live() bool { return d.VMI.Status.Phase == v1.Running && d.handedOff() }

func (d conditions) vcpuChange() conditionChange {
	if !d.live() {
		return leave
	}
	return hotVCPUChange(d.VMI)
}

func (d conditions) memoryChange() conditionChange {
	if !d.live() {
		return leave
	}
	return hotMemoryChange(d.VMI, d.Config.MemoryRatio)
}

func (d conditions) volumesChange() conditionChange {
	if !d.live() {
		return leave
	}
	return volumesChange(d.VMI)
}

func (d conditions) migrationRequired() conditionChange {
	if !d.live() {
		return leave
	}
	return migrationRequired(d.plan.VMI, d.pod, d.Config.MigrationEvaluator, d.now)
}

// understood removes the condition: the rules run only for a valid object.
func (conditions) understood() conditionChange { return removeCondition(conditionUnderstood) }
