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

// endedGrace is the grace period, in seconds, a Pod is left with once its guest
// has ended: there is nothing more to wait for.
const endedGrace = 1

// Decide says what must happen next. It is deterministic, touches nothing but its
// result, and has an answer to everything: of an object that cannot be understood
// the plan is to say so and to leave the guest alone.
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

// Explain lists everything that has to happen before the guest gets on, the most
// telling first; nothing, if it is at rest. It is what Decide would wait for.
func Explain(s Snapshot, now time.Time) []Wait { return Decide(s, now).Waits }

// decision is the working state of one Decide.
type decision struct {
	Snapshot
	now time.Time
	// lease is the one stored, next what it shall become.
	lease, next handoff.Lease
	pod         *corev1.Pod
	plan        Plan
	// plugged is how far what is plugged into the guest has come, by volume.
	plugged map[string]pluggedState
	// lost is why the object cannot be understood; nil if it can.
	lost *Wait
}

// claim puts on a new object what KubeVirt's mutating webhook does where there is
// one, and the versions of the API it was made with. It goes with the first write:
// until then the guest has at most a Pod, which is collected with its owner.
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

// act chooses the actions. The order is the order of precedence.
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
	case d.pod == nil && unprocessed(d.VMI) && d.unplaced():
		d.start()
	}
}

// start creates the guest's Pod, or what it needs before, if nothing stands in the
// way.
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
	case d.firstConsumer():
		d.do(Action{Verb: CreateTemporary, Fault: ReasonFailedCreate, Why: "its claims wait for a consumer"})
	default:
		d.do(Action{Verb: CreateLauncher, Fault: ReasonFailedCreate, Why: "the guest has no Pod"})
	}
}

// tend looks after a guest that has its Pod.
func (d *decision) tend() {
	d.do(staleTemporaries(d.Snapshot)...)
	if name := lacksVirtiofs(d.VMI, d.pod); name != "" && !podGoingDown(d.pod) {
		message := fmt.Sprintf("%s lacks container %s, which shares a volume of its own paths with the guest; nothing is plugged into the guest until it is made anew",
			podObject(d.pod), name)
		d.wait(Wait{
			Reason: ReasonMissingVirtiofsContainers, Object: podObject(d.pod), By: ByUser, Until: "the guest is made anew", Message: message,
		})
		if p := d.VMI.Status.Phase; p == v1.Scheduled || p == v1.Running {
			d.plan.Trouble = &Failure{Reason: ReasonMissingVirtiofsContainers, Message: message}
		}
		return
	}
	d.plug()
}

// deletePods deletes every Pod of a VMI that is being deleted. What is plugged goes
// with the Pod it is plugged into.
func (d *decision) deletePods() {
	for _, p := range d.Pods {
		d.deletePod(p, "the VirtualMachineInstance is being deleted")
	}
}

// deletePod deletes a Pod with its own grace period while its guest may run, or may be booted by an agent that
// knows no lease. One
// whose guest has ended has nothing to be patient for: it is hurried, also if it
// is terminating already.
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
		a.Why = "the guest has ended"
		d.do(a)
	}
}

// deleteUseless deletes the Pods of a guest that has ended by its lease and is
// kept to be looked at: where the guest does not live inside of the Pod nothing
// else ends it, and it holds the resources of its node. A Pod that has ended by
// itself stays, with its logs; what was plugged into it does not.
func (d *decision) deleteUseless() {
	d.do(unplugAll(d.Snapshot)...)
	if d.lease.State != handoff.Released || d.lease.Epoch == 0 {
		return
	}
	for _, p := range d.Pods {
		if !PodDown(p) {
			d.deletePod(p, "the guest has ended")
		}
	}
}

// unplaced tells whether no node was asked to run the guest.
func (d *decision) unplaced() bool {
	return d.lease.State == handoff.Unclaimed || d.lease.State == handoff.Claimed
}

func (d *decision) do(a ...Action) { d.plan.Actions = append(d.plan.Actions, a...) }

func unprocessed(vmi *v1.VirtualMachineInstance) bool {
	return vmi.Status.Phase == v1.VmPhaseUnset || vmi.Status.Phase == v1.Pending
}

// receiver tells whether the guest is to be received from another cluster: it is
// never started here.
func receiver(vmi *v1.VirtualMachineInstance) bool {
	return vmi.Annotations[v1.CreateMigrationTarget] == "true"
}
