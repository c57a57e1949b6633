// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/internal/vmistatus"
	"github.com/virtloom/virtloom/vmi"
)

// examined is the input of the examinations.
type examined struct {
	vmi.Snapshot
	plan  vmi.Plan
	lease handoff.Lease
	pod   *corev1.Pod
}

// examinations find what Decide does not wait for, the most significant first.
var examinations = []func(*examined) *Finding{
	(*examined).lastWriteFailed,
	(*examined).podFallenBehind,
	(*examined).podElsewhere,
	(*examined).holderElsewhere,
	(*examined).endedByLease,
	(*examined).orphanedMigration,
	(*examined).domainDiffers,
	(*examined).paused,
	(*examined).updatePending,
	(*examined).notLeaving,
}

// at returns a finding about the VMI.
func (x *examined) at(k FindingKind, what, why, remedy string) *Finding {
	return &Finding{Kind: k, What: what, Why: why, Remedy: remedy, Object: vmiObject(x.VMI)}
}

func vmiObject(g *v1.VirtualMachineInstance) string {
	return "VirtualMachineInstance " + g.Namespace + "/" + g.Name
}

func podObject(p *corev1.Pod) string { return "Pod " + p.Namespace + "/" + p.Name }

func finishedPod(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

func endingPod(p *corev1.Pod) bool { return vmi.PodDown(p) || p.DeletionTimestamp != nil }

// temporaryPod reports whether the Pod is only the first consumer of claims.
func temporaryPod(p *corev1.Pod) bool {
	_, temporary := p.Annotations[v1.EphemeralProvisioningObject]
	return temporary
}

func beforePod(p v1.VirtualMachineInstancePhase) bool {
	return p == v1.VmPhaseUnset || p == v1.Pending
}

func (x *examined) settled() bool { return len(x.Pending) == 0 && x.VMI.DeletionTimestamp == nil }

// launcherMissing reports a VMI without a launcher Pod where nothing blocks its creation, or
// where its loss ends the VMI.
func (x *examined) launcherMissing() *Finding {
	if !x.settled() {
		return nil
	}
	makes := slices.ContainsFunc(x.plan.Actions, func(a vmi.Action) bool { return a.Verb == vmi.CreateLauncher })
	switch {
	case makes && x.refused() != nil:
		return nil // lastWriteFailed reports it
	case makes:
		f := x.at(LauncherMissing, "the VirtualMachineInstance has no Pod yet, and nothing blocks its creation", "the next pass of the controller creates it",
			"none; if it persists, check that the controller runs, is the leader and may create Pods (refdaemon explain --controller reports what it observes)")
		f.Responsible, f.Until = handoff.ByController, "the controller has created the Pod"
		return f
	case !slices.Contains([]v1.VirtualMachineInstancePhase{v1.Scheduling, v1.Scheduled, v1.Running}, x.VMI.Status.Phase):
		return nil
	case x.pod == nil && !x.lease.Switching() && x.plan.VMI.Status.Phase == v1.Failed:
		f := x.at(LauncherMissing, "the launcher Pod is gone, and the domain with it", "the domain runs inside its launcher Pod",
			"find out what deleted the Pod (events, audit log, the node's kubelet), then recreate the VirtualMachineInstance; a VirtualMachine does so by its run strategy")
		f.Responsible = handoff.ByUser
		return f
	case x.pod != nil && finishedPod(x.pod):
		f := x.at(LauncherMissing, fmt.Sprintf("%s has ended (%s)", podObject(x.pod), podEnd(x.pod)), "the domain ends with its Pod; the node agent reports the phase",
			"check the log of container compute (kubectl logs --previous) and the Pod's events")
		f.Object, f.Responsible, f.Until = podObject(x.pod), handoff.ByNode, "the node agent reports the end of the domain"
		return f
	}
	return nil
}

// refused returns the condition of the last failed write if nothing newer is known, or nil.
func (x *examined) refused() *v1.VirtualMachineInstanceCondition {
	c := vmistatus.Condition(x.VMI, v1.VirtualMachineInstanceSynchronized)
	switch {
	case c == nil || c.Status != corev1.ConditionFalse:
		return nil
	case beforePod(x.VMI.Status.Phase) && len(x.plan.Waits) == 0:
		return c
	case x.VMI.Status.Phase == v1.Scheduling && !slices.ContainsFunc(x.plan.Waits, func(w vmi.Wait) bool { return w.Reason == c.Reason }):
		return c
	}
	return nil
}

// lastWriteFailed reports the last failed write, which an observer cannot repeat.
func (x *examined) lastWriteFailed() *Finding {
	c := x.refused()
	if c == nil {
		return nil
	}
	f := advised(vmi.Wait{Reason: c.Reason, Message: c.Message, Object: vmiObject(x.VMI), Responsible: handoff.ByController, Until: "a retry succeeds"}, "")
	f.Kind, f.What = LastWriteFailed, "the last attempt failed: "+f.What
	return &f
}

// podFallenBehind reports a VMI in phase Running whose Pod's containers do not run.
func (x *examined) podFallenBehind() *Finding {
	if x.pod == nil || endingPod(x.pod) || vmi.PodReady(x.pod) || x.VMI.Status.Phase != v1.Running {
		return nil
	}
	f := x.at(Disagreement, fmt.Sprintf("status.phase is Running, but %s is not ready (%s)", podObject(x.pod), x.pod.Status.Phase),
		"the domain runs in the Pod's container compute", "check the containers below, and on the node whether the domain runs")
	f.Object, f.Details = podObject(x.pod), containers(x.pod)
	return f
}

// podElsewhere reports Pods on other nodes that belong to no migration.
func (x *examined) podElsewhere() *Finding {
	node := x.VMI.Status.NodeName
	if node == "" || x.VMI.IsFinal() {
		return nil
	}
	for _, p := range x.Pods {
		if p.Spec.NodeName == "" || p.Spec.NodeName == node || vmi.PodDown(p) || temporaryPod(p) || p.DeletionTimestamp != nil || x.moves(p) {
			continue
		}
		f := x.at(Disagreement, fmt.Sprintf("status.nodeName is %s, but %s is on node %s and belongs to no active migration", node, podObject(p), p.Spec.NodeName),
			"a migration cleans up its Pods; a leftover Pod holds resources and may run the domain",
			"check whether the domain runs there (virsh list in the Pod); if not, delete the Pod")
		f.Object, f.Responsible = podObject(p), handoff.ByUser
		return f
	}
	return nil
}

// moves reports whether the Pod belongs to an active migration.
func (x *examined) moves(p *corev1.Pod) bool {
	job := p.Labels[v1.MigrationJobLabel]
	return slices.ContainsFunc(x.Migrations, func(m *v1.VirtualMachineInstanceMigration) bool {
		return job == string(m.UID) || m.Status.MigrationState != nil && m.Status.MigrationState.SourcePod == p.Name
	}) || x.lease.Target != "" || x.lease.State == handoff.Arrived
}

// holderElsewhere reports a lease and a status that name different nodes.
func (x *examined) holderElsewhere() *Finding {
	node := x.VMI.Status.NodeName
	l := x.lease
	if l.Cause == handoff.CauseStock || l.Holder == "" || node == "" || l.Holder == node || l.State == handoff.Released || x.VMI.IsFinal() {
		return nil
	}
	if l.Switching() || l.State == handoff.Arrived {
		return nil // the status follows
	}
	f := x.at(Disagreement, fmt.Sprintf("status.nodeName is %s, but the lease is held by node %s (%s)", node, l.Holder, l.State),
		"the lease decides which node may run the domain; clients read the status", "check on both nodes whether the domain runs; the agent of the node that runs it corrects the status: "+askAgent)
	f.Responsible = handoff.ByNode
	return f
}

// endedByLease reports a VMI whose lease is released and whose phase is not final.
func (x *examined) endedByLease() *Finding {
	p := x.VMI.Status.Phase
	if x.lease.State != handoff.Released || x.lease.Cause == handoff.CauseStock || p != v1.Scheduled && p != v1.Running || x.plan.VMI.IsFinal() {
		return nil
	}
	f := x.at(Disagreement, fmt.Sprintf("the lease is Released, but status.phase is %s", p), "the node agent releases the lease and sets the final phase in one write",
		"find out who else wrote the status (managed fields, audit log)")
	f.Responsible = handoff.ByNode
	return f
}

// orphanedMigration reports a lease whose migration no longer exists.
func (x *examined) orphanedMigration() *Finding {
	l := x.lease
	if l.Target == "" || l.Target == handoff.Elsewhere || l.Tag == "" || x.receives() {
		return nil
	}
	if slices.ContainsFunc(x.Migrations, func(m *v1.VirtualMachineInstanceMigration) bool { return m.UID == l.Tag }) {
		return nil
	}
	f := x.at(Disagreement, fmt.Sprintf("the lease targets node %s (%s) for the migration with UID %s, which has ended or does not exist", l.Target, l.State, l.Tag),
		"a migration continues without its object; only the nodes know its end", askAgent)
	f.Responsible = handoff.ByNode
	return f
}

// receives reports whether the VMI is the target of a migration from another cluster.
func (x *examined) receives() bool { return x.VMI.Annotations[v1.CreateMigrationTarget] == "true" }

// domainDiffers reports the node agent's condition for a running VMI whose domain differs from its spec.
func (x *examined) domainDiffers() *Finding {
	c := vmistatus.Condition(x.VMI, v1.VirtualMachineInstanceSynchronized)
	if c == nil || c.Status != corev1.ConditionFalse || x.VMI.Status.Phase != v1.Running {
		return nil
	}
	f := advised(vmi.Wait{Reason: c.Reason, Message: c.Message, Object: vmiObject(x.VMI), Responsible: handoff.ByNode, Until: "the node agent has applied the spec"}, "")
	if f.Kind != NodeSilent {
		f.Kind, f.What = Disagreement, "the domain differs from the spec: "+f.What
	}
	return &f
}

// paused reports a paused domain.
func (x *examined) paused() *Finding {
	c := vmistatus.Condition(x.VMI, v1.VirtualMachineInstancePaused)
	if c == nil || c.Status != corev1.ConditionTrue || x.VMI.IsFinal() {
		return nil
	}
	f := x.at(Paused, strings.TrimSuffix("the VirtualMachineInstance is paused: "+c.Message, ": "), "a user requested it", "unpause it (virtctl unpause vmi)")
	f.Reason, f.Responsible = c.Reason, handoff.ByUser
	switch c.Reason {
	case "PausedIOError":
		f.Why, f.Remedy = "a disk could not be read or written, and the domain was paused on the I/O error", "check the storage of its disks: space, connection, locks; then unpause it"
	case "PausedByMigrationMonitor":
		f.Why, f.Remedy = "a migration paused it in order to converge", "wait for the migration; refdaemon explain migration reports its progress"
	}
	return f
}

// pendingUpdates are the conditions of spec changes that take effect with a migration only.
var pendingUpdates = []v1.VirtualMachineInstanceConditionType{
	v1.VirtualMachineInstanceVCPUChange, v1.VirtualMachineInstanceMemoryChange, v1.VirtualMachineInstanceVolumesChange, v1.VirtualMachineInstanceMigrationRequired,
}

// updatePending reports spec changes that the domain does not have yet.
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
	f := x.at(UpdatePending, "the domain does not have these spec changes yet: "+strings.Join(are, ", "), "changes of CPUs, memory, volumes or networks that need a new Pod take effect with a migration",
		"migrate the VirtualMachineInstance, or enable workload updates (workloadUpdateMethods of the KubeVirt object, refdaemon controller --update-workloads)")
	f.Responsible = handoff.ByUser
	return f
}

// notLeaving reports a VMI with an unsatisfied eviction request.
func (x *examined) notLeaving() *Finding {
	from := x.VMI.Status.EvacuationNodeName
	if from == "" || from != x.VMI.Status.NodeName || len(x.Migrations) > 0 || x.VMI.IsFinal() {
		return nil
	}
	f := x.at(NotLeaving, "the VirtualMachineInstance was requested to leave node "+from+", and no migration is active", "an eviction of its Pod was rejected in favor of a migration",
		"wait for the controller that evacuates nodes (refdaemon controller --evacuate); refdaemon plan drain reports what it would do")
	f.Responsible = handoff.ByController
	if c := vmistatus.Condition(x.VMI, v1.VirtualMachineInstanceIsMigratable); c != nil && c.Status == corev1.ConditionFalse {
		f.Reason, f.Responsible = c.Reason, handoff.ByUser
		f.Why, f.Remedy = "the VirtualMachineInstance is not migratable: "+c.Message, "remove what blocks the migration, or stop the VirtualMachineInstance"
	}
	return f
}
