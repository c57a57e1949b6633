// SPDX-License-Identifier: Apache-2.0

package vmi

import (
	"regexp"

	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/internal/vmistatus"
)

// problem is what keeps the VMI from making progress, as condition Synchronized and events report it.
type problem struct{ *decision }

// current returns the reason and message of the condition that keeps the VMI from
// starting; an image pull failure takes precedence.
func (d problem) current() (reason, message string) {
	if d.pod != nil && d.VMI.Status.Phase == v1.Scheduling {
		if reason, message = pullFailure(d.pod); reason != "" {
			return reason, message
		}
		if offer(d).lacksGuarantee() {
			return ReasonFailedGuaranteeResources, podObject(d.pod) + " is of QoS class " + string(d.pod.Status.QOSClass) +
				", not Guaranteed; make requests and limits of all its containers equal, or remove spec.domain.cpu.dedicatedCpuPlacement"
		}
	}
	if d.Failure != nil {
		return d.Failure.Reason, d.Failure.Message
	}
	if w := creation(d).displaced(); w != nil {
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

// lacking returns the reason and message of containers that the launcher Pod lacks.
func (d problem) lacking() (reason, message string) {
	for _, w := range d.plan.Waits {
		if w.Reason == ReasonMissingVirtiofsContainers {
			return w.Reason, w.Message
		}
	}
	return "", ""
}

// stored returns the stored Synchronized condition, nil if there is none.
func (d problem) stored() *v1.VirtualMachineInstanceCondition {
	return vmistatus.Condition(d.VMI, v1.VirtualMachineInstanceSynchronized)
}

var numbers = regexp.MustCompile(`[0-9][0-9.]*[a-zA-Z]{0,2}\b`)

// isNew reports whether the condition says something else so far. Numbers are ignored: used
// quota or a connection's port would differ with every attempt, and each write would trigger
// the next.
func (d problem) isNew(reason, message string) bool {
	was := d.stored()
	return was == nil || was.Status != corev1.ConditionFalse || was.Reason != reason || !sameButNumbers(was.Message, message)
}

// sameButNumbers reports whether two messages are equal except for numbers and quantities.
func sameButNumbers(a, b string) bool {
	return a == b || numbers.ReplaceAllString(a, "#") == numbers.ReplaceAllString(b, "#")
}

// announce emits an event for a problem that the condition does not report yet.
func (d problem) announce(reason, message string) {
	if d.isNew(reason, message) {
		d.plan.Events = append(d.plan.Events, Event{Warning: true, Reason: reason, Message: message})
	}
}

// report sets the Synchronized condition of a VMI after its handoff.
func (d problem) report(reason, message string) {
	d.announce(reason, message)
	vmistatus.SetCondition(d.plan.VMI, v1.VirtualMachineInstanceCondition{
		Type: v1.VirtualMachineInstanceSynchronized, Status: corev1.ConditionFalse, Reason: reason, Message: message,
	}, d.now)
}
