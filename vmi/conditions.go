// SPDX-License-Identifier: Apache-2.0

package vmi

import (
	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/internal/vmistatus"
)

// Reasons of the Synchronized condition this controller sets, as KubeVirt
// spells them.
const (
	// ReasonFailedCreate: the guest's Pod could not be rendered or created.
	ReasonFailedCreate = "FailedCreate"
	// ReasonFailedDelete: a Pod of the guest could not be deleted.
	ReasonFailedDelete = "FailedDelete"
	// ReasonFailedPodPatch: the guest's Pod could not be patched.
	ReasonFailedPodPatch = "FailedPodPatch"
	// ReasonPvcNotFound: a PersistentVolumeClaim does not exist.
	ReasonPvcNotFound = "FailedPvcNotFound"
	// ReasonNodeUnresponsive: the node did not answer in time; also the value
	// of status.reason, as KubeVirt's node controller sets it.
	ReasonNodeUnresponsive = "NodeUnresponsive"
)

// The reasons of the Ready condition.
const (
	reasonPodNotExists       = "PodNotExists"
	reasonPodTerminating     = "PodTerminating"
	reasonGuestNotRunning    = "GuestNotRunning"
	reasonPodConditionAbsent = "PodConditionMissing"
)

const podScheduledCondition = v1.VirtualMachineInstanceConditionType(corev1.PodScheduled)

// ready derives the Ready condition from Pod and phase. That there is no Pod is
// not said while own writes are unseen: the Pod may be one of them.
func (d *decision) ready() {
	if d.pod == nil && len(d.Unseen) > 0 {
		return
	}
	c := v1.VirtualMachineInstanceCondition{Type: v1.VirtualMachineInstanceReady, Status: corev1.ConditionFalse}
	switch {
	case d.pod == nil:
		c.Reason, c.Message = reasonPodNotExists, "the guest has no Pod on its node"
	case podGoingDown(d.pod):
		c.Reason, c.Message = reasonPodTerminating, "the Pod of the guest has ended or is ending"
	case d.VMI.Status.Phase != v1.Running:
		c.Reason, c.Message = reasonGuestNotRunning, "the node has not reported the guest as running"
	default:
		if ready := podCondition(d.pod, corev1.PodReady); ready != nil {
			c.Status, c.Reason, c.Message = ready.Status, ready.Reason, ready.Message
		} else {
			c.Reason, c.Message = reasonPodConditionAbsent, "the Pod of the guest has no Ready condition"
		}
	}
	vmistatus.SetCondition(d.plan.VMI, c, d.now)
}

// podScheduled mirrors a Pod that cannot be placed.
func (d *decision) podScheduled() {
	c := podCondition(d.pod, corev1.PodScheduled)
	if c == nil || c.Status != corev1.ConditionFalse {
		vmistatus.RemoveCondition(d.plan.VMI, podScheduledCondition)
		return
	}
	vmistatus.SetCondition(d.plan.VMI, v1.VirtualMachineInstanceCondition{
		Type: podScheduledCondition, Status: c.Status, Reason: c.Reason, Message: c.Message,
	}, d.now)
}

// synchronized tells what stands in the way. Once the guest is handed over the
// condition belongs to the node agent.
func (d *decision) synchronized() {
	switch {
	case d.VMI.Status.Phase == v1.Scheduled, d.VMI.Status.Phase == v1.Running:
		return
	case d.plan.VMI.Status.Phase == v1.Scheduled:
		// What the node finds there from now on is its own word.
		vmistatus.RemoveCondition(d.plan.VMI, v1.VirtualMachineInstanceSynchronized)
		return
	case d.VMI.Status.Reason == ReasonNodeUnresponsive && d.Failure == nil:
		return // why it failed stays to be read
	}
	switch reason, message := d.obstacle(); {
	case reason != "":
		d.complain(reason, message)
	case len(d.Unseen) > 0:
		// Nothing was tried, so nothing is known to have become better.
	default:
		vmistatus.RemoveCondition(d.plan.VMI, v1.VirtualMachineInstanceSynchronized)
	}
}

// complain says in the Synchronized condition what stands in the way, and in an
// event when that is news.
func (d *decision) complain(reason, message string) {
	was := d.synchronizedNow()
	if was == nil || was.Status != corev1.ConditionFalse || was.Reason != reason || was.Message != message {
		d.plan.Events = append(d.plan.Events, Event{Warning: true, Reason: reason, Message: message})
	}
	vmistatus.SetCondition(d.plan.VMI, v1.VirtualMachineInstanceCondition{
		Type: v1.VirtualMachineInstanceSynchronized, Status: corev1.ConditionFalse, Reason: reason, Message: message,
	}, d.now)
}

// synchronizedNow is the stored Synchronized condition, nil if there is none.
func (d *decision) synchronizedNow() *v1.VirtualMachineInstanceCondition {
	for i := range d.VMI.Status.Conditions {
		if c := &d.VMI.Status.Conditions[i]; c.Type == v1.VirtualMachineInstanceSynchronized {
			return c
		}
	}
	return nil
}

// obstacle returns the reason and message of what keeps the guest from
// starting; an image that cannot be pulled is the most telling.
func (d *decision) obstacle() (reason, message string) {
	if d.pod != nil && d.VMI.Status.Phase == v1.Scheduling {
		if reason, message = pullFailure(d.pod); reason != "" {
			return reason, message
		}
	}
	if d.Failure != nil {
		return d.Failure.Reason, d.Failure.Message
	}
	if w := d.plan.Blocked(); w != nil && len(d.Unseen) == 0 {
		return w.Reason, w.Message
	}
	return "", ""
}
