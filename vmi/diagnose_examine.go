// SPDX-License-Identifier: Apache-2.0

package vmi

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/internal/vmistatus"
)

// examined is what examinations look at.
type examined struct {
	Snapshot
	plan  Plan
	lease handoff.Lease
	pod   *corev1.Pod
}

// examinations find what Decide does not wait for, the most telling first.
var examinations = []func(*examined) *Finding{
	(*examined).lastWriteFailed,
	(*examined).podFallenBehind,
	(*examined).podElsewhere,
	(*examined).holderElsewhere,
	(*examined).endedByLease,
	(*examined).moveOfNobody,
	(*examined).domainDiffers,
	(*examined).paused,
	(*examined).updatePending,
	(*examined).notLeaving,
}

// at is a finding about the guest's object.
func (x *examined) at(k FindingKind, what, why, remedy string) *Finding {
	return &Finding{Kind: k, What: what, Why: why, Remedy: remedy, Object: vmiObject(x.VMI)}
}

func (x *examined) settled() bool { return len(x.Unseen) == 0 && x.VMI.DeletionTimestamp == nil }

// launcherMissing tells of a guest without a Pod where nothing is in the way of one, or where it is
// the end of the guest.
func (x *examined) launcherMissing() *Finding {
	if !x.settled() {
		return nil
	}
	makes := slices.ContainsFunc(x.plan.Actions, func(a Action) bool { return a.Verb == CreateLauncher })
	switch {
	case makes && x.refused() != nil:
		return nil // that is in the way
	case makes:
		f := x.at(LauncherMissing, "the guest has no Pod yet, and nothing stands in the way of one", "the next pass of the controller makes it",
			"nothing, unless it stays so: then look whether the controller runs, leads and may create Pods (refdaemon explain --controller tells what it sees)")
		f.By, f.Until = ByController, "the controller has made the Pod"
		return f
	case !slices.Contains([]v1.VirtualMachineInstancePhase{v1.Scheduling, v1.Scheduled, v1.Running}, x.VMI.Status.Phase):
		return nil
	case x.pod == nil && !x.lease.Switching() && x.plan.VMI.Status.Phase == v1.Failed:
		f := x.at(LauncherMissing, "the Pod of the guest is gone, by which the guest is lost", "a guest is in its Pod; one without it runs nowhere that is known",
			"find out who deleted the Pod (events, audit log, the node's kubelet), then make the guest anew; a VirtualMachine does so by its run strategy")
		f.By = ByUser
		return f
	case x.pod != nil && podFinished(x.pod):
		f := x.at(LauncherMissing, fmt.Sprintf("%s has ended (%s)", podObject(x.pod), podEnd(x.pod)), "the guest ends with its Pod; its node says how",
			"look at the log of container compute (kubectl logs --previous) and at the Pod's events for why")
		f.Object, f.By, f.Until = podObject(x.pod), ByNode, "the node reports the end of the guest"
		return f
	}
	return nil
}

// refused is what the last try has met, as far as nothing newer is known; nil if nothing.
func (x *examined) refused() *v1.VirtualMachineInstanceCondition {
	c := conditionOf(x.VMI, v1.VirtualMachineInstanceSynchronized)
	switch {
	case c == nil || c.Status != corev1.ConditionFalse:
		return nil
	case unprocessed(x.VMI) && len(x.plan.Waits) == 0:
		return c
	case x.VMI.Status.Phase == v1.Scheduling && !slices.ContainsFunc(x.plan.Waits, func(w Wait) bool { return w.Reason == c.Reason }):
		return c
	}
	return nil
}

// lastWriteFailed tells what the last try has met, which an observer cannot repeat.
func (x *examined) lastWriteFailed() *Finding {
	c := x.refused()
	if c == nil {
		return nil
	}
	f := advised(Wait{Reason: c.Reason, Message: c.Message, Object: vmiObject(x.VMI), By: ByController, Until: "it is tried again with success"}, "")
	f.Kind, f.What = LastWriteFailed, "the last try failed: "+f.What
	return &f
}

// podFallenBehind tells of a guest that is said to run in a Pod whose containers do not.
func (x *examined) podFallenBehind() *Finding {
	if x.pod == nil || podGoingDown(x.pod) || PodReady(x.pod) || x.VMI.Status.Phase != v1.Running {
		return nil
	}
	f := x.at(Disagreement, fmt.Sprintf("the guest is Running by its status, and %s is %s", podObject(x.pod), x.pod.Status.Phase),
		"a guest runs in its Pod's container compute", "look at the containers below, and on the node whether the guest runs")
	f.Object, f.Details = podObject(x.pod), Containers(x.pod)
	return f
}

// podElsewhere tells of Pods on other nodes than the guest that no migration accounts for.
func (x *examined) podElsewhere() *Finding {
	node := x.VMI.Status.NodeName
	if node == "" || x.VMI.IsFinal() {
		return nil
	}
	for _, p := range x.Pods {
		if p.Spec.NodeName == "" || p.Spec.NodeName == node || PodDown(p) || isTemporary(p) || p.DeletionTimestamp != nil || x.moves(p) {
			continue
		}
		f := x.at(Disagreement, fmt.Sprintf("the guest is on node %s by its status, and %s is on node %s, of no migration that is under way", node, podObject(p), p.Spec.NodeName),
			"what is left of a migration goes with it; a Pod that stays holds resources, and may hold the guest",
			"look whether the guest runs there (virsh list in the Pod); if not, delete the Pod")
		f.Object, f.By = podObject(p), ByUser
		return f
	}
	return nil
}

// moves tells whether a migration that has not ended accounts for the Pod.
func (x *examined) moves(p *corev1.Pod) bool {
	job := p.Labels[v1.MigrationJobLabel]
	return slices.ContainsFunc(x.Migrations, func(m *v1.VirtualMachineInstanceMigration) bool {
		return job == string(m.UID) || m.Status.MigrationState != nil && m.Status.MigrationState.SourcePod == p.Name
	}) || x.lease.Target != "" || x.lease.State == handoff.Arrived
}

// holderElsewhere tells of a lease and a status that name two nodes.
func (x *examined) holderElsewhere() *Finding {
	node := x.VMI.Status.NodeName
	l := x.lease
	if l.Cause == handoff.CauseStock || l.Holder == "" || node == "" || l.Holder == node || l.State == handoff.Released || x.VMI.IsFinal() {
		return nil
	}
	if l.Switching() || l.State == handoff.Arrived {
		return nil // the status follows
	}
	f := x.at(Disagreement, fmt.Sprintf("the guest is on node %s by its status, and on node %s by its lease (%s)", node, l.Holder, l.State),
		"the lease decides who may run the guest; the status is what others read", "look on both nodes whether the guest runs; the agent of the node that has it corrects the status: "+askAgent)
	f.By = ByNode
	return f
}

// endedByLease tells of a guest that has ended and whose status does not say so.
func (x *examined) endedByLease() *Finding {
	p := x.VMI.Status.Phase
	if x.lease.State != handoff.Released || x.lease.Cause == handoff.CauseStock || p != v1.Scheduled && p != v1.Running || x.plan.VMI.IsFinal() {
		return nil
	}
	f := x.at(Disagreement, fmt.Sprintf("the guest has ended by its lease, and is %s by its status", p), "the node releases a guest and tells its end in one write",
		"look who else has written the status (managed fields, audit log)")
	f.By = ByNode
	return f
}

// moveOfNobody tells of a move whose migration is not there.
func (x *examined) moveOfNobody() *Finding {
	l := x.lease
	if l.Target == "" || l.Target == handoff.Elsewhere || l.Tag == "" || x.receives() {
		return nil
	}
	if slices.ContainsFunc(x.Migrations, func(m *v1.VirtualMachineInstanceMigration) bool { return m.UID == l.Tag }) {
		return nil
	}
	f := x.at(Disagreement, fmt.Sprintf("the guest is on its way to node %s (%s), for a migration of UID %s that has ended or is gone", l.Target, l.State, l.Tag),
		"a move goes on without the object that asked for it; its end is known to the nodes alone", askAgent)
	f.By = ByNode
	return f
}

func (x *examined) receives() bool { return receiver(x.VMI) }

// domainDiffers tells what the node says of a running guest that is not as its object asks.
func (x *examined) domainDiffers() *Finding {
	c := conditionOf(x.VMI, v1.VirtualMachineInstanceSynchronized)
	if c == nil || c.Status != corev1.ConditionFalse || x.VMI.Status.Phase != v1.Running {
		return nil
	}
	f := advised(Wait{Reason: c.Reason, Message: c.Message, Object: vmiObject(x.VMI), By: ByNode, Until: "the node has done as the object asks"}, "")
	if f.Kind != NodeSilent {
		f.Kind, f.What = Disagreement, "the domain is not as the object asks: "+f.What
	}
	return &f
}

// paused tells of a guest that stands still.
func (x *examined) paused() *Finding {
	c := conditionOf(x.VMI, v1.VirtualMachineInstancePaused)
	if c == nil || c.Status != corev1.ConditionTrue || x.VMI.IsFinal() {
		return nil
	}
	f := x.at(Paused, strings.TrimSuffix("the guest is paused: "+c.Message, ": "), "somebody asked for it", "unpause it (virtctl unpause vmi)")
	f.Reason, f.By = c.Reason, ByUser
	switch c.Reason {
	case "PausedIOError":
		f.Why, f.Remedy = "a disk could not be read or written, and the guest was stopped before it noticed", "look at the storage of its disks: space, connection, locks; then unpause it"
	case "PausedByMigrationMonitor":
		f.Why, f.Remedy = "a migration stopped it so that it can converge", "wait for the migration; refdaemon explain migration tells how it stands"
	}
	return f
}

// pendingUpdates are conditions that say that the domain follows the spec only when the guest moves.
var pendingUpdates = []v1.VirtualMachineInstanceConditionType{
	v1.VirtualMachineInstanceVCPUChange, v1.VirtualMachineInstanceMemoryChange, v1.VirtualMachineInstanceVolumesChange, v1.VirtualMachineInstanceMigrationRequired,
}

// updatePending tells of changes of the spec that the domain does not have yet.
func (x *examined) updatePending() *Finding {
	var are []string
	for _, t := range pendingUpdates {
		if vmistatus.IsTrue(x.VMI, t) {
			are = append(are, string(t))
		}
	}
	if len(are) == 0 || len(x.Migrations) > 0 || x.VMI.IsFinal() {
		return nil
	}
	f := x.at(UpdatePending, "the domain is not yet as the spec asks: "+strings.Join(are, ", "), "a change of processors, memory, volumes or networks that takes a new Pod takes effect with a migration",
		"migrate the guest, or let workload updates do so (workloadUpdateMethods of the KubeVirt object, refdaemon controller --update-workloads)")
	f.By = ByUser
	return f
}

// notLeaving tells of a guest that was asked to leave its node and does not.
func (x *examined) notLeaving() *Finding {
	from := x.VMI.Status.EvacuationNodeName
	if from == "" || from != x.VMI.Status.NodeName || len(x.Migrations) > 0 || x.VMI.IsFinal() {
		return nil
	}
	f := x.at(NotLeaving, "the guest was asked to leave node "+from+", and no migration of it is under way", "an eviction of its Pod was refused, so that the guest moves instead",
		"wait for the controller that evacuates nodes (refdaemon controller --evacuate); refdaemon plan drain tells what it would do")
	f.By = ByController
	if c := conditionOf(x.VMI, v1.VirtualMachineInstanceIsMigratable); c != nil && c.Status == corev1.ConditionFalse {
		f.Reason, f.By = c.Reason, ByUser
		f.Why, f.Remedy = "the guest cannot be migrated: "+c.Message, "mend what keeps it from moving, or end the guest"
	}
	return f
}
