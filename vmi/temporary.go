// SPDX-License-Identifier: Apache-2.0

package vmi

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	v1 "kubevirt.io/api/core/v1"
)

// attachmentApp is the value of the label kubevirt.io of Pods that serve a plugged
// volume: attachments and triggers.
const attachmentApp = "hotplug-disk"

// temporaries are the Pods that are there to have the claims of the guest's own Pod
// provisioned: Pods of the guest, or of its Pod, with the annotation
// kubevirt.io/ephemeral-provisioning. Triggers of plugged volumes are none of them.
func (s Snapshot) temporaries() []*corev1.Pod {
	var all []*corev1.Pod
	for _, p := range slices.Concat(s.Pods, s.Attachments) {
		if p != nil && isTemporary(p) && p.Labels[v1.AppLabel] != attachmentApp {
			all = append(all, p)
		}
	}
	return all
}

// staleTemporaries deletes temporary Pods once no claim waits for a first consumer any
// more, at once, as there is nothing in them to be ended. One that is still Pending is
// deleted as well: it would be in the way of the guest's Pod for as long as it cannot be
// placed. One that is terminating is left to itself.
func staleTemporaries(s Snapshot) []Action {
	if s.firstConsumer() {
		return nil
	}
	var stale []Action
	for _, p := range s.temporaries() {
		if p.DeletionTimestamp == nil {
			stale = append(stale, Action{
				Verb: DeletePod, Pod: p, GraceSeconds: ptr.To[int64](0), Fault: ReasonFailedHotplugSync,
				Why: "no claim waits for a first consumer",
			})
		}
	}
	return stale
}

// temporaryFailed returns a temporary Pod that has failed, or is going down, while a
// claim still waits for it: the guest cannot be started then.
func temporaryFailed(s Snapshot) *corev1.Pod {
	if !s.firstConsumer() {
		return nil
	}
	for _, p := range s.temporaries() {
		if p.DeletionTimestamp != nil || p.Status.Phase == corev1.PodFailed || brokeDown(p) {
			return p
		}
	}
	return nil
}

// brokeDown tells whether the compute container ended with an error.
func brokeDown(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.ContainerStatuses, func(c corev1.ContainerStatus) bool {
		return c.Name == computeContainer && c.State.Terminated != nil && c.State.Terminated.ExitCode != 0
	})
}

// unplaceable is the PodScheduled condition of a guest that has no Pod of its own yet:
// it cannot be placed while one of its claims does not exist, which blocked says, or
// while the Pod that is to have them provisioned cannot be. Of a guest with a Pod, and
// while own writes are unseen, whatever is said stays.
func unplaceable(s Snapshot, blocked *Wait) conditionChange {
	change := conditionChange{Type: podScheduledCondition}
	if !unprocessed(s.VMI) || s.Launcher() != nil || len(s.Unseen) > 0 {
		return change
	}
	c := &v1.VirtualMachineInstanceCondition{Type: change.Type, Status: corev1.ConditionFalse}
	if blocked != nil && blocked.Reason == ReasonPvcNotFound {
		c.Reason, c.Message = corev1.PodReasonUnschedulable, blocked.Message
		change.Set = c
		return change
	}
	if s.firstConsumer() {
		for _, p := range s.temporaries() {
			if is := podCondition(p, corev1.PodScheduled); is != nil && is.Status == corev1.ConditionFalse {
				c.Reason, c.Message = is.Reason, is.Message
				change.Set = c
				return change
			}
		}
	}
	change.Remove = true
	return change
}
