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
)

// The reasons of the Ready condition.
const (
	reasonPodNotExists       = "PodNotExists"
	reasonPodTerminating     = "PodTerminating"
	reasonGuestNotRunning    = "GuestNotRunning"
	reasonPodConditionAbsent = "PodConditionMissing"
)

const podScheduledCondition = v1.VirtualMachineInstanceConditionType(corev1.PodScheduled)

// ready derives the Ready condition from Pod and phase.
func (d *decision) ready() {
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
	switch d.VMI.Status.Phase {
	case v1.Scheduled, v1.Running:
		return
	}
	reason, message := d.obstacle()
	if reason == "" {
		vmistatus.RemoveCondition(d.plan.VMI, v1.VirtualMachineInstanceSynchronized)
		return
	}
	vmistatus.SetCondition(d.plan.VMI, v1.VirtualMachineInstanceCondition{
		Type: v1.VirtualMachineInstanceSynchronized, Status: corev1.ConditionFalse, Reason: reason, Message: message,
	}, d.now)
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
	if c := d.plan.Blocked(); c != nil && c.Name != "expectations" {
		return c.Reason, c.Message
	}
	return "", ""
}
