// SPDX-License-Identifier: Apache-2.0

// Package launcherpod defines the labels of a VMI's Pods, and when a Pod has ended.
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
