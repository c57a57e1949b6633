// SPDX-License-Identifier: Apache-2.0

package vmi

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"
)

// deprecatedFinalizer is the unqualified finalizer of old KubeVirt releases.
const deprecatedFinalizer = "foregroundDeleteVirtualMachine"

// statusFields computes the status of the VMI.
type statusFields struct{ *decision }

// update computes the new status of the object.
func (d statusFields) update() {
	silent, err := unresponsiveNode(d).decide()
	switch {
	case err != nil:
		d.misunderstood(ReasonFailedHandover, err.Error())
	case !silent:
		d.phase()
	}
	if d.lost != nil {
		return
	}
	d.endReason()
	d.activePods()
	d.image()
	d.memory()
	d.interfaces()
	d.volumes()
	d.hints()
	conditions(d).update()
	cleanup(d).finalizers()
}

// activePods records the node of each Pod of the VMI. While the Pod is being scheduled the
// write is deferred to the handoff. A migration's target Pod is recorded by the migration
// controller when the migration begins.
func (d statusFields) activePods() {
	if d.pod == nil && len(d.Pending) > 0 {
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
func (d statusFields) concerns(p *corev1.Pod) bool {
	m := d.VMI.Status.MigrationState
	move, moves := p.Labels[v1.MigrationJobLabel]
	return p.Spec.NodeName != "" && (!moves || m != nil && string(m.MigrationUID) == move)
}

// interfaces updates status.interfaces from the Pod. If the Pod's annotations cannot be parsed,
// the stored value is kept.
func (d statusFields) interfaces() {
	if !d.handedOff() {
		return
	}
	if is, err := d.Config.NetworkStatus(d.VMI, d.pod); err == nil {
		d.plan.VMI.Status.Interfaces = is
	}
}

// hints stores the TSC frequency of the VMI. The Pod is rendered from the stored value, and
// therefore later.
func (d statusFields) hints() {
	if !unprocessed(d.VMI) || d.VMI.DeletionTimestamp != nil || d.VMI.Status.TopologyHints != nil || d.pod != nil {
		return
	}
	if hints, err := d.Config.TopologyHints(d.VMI, d.Nodes, d.Config.MinimumTSC); err == nil {
		d.plan.VMI.Status.TopologyHints = hints
	}
}

// image records the image of the launcher Pod and whether it is outdated. The node agent clears it when a VMI
// arrives: the new Pod's is stored with the end of the old Pod, which must be written too, and no update begins
// before that.
func (d statusFields) image() {
	if d.pod == nil || d.plan.VMI.Status.Phase == v1.Pending {
		return
	}
	st := d.plan.VMI.Status
	moved := st.MigrationState != nil && st.MigrationState.EndTimestamp != nil && !st.MigrationState.Failed
	if moved && st.LauncherContainerImageVersion == "" && len(st.ActivePods) > 1 {
		return
	}
	version, outdated := launcherImage(d.pod, d.Config.LauncherImage)
	setLauncherImage(d.plan.VMI, version, outdated)
}

// memory records the memory overhead of the hypervisor.
func (d statusFields) memory() {
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
func (d statusFields) volumes() {
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
