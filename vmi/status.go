// SPDX-License-Identifier: Apache-2.0

package vmi

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/internal/vmistatus"
)

// deprecatedFinalizer is the unqualified finalizer of old KubeVirt releases.
const deprecatedFinalizer = "foregroundDeleteVirtualMachine"

// status computes what the object shall say.
func (d *decision) status() {
	silent, err := d.silence()
	switch {
	case err != nil:
		d.misunderstood(ReasonFailedHandover, err.Error())
	case !silent:
		d.phase()
	}
	if d.lost != nil {
		return
	}
	d.activePods()
	d.image()
	d.memory()
	d.interfaces()
	d.volumes()
	d.hints()
	d.conditions()
	d.finalizers()
}

// activePods records on which node each Pod of the guest is. While the Pod is
// being placed nobody asks: that waits for the write that hands the guest over. So does
// a Pod that a guest is to move to: it is recorded with the move, by who begins that.
func (d *decision) activePods() {
	if d.pod == nil && len(d.Unseen) > 0 {
		return
	}
	if d.VMI.Status.Phase == v1.Scheduling && d.plan.VMI.Status.Phase == v1.Scheduling && d.VMI.Status.ActivePods != nil {
		return
	}
	was := d.VMI.Status.ActivePods
	active := map[types.UID]string{}
	for _, p := range d.Pods {
		if _, known := was[p.UID]; known || d.VMI.Status.Phase != v1.Running || d.concerns(p) {
			active[p.UID] = p.Spec.NodeName
		}
	}
	if !maps.Equal(active, was) {
		d.plan.VMI.Status.ActivePods = active
	}
}

// concerns tells whether a Pod beside those that are known has a node and, if it was made for a move, that this is
// the one.
func (d *decision) concerns(p *corev1.Pod) bool {
	m := d.VMI.Status.MigrationState
	move, moves := p.Labels[v1.MigrationJobLabel]
	return p.Spec.NodeName != "" && (!moves || m != nil && string(m.MigrationUID) == move)
}

// handedOver tells whether the guest is, or is now being, handed over to its node
// and its Pod is known: what is told of Pod and volumes is for the node from then on.
func (d *decision) handedOver() bool {
	if d.pod == nil || len(d.Unseen) > 0 {
		return false
	}
	p := d.plan.VMI.Status.Phase
	return p == v1.Scheduled || p == v1.Running
}

// interfaces tells which of the Pod's interfaces serve the guest's networks. What
// cannot be read of the Pod stays as it was.
func (d *decision) interfaces() {
	if !d.handedOver() {
		return
	}
	if is, err := d.Config.NetworkStatus(d.VMI, d.pod); err == nil {
		d.plan.VMI.Status.Interfaces = is
	}
}

// hints tells on which clock the guest counts. Its Pod is rendered from what is
// stored, so that it comes after.
func (d *decision) hints() {
	if !unprocessed(d.VMI) || d.VMI.DeletionTimestamp != nil || d.VMI.Status.TopologyHints != nil || d.pod != nil {
		return
	}
	if hints, err := d.Config.TopologyHints(d.VMI, d.Nodes, d.Config.MinimumTSC); err == nil {
		d.plan.VMI.Status.TopologyHints = hints
	}
}

// image tells which image the guest's Pod has and whether that is outdated.
func (d *decision) image() {
	if d.pod != nil && d.plan.VMI.Status.Phase != v1.Pending {
		version, outdated := launcherImage(d.pod, d.Config.LauncherImage)
		setLauncherImage(d.plan.VMI, version, outdated)
	}
}

// memory tells what the hypervisor needs beside the guest's memory.
func (d *decision) memory() {
	if !d.Config.ReportOverhead || !d.handedOver() {
		return
	}
	if overhead := memoryOverhead(d.VMI, d.pod); overhead != nil {
		if d.plan.VMI.Status.Memory == nil {
			d.plan.VMI.Status.Memory = &v1.MemoryStatus{}
		}
		d.plan.VMI.Status.Memory.MemoryOverhead = overhead
	}
}

// volumes tells how far each volume is on its way into the guest. Of one that is to end
// nothing is changed: its node ends it with what it has.
func (d *decision) volumes() {
	if !d.handedOver() || d.VMI.DeletionTimestamp != nil {
		return
	}
	if d.plugged == nil {
		d.plugged = hotplug(d.Snapshot, d.pod, d.now, d.Config.HotplugBatch).Plugged
	}
	status, events := volumeStatus(d.Snapshot, d.pod, d.plugged)
	d.plan.VMI.Status.VolumeStatus = status
	d.plan.Events = append(d.plan.Events, events...)
}

// plug decides on what is plugged into the guest.
func (d *decision) plug() {
	p := hotplug(d.Snapshot, d.pod, d.now, d.Config.HotplugBatch)
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

// syncPod keeps the guest's Pod like the guest, in one write: its labels and
// annotations, and its readiness gate, which is closed while the guest is paused. The
// first is due when the guest is handed over: no node looks at the Pod before.
func (d *decision) syncPod() {
	if !d.handedOver() || d.VMI.DeletionTimestamp != nil || d.Failure != nil || podGoingDown(d.pod) {
		return
	}
	a := Action{Verb: PatchPod, Pod: d.pod, Fault: ReasonFailedPodPatch, Why: "the guest says so"}
	a.Labels, a.Annotations = PodMetadata(d.plan.VMI, d.pod, PodKeys{
		Labels: d.Config.SyncLabels, Annotations: d.Config.SyncAnnotations,
		StorageKeys: d.Snapshot.Annotations.StorageKeys, StorageAnnotations: d.Snapshot.Annotations.Storage,
		NetworkAnnotations: d.Snapshot.Annotations.Network,
	})
	a.Unpaused = d.gate()
	if a.Labels != nil || a.Annotations != nil || a.Unpaused != nil {
		d.plan.Actions = slices.Insert(d.plan.Actions, 0, a)
	}
}

// gate is what the readiness gate of the Pod shall say; nil if it says so.
func (d *decision) gate() *bool {
	paused := vmistatus.IsTrue(d.VMI, v1.VirtualMachineInstancePaused)
	switch value, known := unpaused(d.pod); {
	case paused && known && value, !paused && !value:
		return ptr.To(!paused)
	}
	return nil
}

// finalizers lets the object go once the guest has ended, its phase says so
// and no Pod of it is left. That of its VirtualMachine goes too where there is none
// any more to take it away.
func (d *decision) finalizers() {
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

// ourFinalizer puts the finalizer into a list, once and in the place of that of before.
func ourFinalizer(list []string) []string {
	if !slices.Contains(list, v1.VirtualMachineInstanceFinalizer) {
		i := slices.Index(list, deprecatedFinalizer)
		if i < 0 {
			return append(list, v1.VirtualMachineInstanceFinalizer)
		}
		list[i] = v1.VirtualMachineInstanceFinalizer
	}
	return slices.DeleteFunc(list, func(f string) bool { return f == deprecatedFinalizer })
}

// ours tells whether a finalizer is the one this controller puts on the object, by
// its name of today or of before.
func ours(finalizer string) bool {
	return finalizer == v1.VirtualMachineInstanceFinalizer || finalizer == deprecatedFinalizer
}
