// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
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
		d.delete()
	case len(s.Pending) == 0:
		d.sync()
	}
	d.status()
	d.release()
	d.write()
	d.collectWaits()
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
	// strategy is the run strategy.
	strategy v1.VirtualMachineRunStrategy
	// definitions are instance type and preference.
	definitions instancetype.Definitions
	failure     *Failure
	plan        Plan
	// waits are those found on the way.
	waits []Wait
	// halted is true once the pass must not go on to later parts.
	halted bool
}

func newDecision(s Snapshot, now time.Time) *decision {
	d := &decision{Snapshot: s, now: now, plan: Plan{VM: s.VM.DeepCopy()}}
	if d.Config.CPURatio == 0 {
		d.Config.CPURatio = 10
	}
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

// delete ends the VMI, and then releases the VM. A VM whose dependents are orphaned is released at once.
func (d *decision) delete() {
	if !slices.Contains(d.VM.Finalizers, v1.VirtualMachineControllerFinalizer) {
		return
	}
	orphan := slices.Contains(d.VM.Finalizers, metav1.FinalizerOrphanDependents)
	if d.vmi == nil && len(d.Pending) == 0 || orphan {
		remove(&d.plan.VM.Finalizers, v1.VirtualMachineControllerFinalizer)
		return
	}
	if len(d.Pending) == 0 {
		d.stop("the VirtualMachine is being deleted")
	}
}

// part is one step of a pass.
type part func(*decision)

// parts run in this order until one of them halts the pass.
var parts = []part{
	(*decision).adopt, (*decision).prepare, (*decision).bump, (*decision).readStrategy, (*decision).resolve, (*decision).provision,
	(*decision).run, (*decision).checkRestart, (*decision).requestVolumes, (*decision).dumpMemory, (*decision).syncMetadata, (*decision).keepTopology, (*decision).updateLive,
}

// sync brings the VMI to what the VM wants.
func (d *decision) sync() {
	for _, p := range parts {
		if p(d); d.halted || d.failure != nil || len(d.plan.Need) > 0 {
			return
		}
	}
}

// adopt takes over a VMI of the VM's name that has no controller.
func (d *decision) adopt() {
	if d.VMI == nil || d.vmi != nil || d.foreign != "" || d.VMI.DeletionTimestamp != nil {
		return
	}
	d.do(Action{Verb: AdoptVMI, Name: d.VMI.Name, If: Precondition{UID: d.VMI.UID, OwnerLive: true}, Why: "it has no controller"})
	d.halted = true
}

// prepare completes the object: finalizer, observed versions, and the firmware UUID that all its VMIs share.
func (d *decision) prepare() {
	vm := d.plan.VM
	if !slices.Contains(vm.Finalizers, v1.VirtualMachineControllerFinalizer) {
		vm.Finalizers = append(vm.Finalizers, v1.VirtualMachineControllerFinalizer)
	}
	if vm.Annotations[v1.ControllerAPILatestVersionObservedAnnotation] != v1.ApiLatestVersion {
		annotate(&vm.ObjectMeta, v1.ControllerAPILatestVersionObservedAnnotation, v1.ApiLatestVersion)
		annotate(&vm.ObjectMeta, v1.ControllerAPIStorageVersionObservedAnnotation, v1.ApiStorageVersion)
	}
	if vm.Spec.Template == nil {
		d.fail(reasonFailedCreate, "spec.template: missing virtual machine template")
		return
	}
	domain := &vm.Spec.Template.Spec.Domain
	if domain.Firmware == nil {
		domain.Firmware = &v1.Firmware{}
	}
	if domain.Firmware.UUID == "" {
		domain.Firmware.UUID = legacyUUID(vm.Name)
	}
}

// readStrategy reads the run strategy.
func (d *decision) readStrategy() {
	strategy, err := d.VM.RunStrategy()
	if err != nil {
		d.fail(reasonFailedCreate, fmt.Sprintf("Error fetching RunStrategy: %v", err))
		return
	}
	d.strategy = strategy
}

// resolve reads instance type and preference, and stores their revisions.
func (d *decision) resolve() {
	change, missing, err := instancetype.Sync(d.plan.VM, d.Objects, d.Config.Policy, d.Config.Cluster)
	if err != nil {
		d.unresolved(err)
		return
	}
	if d.plan.Need = missing; len(missing) > 0 {
		return
	}
	if change.Expanded != nil {
		status := d.plan.VM.Status
		d.plan.VM.Spec = change.Expanded.Spec
		d.plan.VM.Status = status
		d.plan.VM.Status.InstancetypeRef, d.plan.VM.Status.PreferenceRef = nil, nil
		d.halted = true
		return
	}
	for _, rev := range change.Create {
		d.do(Action{Verb: CreateRevision, Name: rev.Name, Revision: rev, Why: "instance types and preferences in use do not change",
			Fault: Failure{reasonFailedCreate, "error encountered while storing instancetype.kubevirt.io controllerRevisions: "}})
	}
	d.definitions = change.Definitions
	d.plan.VM.Status.InstancetypeRef, d.plan.VM.Status.PreferenceRef = change.InstancetypeRef, change.PreferenceRef
	d.forget()
}

// unresolved reports why instance type or preference cannot be used. Creations that failed are events too.
func (d *decision) unresolved(err error) {
	e := &instancetype.Error{Reason: "UnsupportedSyncError", Message: "unsupported error: " + err.Error()}
	errors.As(err, &e)
	d.fail(e.Reason, e.Message)
	if e.Reason == reasonFailedCreate {
		d.announce(e.Reason, e.Message)
	}
}

// write adds the updates of VM and VMI that the parts have collected. An object without finalizer is completed before anything
// is created for it; any other update of the VM comes last, when what it records has happened.
func (d *decision) write() {
	if d.next != nil && !d.does(DeleteVMI) && !equality.Semantic.DeepEqual(d.next, d.vmi) {
		d.do(Action{Verb: PatchVMI, Name: d.next.Name, VMI: d.next, If: Precondition{UID: d.vmi.UID, ResourceVersion: d.vmi.ResourceVersion},
			Why: "it follows the VirtualMachine", Fault: Failure{reasonFailedCreate, "Error encountered while updating the VMI: "}})
	}
	if !d.changesVM() {
		return
	}
	update := Action{Verb: UpdateVM, Name: d.VM.Name, If: Precondition{UID: d.VM.UID, ResourceVersion: d.VM.ResourceVersion}, Why: "metadata or spec change",
		Fault: Failure{"FailedUpdateError", "Error encountered when trying to update vm according to add volume and/or memory dump requests: "}}
	if slices.Contains(d.VM.Finalizers, v1.VirtualMachineControllerFinalizer) {
		d.do(update)
		return
	}
	d.plan.Actions = slices.Insert(d.plan.Actions, 0, update)
}

// changesVM reports whether metadata or spec of the VM change.
func (d *decision) changesVM() bool {
	return d.changesSpec() || !equality.Semantic.DeepEqual(d.plan.VM.ObjectMeta, d.VM.ObjectMeta)
}

func (d *decision) changesSpec() bool {
	return !equality.Semantic.DeepEqual(d.plan.VM.Spec, d.VM.Spec)
}

func (d *decision) do(a ...Action) { d.plan.Actions = append(d.plan.Actions, a...) }

func (d *decision) fail(reason, message string) {
	if d.failure == nil {
		d.failure = &Failure{Reason: reason, Message: message}
	}
}

func (d *decision) emit(warning bool, reason, message string) {
	d.plan.Events = append(d.plan.Events, Event{Warning: warning, Reason: reason, Message: message})
}

// announce emits a warning about a failure that condition Failure does not report yet.
func (d *decision) announce(reason, message string) {
	if !slices.ContainsFunc(d.VM.Status.Conditions, func(c v1.VirtualMachineCondition) bool {
		return c.Type == v1.VirtualMachineFailure && c.Reason == reason
	}) {
		d.emit(true, reason, message)
	}
}

func (d *decision) wait(w Wait) { d.waits = append(d.waits, w) }

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

func annotate(meta *metav1.ObjectMeta, key, value string) {
	if meta.Annotations == nil {
		meta.Annotations = map[string]string{}
	}
	meta.Annotations[key] = value
}

func remove(list *[]string, element string) {
	*list = slices.DeleteFunc(*list, func(s string) bool { return s == element })
}
