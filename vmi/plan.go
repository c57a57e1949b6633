// SPDX-License-Identifier: Apache-2.0

package vmi

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
)

// Verb is the kind of an action.
type Verb string

const (
	// CreateLauncher renders and creates the launcher Pod.
	CreateLauncher Verb = "CreateLauncher"
	// CreateTemporary renders and creates the temporary Pod that is the first consumer
	// of the VMI's claims, so that they are provisioned.
	CreateTemporary Verb = "CreateTemporary"
	// CreateAttachment renders and creates the Pod that attaches Volumes to the node of
	// the launcher Pod.
	CreateAttachment Verb = "CreateAttachment"
	// CreateTrigger renders and creates the first consumer of the claim of the one volume
	// in Volumes, on the node of the launcher Pod.
	CreateTrigger Verb = "CreateTrigger"
	// CreateClaim creates the backend storage claim.
	CreateClaim Verb = "CreateClaim"
	// DeleteClaim deletes the backend storage claim.
	DeleteClaim Verb = "DeleteClaim"
	// DeletePod deletes a Pod of the VMI.
	DeletePod Verb = "DeletePod"
	// PatchPod changes labels, annotations and the readiness gate of a Pod, in one
	// write.
	PatchPod Verb = "PatchPod"
)

// Action is one write of the plan other than the patch of the VMI.
type Action struct {
	// Verb is the kind of write.
	Verb Verb
	// Pod is the Pod to write, or the launcher Pod of the Pod to create; nil for
	// CreateLauncher and CreateTemporary.
	Pod *corev1.Pod
	// Volumes are the names of the volumes of an attachment or trigger, in order.
	Volumes []string
	// Claim is the claim to create or delete.
	Claim *corev1.PersistentVolumeClaim
	// Fault is the reason of the Synchronized condition if the action fails.
	Fault string
	// GraceSeconds replaces the Pod's own grace period when not nil.
	GraceSeconds *int64
	// Unpaused is the new value of the Pod's readiness gate; nil leaves it unchanged.
	Unpaused *bool
	// Labels and Annotations are changes of the Pod's metadata; a nil value removes the
	// key.
	Labels, Annotations map[string]*string
	// Why is the cause in a few words.
	Why string
}

// String returns the action as one line.
func (a Action) String() string {
	var b strings.Builder
	b.WriteString(string(a.Verb))
	if a.Pod != nil {
		fmt.Fprintf(&b, " %s", a.Pod.Name)
	}
	if len(a.Volumes) > 0 {
		fmt.Fprintf(&b, " volumes=%s", strings.Join(a.Volumes, ","))
	}
	if a.Claim != nil {
		fmt.Fprintf(&b, " claim=%s", a.Claim.Name)
	}
	if a.GraceSeconds != nil {
		fmt.Fprintf(&b, " grace=%ds", *a.GraceSeconds)
	}
	if a.Unpaused != nil {
		fmt.Fprintf(&b, " unpaused=%t", *a.Unpaused)
	}
	printKeys(&b, "labels", a.Labels)
	printKeys(&b, "annotations", a.Annotations)
	fmt.Fprintf(&b, " (%s)", a.Why)
	return b.String()
}

// printKeys prints the keys of a change; a removed key has a trailing dash, as with kubectl
// label.
func printKeys(b *strings.Builder, what string, change map[string]*string) {
	var keys []string
	for key, value := range change {
		if value == nil {
			key += "-"
		}
		keys = append(keys, key)
	}
	if len(keys) > 0 {
		slices.Sort(keys)
		fmt.Fprintf(b, " %s=%s", what, strings.Join(keys, ","))
	}
}

// Event is an event about the VMI. It is emitted with a change of the object, so that no
// other pass repeats it.
type Event struct {
	// Warning is true if the event reports a problem.
	Warning bool
	// Reason is a CamelCase word.
	Reason string
	// Message contains object, field and remedy where known.
	Message string
}

// Wait is a prerequisite of the VMI's progress. It is reported in a condition, and never
// ends by back-off alone.
type Wait struct {
	// Reason is a CamelCase word.
	Reason string
	// Message describes the wait: object, field and remedy where known.
	Message string
	// Object is the kind, namespace and name of the awaited object.
	Object string
	// Until is the event that ends the wait.
	Until string
	// Responsible is the component that has to act next.
	Responsible handoff.Responsible
	// Deadline is when the wait times out or is evaluated without an event; nil means
	// never.
	Deadline *time.Time
	// Condition is the type of the condition that reports it; empty means Synchronized.
	Condition v1.VirtualMachineInstanceConditionType
}

// Check is the result of one of the ordered preconditions of a Pod. The first one with a
// Wait blocks the Pod.
type Check struct {
	// Name is the name of the check.
	Name string
	// Wait is what blocks the Pod; nil if the check passed.
	Wait *Wait
}

// Plan is the result of a decision.
type Plan struct {
	// VMI is the new state of the object. It differs from the snapshot's only in fields
	// that this controller owns.
	VMI *v1.VirtualMachineInstance
	// Actions are to be executed in order, before the patch.
	Actions []Action
	// Events are to be emitted once VMI is stored, so that an event follows the write
	// that it belongs to, even if that is retried.
	Events []Event
	// Checks are the evaluated checks, in order.
	Checks []Check
	// Waits lists everything that the VMI waits for, the most significant wait first.
	Waits []Wait
	// Trouble is a problem of a VMI after its handoff, whose Synchronized condition belongs
	// to the node agent; it is reported by an event. Nil if there is none.
	Trouble *Failure
	// RequeueAt is when to requeue without an event; nil means never.
	RequeueAt *time.Time
}

// Blocked returns the wait that blocks the launcher Pod, or nil.
func (p Plan) Blocked() *Wait {
	for i := range p.Checks {
		if p.Checks[i].Wait != nil {
			return p.Checks[i].Wait
		}
	}
	return nil
}

// String returns the plan on a few lines, for logs and dry runs.
func (p Plan) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "phase=%s", p.VMI.Status.Phase)
	for _, a := range p.Actions {
		fmt.Fprintf(&b, "\n  do %s", a)
	}
	for _, e := range p.Events {
		fmt.Fprintf(&b, "\n  emit %s: %s", e.Reason, e.Message)
	}
	for _, w := range p.Waits {
		fmt.Fprintf(&b, "\n  wait until %s: %s: %s", w.Until, w.Reason, w.Message)
	}
	return b.String()
}
