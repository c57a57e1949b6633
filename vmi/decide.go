// SPDX-License-Identifier: Apache-2.0

package vmi

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
)

// endedGrace is the grace period, in seconds, of a Pod whose domain has ended: nothing is
// left to shut down.
const endedGrace = 1

// Decide returns what must happen next. It is deterministic, modifies nothing but its result,
// and never fails: for an object with an invalid lease or phase, the plan reports that and
// takes no action.
func Decide(s Snapshot, now time.Time) Plan {
	s.Config = s.Config.complete()
	d := &decision{Snapshot: s, now: now, plan: Plan{VMI: s.VMI.DeepCopy()}}
	lease, err := handoff.Of(s.VMI)
	if err != nil {
		d.misunderstood(ReasonInvalidLease, err.Error())
		return d.plan
	}
	d.lease, d.next = lease, lease
	d.pod = s.Launcher()

	d.claim()
	d.act()
	d.status()
	if d.lost == nil {
		d.syncPod()
		d.explain()
	}
	return d.plan
}

// Explain returns everything that the VMI waits for, the most significant wait first; nil if
// nothing is pending. It returns the waits of [Decide].
func Explain(s Snapshot, now time.Time) []Wait { return Decide(s, now).Waits }

// decision is the working state of one Decide.
type decision struct {
	Snapshot
	now time.Time
	// lease is the stored lease, next the one to store.
	lease, next handoff.Lease
	pod         *corev1.Pod
	plan        Plan
	// plugged is the state of every hotplugged volume, by volume name.
	plugged map[string]pluggedState
	// lost is why the object is invalid; nil if it is valid.
	lost *Wait
}

// claim sets on a new object the fields that KubeVirt's mutating webhook sets, where there is
// one, and the observed API versions. They are stored with the first write: until then the VMI
// has at most a Pod, which is garbage-collected with its owner.
func (d *decision) claim() {
	vmi := d.plan.VMI
	if vmi.DeletionTimestamp != nil || vmi.IsFinal() {
		return
	}
	vmi.Finalizers = ourFinalizer(vmi.Finalizers)
	if vmi.Status.Phase == v1.VmPhaseUnset {
		d.setPhase(v1.Pending)
	}
	if unprocessed(vmi) && vmi.Status.RuntimeUser == 0 && !d.Config.root() {
		vmi.Status.RuntimeUser = qemuUser
	}
	if unprocessed(vmi) && vmi.Annotations[v1.ControllerAPILatestVersionObservedAnnotation] != v1.ApiLatestVersion {
		annotate(vmi, v1.ControllerAPILatestVersionObservedAnnotation, v1.ApiLatestVersion)
		annotate(vmi, v1.ControllerAPIStorageVersionObservedAnnotation, v1.ApiStorageVersion)
	}
}

func annotate(vmi *v1.VirtualMachineInstance, key, value string) {
	if vmi.Annotations == nil {
		vmi.Annotations = map[string]string{}
	}
	vmi.Annotations[key] = value
}

// act chooses the actions, in order of precedence.
func (d *decision) act() {
	switch {
	case len(d.Unseen) > 0:
		// Nothing may be created or deleted.
	case d.VMI.DeletionTimestamp != nil:
		d.deletePods()
	case d.VMI.IsFinal():
		d.deleteUseless()
	case d.pod != nil && d.displaced() == nil:
		d.tend()
	case d.pod == nil && unprocessed(d.VMI) && d.unassigned():
		d.start()
	}
}

// start creates the launcher Pod, or its prerequisites, if nothing blocks it.
func (d *decision) start() {
	d.plan.Checks = evaluate(d.Snapshot, checks)
	if d.Failure != nil {
		return
	}
	d.do(staleTemporaries(d.Snapshot)...)
	if d.plan.Blocked() != nil {
		return
	}
	wait, claim := stateClaim(d.Snapshot, d.Config.StateClass)
	d.plan.Checks = append(d.plan.Checks, Check{Name: "state", Wait: wait})
	if claim != nil {
		d.do(*claim)
	}
	if wait != nil {
		return
	}
	d.plan.Checks = append(d.plan.Checks, evaluate(d.Snapshot, lastChecks)...)
	switch {
	case d.plan.Blocked() != nil:
	case firstConsumer(d.Snapshot):
		d.do(Action{Verb: CreateTemporary, Fault: ReasonFailedCreate, Why: "claims wait for their first consumer"})
	default:
		d.do(Action{Verb: CreateLauncher, Fault: ReasonFailedCreate, Why: "the VirtualMachineInstance has no Pod"})
	}
}

// tend maintains a VMI that has its launcher Pod.
func (d *decision) tend() {
	d.do(staleTemporaries(d.Snapshot)...)
	if name := lacksVirtiofs(d.VMI, d.pod); name != "" && !podGoingDown(d.pod) {
		message := fmt.Sprintf("%s lacks container %s, which shares a containerPath volume; hotplug is suspended until the VirtualMachineInstance is recreated",
			podObject(d.pod), name)
		d.wait(Wait{
			Reason: ReasonMissingVirtiofsContainers, Object: podObject(d.pod), By: ByUser, Until: "the VirtualMachineInstance is recreated", Message: message,
		})
		if p := d.VMI.Status.Phase; p == v1.Scheduled || p == v1.Running {
			d.plan.Trouble = &Failure{Reason: ReasonMissingVirtiofsContainers, Message: message}
		}
		return
	}
	d.plug()
}

// deletePods deletes every Pod of a VMI that is being deleted. Attachment Pods are
// garbage-collected with their owner.
func (d *decision) deletePods() {
	for _, p := range d.Pods {
		d.deletePod(p, "the VirtualMachineInstance is being deleted")
	}
}

// deletePod deletes a Pod with its own grace period while its domain may run, or an agent
// that does not know the lease may start it. A Pod whose domain has ended gets the short
// grace period, even if it is already terminating.
func (d *decision) deletePod(p *corev1.Pod, why string) {
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
func (d *decision) deleteUseless() {
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

// unassigned reports whether no node has been asked to run the VMI.
func (d *decision) unassigned() bool {
	return d.lease.State == handoff.Unclaimed || d.lease.State == handoff.Claimed
}

func (d *decision) do(a ...Action) { d.plan.Actions = append(d.plan.Actions, a...) }

func unprocessed(vmi *v1.VirtualMachineInstance) bool {
	return vmi.Status.Phase == v1.VmPhaseUnset || vmi.Status.Phase == v1.Pending
}

// receiver reports whether the VMI is the target of a migration from another cluster; it
// is never started here.
func receiver(vmi *v1.VirtualMachineInstance) bool {
	return vmi.Annotations[v1.CreateMigrationTarget] == "true"
}
