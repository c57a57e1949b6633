// SPDX-License-Identifier: Apache-2.0

package vmi

import (
	corev1 "k8s.io/api/core/v1"
)

// pluggedState is what plugging comes to for one volume. It is computed once for
// all, so that the status never tells of a Pod other than the one that is kept.
type pluggedState struct {
	// Pod is the attachment Pod that carries the volume; nil if there is none.
	Pod *corev1.Pod
	// Wanted says that the volume is to be plugged: the guest's spec has it, and the
	// guest's Pod does not.
	Wanted bool
	// Reason and Message say what keeps a wanted volume from having a Pod, where more
	// is known than the phase of its claim; both may be empty.
	Reason, Message string
}
