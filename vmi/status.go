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

// status computes the new status of the object.
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

// activePods records the node of each Pod of the VMI. While the Pod is being scheduled the
// write is deferred to the handoff. A migration's target Pod is recorded by the migration
// controller when the migration begins.
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

// concerns reports whether a Pod that is not recorded yet has a node and, if it is the target of a migration, that
// migration is the recorded one.
func (d *decision) concerns(p *corev1.Pod) bool {
	m := d.VMI.Status.MigrationState
	move, moves := p.Labels[v1.MigrationJobLabel]
	return p.Spec.NodeName != "" && (!moves || m != nil && string(m.MigrationUID) == move)
}

// handedOff reports whether the handoff to the node is or is now being made and the Pod is
// known: the node reads the status of interfaces and volumes from then on.
func (d *decision) handedOff() bool {
	if d.pod == nil || len(d.Unseen) > 0 {
		return false
	}
	p := d.plan.VMI.Status.Phase
	return p == v1.Scheduled || p == v1.Running
}

// interfaces updates status.interfaces from the Pod. If the Pod's annotations cannot be parsed,
// the stored value is kept.
func (d *decision) interfaces() {
	if !d.handedOff() {
		return
	}
	if is, err := d.Config.NetworkStatus(d.VMI, d.pod); err == nil {
		d.plan.VMI.Status.Interfaces = is
	}
}

// hints stores the TSC frequency of the VMI. The Pod is rendered from the stored value, and
// therefore later.
func (d *decision) hints() {
	if !unprocessed(d.VMI) || d.VMI.DeletionTimestamp != nil || d.VMI.Status.TopologyHints != nil || d.pod != nil {
		return
	}
	if hints, err := d.Config.TopologyHints(d.VMI, d.Nodes, d.Config.MinimumTSC); err == nil {
		d.plan.VMI.Status.TopologyHints = hints
	}
}

// image records the image of the launcher Pod and whether it is outdated.
func (d *decision) image() {
	if d.pod != nil && d.plan.VMI.Status.Phase != v1.Pending {
		version, outdated := launcherImage(d.pod, d.Config.LauncherImage)
		setLauncherImage(d.plan.VMI, version, outdated)
	}
}

// memory records the memory overhead of the hypervisor.
func (d *decision) memory() {
	if !d.Config.ReportOverhead || !d.handedOff() {
		return
	}
	if overhead := memoryOverhead(d.VMI, d.pod); overhead != nil {
		if d.plan.VMI.Status.Memory == nil {
			d.plan.VMI.Status.Memory = &v1.MemoryStatus{}
		}
		d.plan.VMI.Status.Memory.MemoryOverhead = overhead
	}
}

// volumes updates the status of each volume. While the VMI is being deleted nothing changes:
// its node ends the domain with its current volumes.
func (d *decision) volumes() {
	if !d.handedOff() || d.VMI.DeletionTimestamp != nil {
		return
	}
	if d.plugged == nil {
		d.plugged = hotplug(d.Snapshot, d.pod, d.now, d.Config.HotplugBatch).Plugged
	}
	status, events := volumeStatus(d.Snapshot, d.pod, d.plugged)
	d.plan.VMI.Status.VolumeStatus = status
	d.plan.Events = append(d.plan.Events, events...)
}

// plug decides about hotplugged volumes.
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

// syncPod synchronizes the launcher Pod with the VMI in one write: labels, annotations, and the
// readiness gate, which is false while the VMI is paused. The first write belongs to the
// handoff: no node reads the Pod before.
func (d *decision) syncPod() {
	if !d.handedOff() || d.VMI.DeletionTimestamp != nil || d.Failure != nil || podGoingDown(d.pod) {
		return
	}
	a := Action{Verb: PatchPod, Pod: d.pod, Fault: ReasonFailedPodPatch, Why: "the VirtualMachineInstance has changed"}
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

// gate returns the new value of the Pod's readiness gate; nil if it is up to date.
func (d *decision) gate() *bool {
	paused := vmistatus.IsTrue(d.VMI, v1.VirtualMachineInstancePaused)
	switch value, known := unpaused(d.pod); {
	case paused && known && value, !paused && !value:
		return ptr.To(!paused)
	}
	return nil
}

// finalizers removes the finalizer once the phase is final and no Pod is left. The finalizer of
// a VirtualMachine that no longer exists is removed too.
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

// ourFinalizer adds the finalizer to a list, once, in place of the deprecated one.
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

// ours reports whether a finalizer is that of this controller, by its current or deprecated
// name.
func ours(finalizer string) bool {
	return finalizer == v1.VirtualMachineInstanceFinalizer || finalizer == deprecatedFinalizer
}
