// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/vm/instancetype"
)

// Reasons of condition Failure and of events.
const (
	reasonFailedCreate = "FailedCreate"
	reasonFailedDelete = "FailedDelete"
)

// Decide returns what must happen next. It is deterministic, modifies nothing but its result, and never fails.
func Decide(s Snapshot, now time.Time) Plan {
	d := newDecision(s, now)
	switch {
	case s.VM.DeletionTimestamp != nil:
		ownership{d}.end()
	case len(s.Pending) == 0:
		d.sync()
	}
	statusFields{d}.update()
	ownership{d}.releaseVMI()
	writes{d}.collect()
	waits{d}.collect()
	return d.plan
}

// Explain returns everything that the VM waits for, the most significant wait first. It returns the waits of [Decide].
func Explain(s Snapshot, now time.Time) []Wait { return Decide(s, now).Waits }

// decision is the working state of one Decide.
type decision struct {
	Snapshot
	now time.Time
	// vmi is the VM's own VMI, nil if it has none; next is its new state.
	vmi, next *v1.VirtualMachineInstance
	// foreign is the controller of a VMI that has the VM's name but another controller.
	foreign string
	// requests are the state change requests of the VM.
	requests stateChanges
	// strategy is the run strategy.
	strategy v1.VirtualMachineRunStrategy
	// definitions are instance type and preference.
	definitions instancetype.Definitions
	failure     *Failure
	plan        Plan
	// found are the waits found on the way.
	found []Wait
	// halted is true once the pass must not go on to later stages.
	halted bool
}

func newDecision(s Snapshot, now time.Time) *decision {
	d := &decision{Snapshot: s, now: now, plan: Plan{VM: s.VM.DeepCopy()}, requests: s.VM.Status.StateChangeRequests}
	if s.VMI == nil {
		return d
	}
	if metav1.IsControlledBy(s.VMI, s.VM) {
		d.vmi, d.next = s.VMI, s.VMI.DeepCopy()
	} else if c := metav1.GetControllerOf(s.VMI); c != nil {
		d.foreign = c.Kind + " " + c.Name
	}
	return d
}

// stages bring the VMI to what the VM wants. They run in this order until one of them halts the pass, fails, or needs an object.
var stages = []func(*decision){
	func(d *decision) { ownership{d}.adopt() },
	func(d *decision) { defaults{d}.complete() },
	func(d *decision) { generation{d}.follow() },
	func(d *decision) { runStrategy{d}.read() },
	func(d *decision) { instanceTypes{d}.resolve() },
	func(d *decision) { dataVolumes{d}.provision() },
	func(d *decision) { runStrategy{d}.carryOut() },
	func(d *decision) { rollout{d}.checkRestart() },
	requestVolumes,
	func(d *decision) { memoryDump{d}.sync() },
	func(d *decision) { followAnnotations(d.next, d.VM) },
	func(d *decision) { keepTopology(d.plan.VM, d.vmi) },
	func(d *decision) { rollout{d}.updateLive() },
}

func (d *decision) sync() {
	for _, run := range stages {
		if run(d); d.halted || d.failure != nil || len(d.plan.Need) > 0 {
			return
		}
	}
}

// currentFailure returns what condition Failure reports; nil if there is nothing.
func (d *decision) currentFailure() *Failure {
	if d.Failure != nil {
		return d.Failure
	}
	return d.failure
}

func (d *decision) do(a ...Action) { d.plan.Actions = append(d.plan.Actions, a...) }

// fail records the first failure.
func (d *decision) fail(reason, message string) {
	if d.failure == nil {
		d.failure = &Failure{Reason: reason, Message: message}
	}
}

func (d *decision) warn(reason, message string) {
	d.plan.Events = append(d.plan.Events, Event{Warning: true, Reason: reason, Message: message})
}

// warnOnce emits a warning about a failure that condition Failure does not report yet.
func (d *decision) warnOnce(reason, message string) {
	if !slices.ContainsFunc(d.VM.Status.Conditions, func(c v1.VirtualMachineCondition) bool {
		return c.Type == v1.VirtualMachineFailure && c.Reason == reason
	}) {
		d.warn(reason, message)
	}
}

func (d *decision) wait(w Wait) { d.found = append(d.found, w) }

// requeue requests another pass at the time, or earlier.
func (d *decision) requeue(at time.Time) {
	if d.plan.RequeueAt == nil || at.Before(*d.plan.RequeueAt) {
		d.plan.RequeueAt = &at
	}
}

// does reports whether the plan has an action of this kind.
func (d *decision) does(verb Verb) bool {
	return slices.ContainsFunc(d.plan.Actions, func(a Action) bool { return a.Verb == verb })
}

// running reports whether a VMI exists that neither has ended nor is being deleted.
func running(vmi *v1.VirtualMachineInstance) bool {
	return vmi != nil && vmi.DeletionTimestamp == nil && !vmi.IsFinal()
}

// inPhase reports whether there is a VMI in a phase.
func inPhase(vmi *v1.VirtualMachineInstance, p v1.VirtualMachineInstancePhase) bool {
	return vmi != nil && vmi.Status.Phase == p
}

// vmObject and vmiObject return the Wait.Object of a VM and of its VMI.
func vmObject(vm *v1.VirtualMachine) string { return "VirtualMachine " + vm.Namespace + "/" + vm.Name }
func vmiObject(vmi *v1.VirtualMachineInstance) string {
	return "VirtualMachineInstance " + vmi.Namespace + "/" + vmi.Name
}

func annotate(meta *metav1.ObjectMeta, key, value string) {
	if meta.Annotations == nil {
		meta.Annotations = map[string]string{}
	}
	meta.Annotations[key] = value
}
