// SPDX-License-Identifier: Apache-2.0

package vmi

import (
	"fmt"
	"slices"

	"k8s.io/utils/ptr"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/internal/vmistatus"
)

// launcherPod maintains the launcher Pod and the attachment Pods beside it.
type launcherPod struct{ *decision }

// maintain maintains a VMI that has its launcher Pod.
func (d launcherPod) maintain() {
	d.do(staleTemporaries(d.Snapshot)...)
	if name := lacksVirtiofs(d.VMI, d.pod); name != "" && !podGoingDown(d.pod) {
		message := fmt.Sprintf("%s lacks container %s, which shares a containerPath volume; hotplug is suspended until the VirtualMachineInstance is recreated",
			podObject(d.pod), name)
		d.wait(Wait{
			Reason: ReasonMissingVirtiofsContainers, Object: podObject(d.pod), Responsible: handoff.ByUser, Until: "the VirtualMachineInstance is recreated", Message: message,
		})
		if p := d.VMI.Status.Phase; p == v1.Scheduled || p == v1.Running {
			d.plan.Trouble = &Failure{Reason: ReasonMissingVirtiofsContainers, Message: message}
		}
		return
	}
	d.hotplug()
}

// hotplug decides about hotplugged volumes.
func (d launcherPod) hotplug() {
	p := hotplug(d.Snapshot, d.pod, d.now, d.Config.HotplugBatch)
	// The status of volumes follows what is attached, whether or not this pass may act.
	d.plugged = p.Plugged
	if d.Failure != nil {
		return
	}
	d.do(p.Actions...)
	d.plan.Waits = append(d.plan.Waits, p.Waits...)
	if p.RequeueAt != nil {
		d.requeue(*p.RequeueAt)
	}
}

// sync synchronizes the launcher Pod with the VMI in one write: labels, annotations, and the
// readiness gate, which is false while the VMI is paused. The first write belongs to the
// handoff: no node reads the Pod before.
func (d launcherPod) sync() {
	if !d.handedOff() || d.VMI.DeletionTimestamp != nil || d.Failure != nil || podGoingDown(d.pod) {
		return
	}
	a := Action{Verb: PatchPod, Pod: d.pod, Fault: ReasonFailedPodPatch, Why: "the VirtualMachineInstance has changed"}
	a.Labels, a.Annotations = PodMetadata(d.plan.VMI, d.pod, PodKeys{
		Labels: d.Config.SyncLabels, Annotations: d.Config.SyncAnnotations,
		StorageKeys: d.Snapshot.Annotations.StorageKeys, StorageAnnotations: d.Snapshot.Annotations.Storage,
		NetworkAnnotations: d.Snapshot.Annotations.Network,
	})
	a.Unpaused = d.readinessGate()
	if a.Labels != nil || a.Annotations != nil || a.Unpaused != nil {
		// First: the handoff is stored after all actions, so a node that reads the Pod finds it complete.
		d.plan.Actions = slices.Insert(d.plan.Actions, 0, a)
	}
}

// readinessGate returns the new value of the Pod's readiness gate; nil if it is up to date.
func (d launcherPod) readinessGate() *bool {
	paused := vmistatus.IsTrue(d.VMI, v1.VirtualMachineInstancePaused)
	switch value, known := unpaused(d.pod); {
	case paused && known && value, !paused && !value:
		return ptr.To(!paused)
	}
	return nil
}
