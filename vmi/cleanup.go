// SPDX-License-Identifier: Apache-2.0

package vmi

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
)

// cleanup deletes Pods, and removes the finalizer.
type cleanup struct{ *decision }

// deletePods deletes every Pod of a VMI that is being deleted. Attachment Pods are
// garbage-collected with their owner.
func (d cleanup) deletePods() {
	for _, p := range d.Pods {
		d.deletePod(p, "the VirtualMachineInstance is being deleted")
	}
}

// deletePod deletes a Pod with its own grace period while its domain may run, or an agent
// that does not know the lease may start it. A Pod whose domain has ended gets the short
// grace period, even if it is already terminating.
func (d cleanup) deletePod(p *corev1.Pod, why string) {
	ended := unheld(d.lease) && !d.stockAgent(d.lease)
	a := Action{Verb: DeletePod, Pod: p, Fault: ReasonFailedDelete, Why: why}
	if ended {
		a.GraceSeconds = ptr.To[int64](endedGrace)
	}
	switch {
	case p.DeletionTimestamp == nil:
		d.do(a)
	case ended && ptr.Deref(p.DeletionGracePeriodSeconds, 0) > endedGrace:
		a.Why = "the domain has ended"
		d.do(a)
	}
}

// deleteUseless deletes the Pods of a VMI in a final phase whose lease is released: where the
// domain does not live inside the Pod, nothing else ends the Pod, and it holds resources of
// its node. A Pod that has ended by itself stays, with its logs; its attachments do not.
func (d cleanup) deleteUseless() {
	d.do(unplugAll(d.Snapshot)...)
	if d.lease.State != handoff.Released || d.lease.Epoch == 0 {
		return
	}
	for _, p := range d.Pods {
		if !PodDown(p) {
			d.deletePod(p, "the domain has ended")
		}
	}
}

// finalizers removes the finalizer once the phase is final and no Pod is left. The finalizer of
// a VirtualMachine that no longer exists is removed too.
func (d cleanup) finalizers() {
	vmi, leaves := d.plan.VMI, d.leaves()
	if d.ended() && len(d.Pods) == 0 && !d.unsure() && !d.VMExists && (leaves || !slices.ContainsFunc(vmi.Finalizers, ours)) {
		vmi.Finalizers = slices.DeleteFunc(vmi.Finalizers, func(f string) bool { return f == v1.VirtualMachineControllerFinalizer })
	}
	if !leaves {
		return
	}
	vmi.Finalizers = slices.DeleteFunc(vmi.Finalizers, ours)
	delete(vmi.Labels, v1.OutdatedLauncherImageLabel)
	vmi.Status.LauncherContainerImageVersion = ""
}
