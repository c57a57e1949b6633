// SPDX-License-Identifier: Apache-2.0

package vmi

import (
	"regexp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/internal/vmistatus"
)

// Reasons of the Synchronized condition this controller sets, as KubeVirt
// spells them.
const (
	// ReasonFailedCreate: the guest's Pod could not be rendered or created.
	ReasonFailedCreate = "FailedCreate"
	// ReasonFailedCreateValidation: the guest's networks are not to be had.
	ReasonFailedCreateValidation = "FailedCreateValidation"
	// ReasonFailedDelete: a Pod of the guest could not be deleted.
	ReasonFailedDelete = "FailedDelete"
	// ReasonFailedPodPatch: the guest's Pod could not be patched.
	ReasonFailedPodPatch = "FailedPodPatch"
	// ReasonPvcNotFound: a PersistentVolumeClaim does not exist.
	ReasonPvcNotFound = "FailedPvcNotFound"
	// ReasonContainerPathVolumesDisabled: a volume needs a feature gate that is off.
	ReasonContainerPathVolumesDisabled = "ContainerPathVolumesDisabled"
	// ReasonMissingVirtiofsContainers: the Pod lacks the containers that share its
	// file systems.
	ReasonMissingVirtiofsContainers = "MissingVirtiofsContainers"
	// ReasonFailedGuaranteeResources: the guest is to have CPUs of its own and its Pod
	// has none.
	ReasonFailedGuaranteeResources = "FailedGuaranteeResources"
	// ReasonFailedTopologyHints: no clock is known that the guest can count on; the
	// event has KubeVirt's spelling.
	ReasonFailedTopologyHints = "FailedGatherhingClusterTopologyHints"
	// ReasonNodeUnresponsive: the node did not answer in time; also the value
	// of status.reason, as KubeVirt's node controller sets it.
	ReasonNodeUnresponsive = "NodeUnresponsive"
)

// ConditionUnderstood is False while this controller leaves the guest alone because
// it does not understand its object; it is absent otherwise. KubeVirt has no word for
// that: it retries for ever.
const ConditionUnderstood v1.VirtualMachineInstanceConditionType = "virtloom.dev/Understood"

// Reasons of ConditionUnderstood.
const (
	// ReasonInvalidLease: the annotation with the lease cannot be read.
	ReasonInvalidLease = "InvalidLease"
	// ReasonUnknownPhase: status.phase is none of KubeVirt's.
	ReasonUnknownPhase = "UnknownPhase"
	// ReasonFailedHandover: the lease does not allow what the phase asks for.
	ReasonFailedHandover = "FailedHandover"
)

// The reasons of the Ready condition.
const (
	reasonPodNotExists       = "PodNotExists"
	reasonPodTerminating     = "PodTerminating"
	reasonGuestNotRunning    = "GuestNotRunning"
	reasonPodConditionAbsent = "PodConditionMissing"
	// reasonGatesClosed is the kubelet's, of a Pod whose readiness gates are not all open.
	reasonGatesClosed = "ReadinessGatesNotReady"
)

const podScheduledCondition = v1.VirtualMachineInstanceConditionType(corev1.PodScheduled)

// rule computes one condition.
type rule func(*decision) conditionChange

// rules are all conditions that this controller writes.
// (specs: VMI reconciliation 4)
var rules = []rule{
	(*decision).isReady,
	(*decision).isImported,
	(*decision).isProvisioning,
	(*decision).isScheduled,
	(*decision).isSynchronized,
	(*decision).isEvicted,
	(*decision).changesCPU,
	(*decision).changesMemory,
	(*decision).changesVolumes,
	(*decision).mustMigrate,
	(*decision).isUnderstood,
}

// conditions applies the rules.
func (d *decision) conditions() {
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

func drop(of v1.VirtualMachineInstanceConditionType) conditionChange {
	return conditionChange{Type: of, Remove: true}
}

// leave keeps a condition as it is.
var leave = conditionChange{}

// mirror is what a Pod's condition says, in the guest's own. A message that differs
// is no news: the scheduler finds new words at every try.
func (d *decision) mirror(of v1.VirtualMachineInstanceConditionType, c *corev1.PodCondition) conditionChange {
	if have := conditionOf(d.VMI, of); have != nil && have.Status == c.Status && have.Reason == c.Reason {
		return leave
	}
	return putCondition(of, c.Status, c.Reason, c.Message)
}

// synchronizedNow is the stored Synchronized condition, nil if there is none.
func (d *decision) synchronizedNow() *v1.VirtualMachineInstanceCondition {
	return conditionOf(d.VMI, v1.VirtualMachineInstanceSynchronized)
}

// isReady derives Ready from Pod and phase. That there is no Pod is not said while
// own writes are unseen: the Pod may be one of them.
func (d *decision) isReady() conditionChange {
	const of = v1.VirtualMachineInstanceReady
	switch {
	case d.pod == nil && len(d.Unseen) > 0:
		return leave
	case d.pod == nil:
		return putCondition(of, corev1.ConditionFalse, reasonPodNotExists, "the guest has no Pod on its node")
	case podGoingDown(d.pod):
		return putCondition(of, corev1.ConditionFalse, reasonPodTerminating, "the Pod of the guest has ended or is ending")
	case d.VMI.Status.Phase != v1.Running:
		return putCondition(of, corev1.ConditionFalse, reasonGuestNotRunning, "the node has not reported the guest as running")
	}
	if c := podCondition(d.pod, corev1.PodReady); c != nil {
		if until := d.opening(c); !until.IsZero() {
			return conditionChange{RequeueAt: until}
		}
		return d.mirror(of, c)
	}
	return putCondition(of, corev1.ConditionFalse, reasonPodConditionAbsent, "the Pod of the guest has no Ready condition")
}

// gateWithin is for how long a ready guest that has moved is not told to be unready because of
// the gate of its new Pod, which is opened when the guest is there: the kubelet follows at once.
const gateWithin = 5 * time.Second

// opening returns until when that a Pod is not ready is no news, as its gate has just been
// opened, or is to be in this pass; zero if it is news.
func (d *decision) opening(ready *corev1.PodCondition) time.Time {
	have := conditionOf(d.VMI, v1.VirtualMachineInstanceReady)
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

// isSynchronized tells what stands in the way. Once the guest is handed over the
// condition belongs to the node agent.
func (d *decision) isSynchronized() conditionChange {
	const of = v1.VirtualMachineInstanceSynchronized
	switch {
	case d.VMI.Status.Phase == v1.Scheduled, d.VMI.Status.Phase == v1.Running:
		return leave
	case d.plan.VMI.Status.Phase == v1.Scheduled:
		return drop(of) // what the node finds there from now on is its own word
	case d.VMI.Status.Reason == ReasonNodeUnresponsive && d.Failure == nil:
		return leave // why it failed stays to be read
	case d.VMI.IsFinal() && d.lease.Epoch > 0 && d.byNode():
		return leave // it would say so again at once
	}
	switch reason, message := d.obstacle(); {
	case reason != "":
		if !d.news(reason, message) {
			return leave
		}
		d.announce(reason, message)
		return putCondition(of, corev1.ConditionFalse, reason, message)
	case len(d.Unseen) > 0:
		return leave // nothing was tried, so nothing is known to have become better
	default:
		return drop(of)
	}
}

// own are this controller's reasons for a guest that has ended.
var own = []string{
	ReasonFailedCreate, ReasonFailedDelete, ReasonFailedPodPatch, ReasonFailedHotplugSync, ReasonNodeUnresponsive,
	ReasonBackendStorageCreate, ReasonBackendStorageProbe, ReasonBackendStorageNotReady, ReasonBackendStorageDelete,
}

// byNode tells whether the node's agent says what stands in the way: a hypervisor that does not answer keeps it from
// taking away what is left of a guest that has ended.
func (d *decision) byNode() bool {
	c := d.synchronizedNow()
	return c != nil && c.Status == corev1.ConditionFalse && !slices.Contains(own, c.Reason)
}

// isScheduled tells of a Pod that cannot be placed, or not even made.
func (d *decision) isScheduled() conditionChange {
	switch d.plan.VMI.Status.Phase {
	case v1.VmPhaseUnset, v1.Pending:
		c := unplaceable(d.Snapshot, d.plan.Blocked())
		if have := conditionOf(d.VMI, podScheduledCondition); c.Set != nil && have != nil && have.Reason == c.Set.Reason {
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
		return drop(podScheduledCondition)
	case v1.Scheduled:
		return drop(podScheduledCondition)
	default:
		return leave
	}
}

func (d *decision) isImported() conditionChange { return dataVolumesReady(d.Snapshot) }

func (d *decision) isProvisioning() conditionChange {
	switch d.plan.VMI.Status.Phase {
	case v1.VmPhaseUnset, v1.Pending:
		return provisioning(d.Snapshot)
	case v1.Scheduling, v1.Scheduled:
		return drop(v1.VirtualMachineInstanceProvisioning)
	default:
		return leave
	}
}

func (d *decision) isEvicted() conditionChange { return evictionRequested(d.VMI) }

// live tells whether the guest runs and its spec may ask for more than it has.
func (d *decision) live() bool { return d.VMI.Status.Phase == v1.Running && d.handedOver() }

func (d *decision) changesCPU() conditionChange {
	if !d.live() {
		return leave
	}
	return hotVCPUChange(d.VMI)
}

func (d *decision) changesMemory() conditionChange {
	if !d.live() {
		return leave
	}
	return hotMemoryChange(d.VMI, d.Config.MemoryRatio)
}

func (d *decision) changesVolumes() conditionChange {
	if !d.live() {
		return leave
	}
	return volumesChange(d.VMI)
}

func (d *decision) mustMigrate() conditionChange {
	if !d.live() {
		return leave
	}
	return migrationRequired(d.plan.VMI, d.pod, d.Config.MigrationEvaluator, d.now)
}

// obstacle returns the reason and message of what keeps the guest from
// starting; an image that cannot be pulled is the most telling.
func (d *decision) obstacle() (reason, message string) {
	if d.pod != nil && d.VMI.Status.Phase == v1.Scheduling {
		if reason, message = pullFailure(d.pod); reason != "" {
			return reason, message
		}
		if d.lacksGuarantee() {
			return ReasonFailedGuaranteeResources, podObject(d.pod) + " is of QoS class " + string(d.pod.Status.QOSClass) +
				" and has no CPUs of its own; make requests and limits of all its containers equal, or do without spec.domain.cpu.dedicatedCpuPlacement"
		}
	}
	if d.Failure != nil {
		return d.Failure.Reason, d.Failure.Message
	}
	if w := d.displaced(); w != nil {
		return w.Reason, w.Message
	}
	if d.pod != nil {
		return d.lacking()
	}
	if w := d.plan.Blocked(); w != nil && w.Condition == "" {
		return w.Reason, w.Message
	}
	return "", ""
}

// lacking tells what the guest's Pod should have and has not.
func (d *decision) lacking() (reason, message string) {
	for _, w := range d.plan.Waits {
		if w.Reason == ReasonMissingVirtiofsContainers {
			return w.Reason, w.Message
		}
	}
	return "", ""
}

// announce tells in an event what stands in the way, when that is news.
func (d *decision) announce(reason, message string) {
	if d.news(reason, message) {
		d.plan.Events = append(d.plan.Events, Event{Warning: true, Reason: reason, Message: message})
	}
}

// news tells whether the condition says something else so far. Numbers are none: what
// is used of a quota, or the port of a connection, would be another with every try, each
// told in a write that leads to the next.
func (d *decision) news(reason, message string) bool {
	was := d.synchronizedNow()
	return was == nil || was.Status != corev1.ConditionFalse || was.Reason != reason || !SameButNumbers(was.Message, message)
}

var numbers = regexp.MustCompile(`[0-9][0-9.]*[a-zA-Z]{0,2}\b`)

// SameButNumbers tells whether two messages differ in numbers and quantities at most.
func SameButNumbers(a, b string) bool {
	return a == b || numbers.ReplaceAllString(a, "#") == numbers.ReplaceAllString(b, "#")
}

// complain says what stands in the way of a guest that was handed over.
func (d *decision) complain(reason, message string) {
	d.announce(reason, message)
	vmistatus.SetCondition(d.plan.VMI, v1.VirtualMachineInstanceCondition{
		Type: v1.VirtualMachineInstanceSynchronized, Status: corev1.ConditionFalse, Reason: reason, Message: message,
	}, d.now)
}

// misunderstood notes that the object cannot be understood and is left alone.
func (d *decision) misunderstood(reason, message string) {
	d.plan.VMI = d.VMI.DeepCopy()
	d.plan.Actions, d.plan.Events, d.plan.RequeueAt = nil, nil, nil
	c := v1.VirtualMachineInstanceCondition{Type: ConditionUnderstood, Status: corev1.ConditionFalse, Reason: reason, Message: message}
	if was := conditionOf(d.VMI, c.Type); was == nil || was.Reason != reason || was.Message != message {
		d.plan.Events = append(d.plan.Events, Event{Warning: true, Reason: reason, Message: message})
	}
	vmistatus.SetCondition(d.plan.VMI, c, d.now)
	d.lost = &Wait{Reason: reason, Message: message, Object: vmiObject(d.VMI), Until: "the object is corrected", By: ByUser, Condition: c.Type}
	d.plan.Waits = []Wait{*d.lost}
}

// isUnderstood removes the condition again: whoever comes here understood.
func (*decision) isUnderstood() conditionChange { return drop(ConditionUnderstood) }
