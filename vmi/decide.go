// SPDX-License-Identifier: Apache-2.0

package vmi

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/internal/vmistatus"
)

// endedGrace is the grace period, in seconds, of a Pod whose domain has ended: nothing is
// left to shut down.
const endedGrace = 1

// Decide returns what must happen next. It is deterministic, modifies nothing but its result,
// and never fails: for an object with an invalid lease or phase, the plan reports that and
// takes no action.
func Decide(s Snapshot, now time.Time) Plan {
	d := newDecision(s, now)
	if d.lost != nil {
		return d.plan
	}
	d.claim()
	d.act()
	// After the actions are chosen, as conditions report what blocks them; and before the Pod is
	// synchronized, whose labels and annotations follow from the new status.
	statusFields{d}.update()
	if d.lost == nil {
		launcherPod{d}.sync()
		waits{d}.collect()
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

// newDecision returns a decision without results; that of an object with an invalid lease is final.
func newDecision(s Snapshot, now time.Time) *decision {
	s.Config = s.Config.complete()
	d := &decision{Snapshot: s, now: now, plan: Plan{VMI: s.VMI.DeepCopy()}}
	// A lease that cannot be read may name any node. Whatever is done then could be the second domain,
	// so nothing is: a human, or the writer of the lease, has to correct it.
	lease, err := handoff.Of(s.VMI)
	if err != nil {
		d.misunderstood(ReasonInvalidLease, err.Error())
		return d
	}
	d.lease, d.next = lease, lease
	d.pod = s.Launcher()
	return d
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
	case len(d.Pending) > 0:
		// Nothing may be created or deleted.
	// A final VMI keeps its launcher Pod, with its log, until it is deleted. Deletion takes all.
	case d.VMI.DeletionTimestamp != nil:
		cleanup{d}.deletePods()
	case d.VMI.IsFinal():
		cleanup{d}.deleteUseless()
	case d.pod != nil && creation{d}.displaced() == nil:
		launcherPod{d}.maintain()
	// Only a VMI that no node has ever been asked to run gets a Pod. One that has lost its Pod later may
	// still run on its node: a second Pod would be offered to another, and run the domain twice.
	case d.pod == nil && unprocessed(d.VMI) && d.unassigned():
		creation{d}.start()
	}
}

// unassigned reports whether no node has been asked to run the VMI.
func (d *decision) unassigned() bool {
	return d.lease.State == handoff.Unclaimed || d.lease.State == handoff.Claimed
}

// handedOff reports whether the handoff to the node is or is now being made and the Pod is
// known: the node reads the status of interfaces and volumes from then on.
func (d *decision) handedOff() bool {
	if d.pod == nil || len(d.Pending) > 0 {
		return false
	}
	p := d.plan.VMI.Status.Phase
	return p == v1.Scheduled || p == v1.Running
}

// misunderstood records that the object is invalid and is not acted on.
func (d *decision) misunderstood(reason, message string) {
	d.plan.VMI = d.VMI.DeepCopy()
	d.plan.Actions, d.plan.Events, d.plan.RequeueAt = nil, nil, nil
	c := v1.VirtualMachineInstanceCondition{Type: conditionUnderstood, Status: corev1.ConditionFalse, Reason: reason, Message: message}
	if was := vmistatus.Condition(d.VMI, c.Type); was == nil || was.Reason != reason || was.Message != message {
		d.plan.Events = append(d.plan.Events, Event{Warning: true, Reason: reason, Message: message})
	}
	vmistatus.SetCondition(d.plan.VMI, c, d.now)
	d.lost = &Wait{Reason: reason, Message: message, Object: vmiObject(d.VMI), Until: "the object is corrected", Responsible: handoff.ByUser, Condition: c.Type}
	d.plan.Waits = []Wait{*d.lost}
}

// step advances the next lease by one event.
func (d *decision) step(e handoff.Event) error {
	e.Epoch = d.next.Epoch
	lease, _, err := handoff.Step(d.next, e, d.now)
	if err != nil {
		return fmt.Errorf("vmi: handoff of %s/%s: %w", d.VMI.Namespace, d.VMI.Name, err)
	}
	d.next = lease
	return handoff.Put(d.plan.VMI, lease)
}

func (d *decision) setPhase(p v1.VirtualMachineInstancePhase) {
	vmistatus.SetPhase(d.plan.VMI, p, d.now)
}

func (d *decision) do(a ...Action) { d.plan.Actions = append(d.plan.Actions, a...) }

func (d *decision) wait(w Wait) { d.plan.Waits = append(d.plan.Waits, w) }

// requeue requests another pass at the time, or earlier.
func (d *decision) requeue(at time.Time) {
	if d.plan.RequeueAt == nil || at.Before(*d.plan.RequeueAt) {
		d.plan.RequeueAt = &at
	}
}

func unprocessed(vmi *v1.VirtualMachineInstance) bool {
	return vmi.Status.Phase == v1.VmPhaseUnset || vmi.Status.Phase == v1.Pending
}

// receiver reports whether the VMI is the target of a migration from another cluster; it
// is never started here.
func receiver(vmi *v1.VirtualMachineInstance) bool {
	return vmi.Annotations[v1.CreateMigrationTarget] == "true"
}
