// SPDX-License-Identifier: Apache-2.0

package vmi

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/internal/launcherpod"
)

// attachmentApp is the value of the label kubevirt.io of attachment and trigger Pods.
const attachmentApp = "hotplug-disk"

// temporaries returns the first-consumer Pods of the claims of the launcher Pod: Pods of the
// VMI, or of its Pod, with the annotation kubevirt.io/ephemeral-provisioning. Triggers of
// hotplugged volumes are not included.
func temporaries(s Snapshot) []*corev1.Pod {
	var all []*corev1.Pod
	for _, p := range slices.Concat(s.Pods, s.Attachments) {
		if p != nil && isTemporary(p) && p.Labels[v1.AppLabel] != attachmentApp {
			all = append(all, p)
		}
	}
	return all
}

// staleTemporaries deletes temporary Pods once no claim waits for a first consumer anymore,
// without grace period, because nothing runs in them. A Pending Pod is deleted as well: it
// would block the launcher Pod for as long as it is unschedulable. A terminating one is left
// alone.
func staleTemporaries(s Snapshot) []Action {
	if firstConsumer(s) {
		return nil
	}
	var stale []Action
	for _, p := range temporaries(s) {
		if p.DeletionTimestamp == nil {
			stale = append(stale, Action{
				Verb: DeletePod, Pod: p, GraceSeconds: ptr.To[int64](0), Fault: ReasonFailedHotplugSync,
				Why: "no claim waits for a first consumer",
			})
		}
	}
	return stale
}

// temporaryFailed returns a temporary Pod that has failed or is terminating while a claim still
// waits for its first consumer: the VMI cannot start then.
func temporaryFailed(s Snapshot) *corev1.Pod {
	if !firstConsumer(s) {
		return nil
	}
	for _, p := range temporaries(s) {
		if p.DeletionTimestamp != nil || p.Status.Phase == corev1.PodFailed || brokeDown(p) {
			return p
		}
	}
	return nil
}

// brokeDown reports whether the compute container ended with an error.
func brokeDown(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.ContainerStatuses, func(c corev1.ContainerStatus) bool {
		return c.Name == launcherpod.Compute && c.State.Terminated != nil && c.State.Terminated.ExitCode != 0
	})
}

// unplaceable computes the PodScheduled condition of a VMI without a launcher Pod: it is
// unschedulable while one of its claims does not exist, as reported by blocked, or while the
// first-consumer Pod is unschedulable. With a Pod, and while own writes are unobserved, the
// condition is left unchanged.
func unplaceable(s Snapshot, blocked *Wait) conditionChange {
	change := conditionChange{Type: podScheduledCondition}
	if !unprocessed(s.VMI) || s.Launcher() != nil || len(s.Pending) > 0 {
		return change
	}
	c := &v1.VirtualMachineInstanceCondition{Type: change.Type, Status: corev1.ConditionFalse}
	if blocked != nil && blocked.Reason == ReasonPvcNotFound {
		c.Reason, c.Message = corev1.PodReasonUnschedulable, blocked.Message
		change.Set = c
		return change
	}
	if firstConsumer(s) {
		for _, p := range temporaries(s) {
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
