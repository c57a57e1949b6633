// SPDX-License-Identifier: Apache-2.0

// Package launcherpod defines the labels of a VMI's Pods, and when a Pod is ready or has ended.
package launcherpod

import corev1 "k8s.io/api/core/v1"

// LauncherApp is the value of label kubevirt.io on launcher Pods. Attachment Pods
// have the job label too, but another app.
const LauncherApp = "virt-launcher"

// Terminal reports whether all containers of the Pod have ended, so that it holds no resources.
func Terminal(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// AttachmentApp is the value of label kubevirt.io on attachment Pods.
const AttachmentApp = "hotplug-disk"

const (
	// Compute is the container in which QEMU runs.
	Compute = "compute"
	// istio may be running without being ready: its readiness probe covers the guest's application, which starts after the
	// handoff.
	istio = "istio-proxy"
)

// Ready reports whether a launcher Pod can receive a domain, by KubeVirt's rule: running and not being deleted, its
// compute and istio-proxy containers at least running, all other containers ready. (specs: VMI reconciliation 2.4)
func Ready(p *corev1.Pod) bool {
	if p.DeletionTimestamp != nil || p.Status.Phase != corev1.PodRunning {
		return false
	}
	for i := range p.Status.ContainerStatuses {
		c := &p.Status.ContainerStatuses[i]
		if c.Name == Compute || c.Name == istio {
			if c.State.Running == nil {
				return false
			}
			continue
		}
		if !c.Ready {
			return false
		}
	}
	return true
}
