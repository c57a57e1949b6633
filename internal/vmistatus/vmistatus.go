// SPDX-License-Identifier: Apache-2.0

// Package vmistatus edits the parts of a VirtualMachineInstance's status that have more than
// one writer: phase and conditions. Its functions are not synchronized; callers edit their own
// copies.
package vmistatus

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"
)

// Reasons that the node agent stores in status.reason of a VMI that has failed, and emits events with.
const (
	// ReasonGuestPanicked: the guest's kernel has panicked.
	ReasonGuestPanicked = "GuestPanicked"
	// ReasonGuestCrashed: the domain's process has crashed, or ended because the guest did.
	ReasonGuestCrashed = "GuestCrashed"
	// ReasonGuestLost: a part of the VMI is lost, so that it cannot continue.
	ReasonGuestLost = "GuestLost"
)

// SetPhase sets the phase and records when it was first entered
// (status.phaseTransitionTimestamps).
func SetPhase(vmi *v1.VirtualMachineInstance, p v1.VirtualMachineInstancePhase, now time.Time) {
	st := &vmi.Status
	st.Phase = p
	for _, t := range st.PhaseTransitionTimestamps {
		if t.Phase == p {
			return
		}
	}
	st.PhaseTransitionTimestamps = append(st.PhaseTransitionTimestamps,
		v1.VirtualMachineInstancePhaseTransitionTimestamp{Phase: p, PhaseTransitionTimestamp: metav1.NewTime(now)})
}

// SetCondition adds or replaces a condition. The transition time changes with the status
// only.
func SetCondition(vmi *v1.VirtualMachineInstance, c v1.VirtualMachineInstanceCondition, now time.Time) {
	c.LastTransitionTime = metav1.NewTime(now)
	list := vmi.Status.Conditions
	for i, have := range list {
		if have.Type != c.Type {
			continue
		}
		if have.Status == c.Status {
			c.LastTransitionTime = have.LastTransitionTime
		}
		c.LastProbeTime = have.LastProbeTime
		list[i] = c
		return
	}
	vmi.Status.Conditions = append(list, c)
}

// RemoveCondition removes a condition, if it exists.
func RemoveCondition(vmi *v1.VirtualMachineInstance, t v1.VirtualMachineInstanceConditionType) {
	for i, c := range vmi.Status.Conditions {
		if c.Type == t {
			vmi.Status.Conditions = append(vmi.Status.Conditions[:i:i], vmi.Status.Conditions[i+1:]...)
			return
		}
	}
}

// IsTrue reports whether a condition exists and is True.
func IsTrue(vmi *v1.VirtualMachineInstance, t v1.VirtualMachineInstanceConditionType) bool {
	c := Condition(vmi, t)
	return c != nil && c.Status == corev1.ConditionTrue
}

// Condition returns the condition of that type, nil if there is none. The result points into the object.
func Condition(vmi *v1.VirtualMachineInstance, t v1.VirtualMachineInstanceConditionType) *v1.VirtualMachineInstanceCondition {
	for i := range vmi.Status.Conditions {
		if vmi.Status.Conditions[i].Type == t {
			return &vmi.Status.Conditions[i]
		}
	}
	return nil
}
