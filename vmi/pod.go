// SPDX-License-Identifier: Apache-2.0

package vmi

import (
	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/internal/launcherpod"
)

// PodReady reports whether the launcher Pod is ready for the handoff to the node agent: it
// is Running and not terminating, its compute and istio-proxy containers run and every
// other container is ready. (specs: VMI reconciliation 2.4)
func PodReady(p *corev1.Pod) bool { return launcherpod.Ready(p) }

// PodDown reports whether the Pod or its compute container has ended.
func PodDown(p *corev1.Pod) bool {
	if podFinished(p) {
		return true
	}
	for i := range p.Status.ContainerStatuses {
		if c := &p.Status.ContainerStatuses[i]; c.Name == launcherpod.Compute && c.State.Terminated != nil {
			return true
		}
	}
	return false
}

func podFinished(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

func podGoingDown(p *corev1.Pod) bool { return PodDown(p) || p.DeletionTimestamp != nil }

func podCondition(p *corev1.Pod, t corev1.PodConditionType) *corev1.PodCondition {
	for i := range p.Status.Conditions {
		if p.Status.Conditions[i].Type == t {
			return &p.Status.Conditions[i]
		}
	}
	return nil
}

// unpaused returns the value of the Pod's readiness gate; known is false while the Pod has
// no such condition.
func unpaused(p *corev1.Pod) (value, known bool) {
	c := podCondition(p, v1.VirtualMachineUnpaused)
	if c == nil {
		return false, false
	}
	return c.Status == corev1.ConditionTrue, true
}

// podObject returns the Wait.Object of a Pod.
func podObject(p *corev1.Pod) string { return "Pod " + p.Namespace + "/" + p.Name }

// pullFailure returns the waiting reason and message of a container whose image cannot be
// pulled, init containers first.
func pullFailure(p *corev1.Pod) (reason, message string) {
	for _, list := range [][]corev1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses} {
		for i := range list {
			if w := list[i].State.Waiting; w != nil && (w.Reason == "ErrImagePull" || w.Reason == "ImagePullBackOff") {
				return w.Reason, w.Message
			}
		}
	}
	return "", ""
}
