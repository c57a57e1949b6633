// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"fmt"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/vm/instancetype"
)

// Verb is the kind of an action.
type Verb string

// Kinds of actions.
const (
	// UpdateVM stores metadata and spec of Plan.VM.
	UpdateVM Verb = "UpdateVM"
	// CreateRevision and DeleteRevision write a ControllerRevision.
	CreateRevision Verb = "CreateRevision"
	DeleteRevision Verb = "DeleteRevision"
	// CreateDataVolume creates a DataVolume of a template, AdoptDataVolume makes the VM the controller of an existing one.
	CreateDataVolume Verb = "CreateDataVolume"
	AdoptDataVolume  Verb = "AdoptDataVolume"
	// CreateVMI, AdoptVMI, PatchVMI and DeleteVMI write the VMI.
	CreateVMI Verb = "CreateVMI"
	AdoptVMI  Verb = "AdoptVMI"
	PatchVMI  Verb = "PatchVMI"
	DeleteVMI Verb = "DeleteVMI"
	// PatchClaim stores the annotations of a claim.
	PatchClaim Verb = "PatchClaim"
)

// Precondition is what must hold of the written object when the write arrives. The zero Precondition of a creation
// is that the name is free: the name says which owner and generation the object belongs to.
type Precondition struct {
	// UID and ResourceVersion are those of the object.
	UID             types.UID
	ResourceVersion string
	// OwnerLive requires a live read of the VM: it is not being deleted, and has the UID and the resourceVersion of the
	// snapshot, or that of the update in the same plan. So a stale cache neither starts a VM twice for one
	// request, nor ends a guest that is to run, nor deletes the revision of one.
	OwnerLive bool
}

// Action is one write of the plan other than the patch of the status of the VM.
type Action struct {
	Verb Verb
	// Name is the name of the object.
	Name string
	// The object to create or store; nil for others and for deletions.
	VMI        *v1.VirtualMachineInstance
	DataVolume *cdiv1.DataVolume
	Revision   *appsv1.ControllerRevision
	Claim      *corev1.PersistentVolumeClaim
	// If is what must hold of the object.
	If Precondition
	// Fault is the Failure of the VM if the action fails; the error is appended to its message.
	Fault Failure
	// Done is the event to emit after success, Failed the one after an error, which is appended to its message; nil for none.
	Done, Failed *Event
	// Why is the cause in a few words.
	Why string
}

// String returns the action as one line.
func (a Action) String() string { return fmt.Sprintf("%s %s (%s)", a.Verb, a.Name, a.Why) }

// Event is an event about the VM.
type Event struct {
	// Warning is true if the event reports a problem.
	Warning bool
	// Reason is a CamelCase word.
	Reason string
	// Message contains object, field and remedy where known.
	Message string
}

// Failure is the content of condition Failure.
type Failure struct{ Reason, Message string }

// Wait is a prerequisite of the VM's progress.
type Wait struct {
	// Reason is a CamelCase word.
	Reason string
	// Message describes the wait.
	Message string
	// Object is the kind, namespace and name of the awaited object.
	Object string
	// Until is the event that ends the wait.
	Until string
	// Responsible is the component that has to act next.
	Responsible handoff.Responsible
	// Deadline is when the wait ends without an event; nil means never.
	Deadline *time.Time
}

// Plan is the result of a decision.
type Plan struct {
	// VM is the new state of the object: metadata and spec for UpdateVM, and the status, which is stored in one patch after the
	// actions.
	VM *v1.VirtualMachine
	// Actions are to be executed in order, up to the first that fails.
	Actions []Action
	// Events are to be emitted once the status is stored.
	Events []Event
	// Waits lists everything that the VM waits for, the most significant wait first.
	Waits []Wait
	// Need are objects without which the plan is not complete: they must be read before the next decision.
	Need []instancetype.Ref
	// RequeueAt is when to requeue without an event; nil means never.
	RequeueAt *time.Time
}

// String returns the plan on a few lines.
func (p Plan) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "printableStatus=%s", p.VM.Status.PrintableStatus)
	for _, a := range p.Actions {
		fmt.Fprintf(&b, "\n  do %s", a)
	}
	for _, e := range p.Events {
		fmt.Fprintf(&b, "\n  emit %s: %s", e.Reason, e.Message)
	}
	for _, r := range p.Need {
		fmt.Fprintf(&b, "\n  read %s", r)
	}
	for _, w := range p.Waits {
		fmt.Fprintf(&b, "\n  wait until %s: %s: %s", w.Until, w.Reason, w.Message)
	}
	return b.String()
}
