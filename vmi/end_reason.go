// SPDX-License-Identifier: Apache-2.0

package vmi

import (
	"regexp"

	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/internal/launcherpod"
	"github.com/virtloom/virtloom/internal/vmistatus"
)

const (
	// outOfMemory is the kubelet's reason for a container of which the kernel has killed a process for want of memory.
	outOfMemory = "OOMKilled"
	// reasonLauncherFailed stands for an end of the launcher for which the kubelet has no better word than Error.
	reasonLauncherFailed = "LauncherFailed"
)

// reasonWord is what a reason may look like: the status of a Pod may have any text, of any length.
var reasonWord = regexp.MustCompile(`^[A-Z][A-Za-z]{0,63}$`)

// endReason stores in status.reason what has ended the launcher of a VMI that has failed, as its kubelet reports it: OOMKilled,
// Evicted and others. KubeVirt leaves it to the Pod. What the node agent has stored about the domain stays, but for a crash of which
// want of memory is the cause: the agent reports it before the kubelet says why.
func (d statusFields) endReason() {
	st := &d.plan.VMI.Status
	if st.Phase != v1.Failed || d.VMI.DeletionTimestamp != nil || d.pod == nil {
		return
	}
	switch why := launcherEndReason(d.pod); {
	case why == "":
	case st.Reason == "", st.Reason == vmistatus.ReasonGuestCrashed && why == outOfMemory:
		st.Reason = why
	}
}

// launcherEndReason returns why the Pod or its compute container has failed; empty if it has not, or if nothing is known.
func launcherEndReason(p *corev1.Pod) (reason string) {
	if p.Status.Phase == corev1.PodFailed {
		reason = p.Status.Reason
	}
	for i := range p.Status.ContainerStatuses {
		c := &p.Status.ContainerStatuses[i]
		if end := c.State.Terminated; c.Name == launcherpod.Compute && end != nil && end.ExitCode != 0 && reason == "" {
			reason = end.Reason
		}
	}
	switch {
	case reason == "":
		return ""
	case reason == "Error", !reasonWord.MatchString(reason):
		return reasonLauncherFailed
	}
	return reason
}
