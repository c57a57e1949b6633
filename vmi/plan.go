// SPDX-License-Identifier: Apache-2.0

package vmi

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"
)

// Verb names what an action does.
type Verb string

const (
	// CreateLauncher renders and creates the guest's Pod.
	CreateLauncher Verb = "CreateLauncher"
	// CreateTemporary renders and creates the Pod that is the first consumer of the
	// guest's claims, so that they are provisioned.
	CreateTemporary Verb = "CreateTemporary"
	// CreateAttachment renders and creates the Pod that brings Volumes to the node of
	// Pod, the guest's.
	CreateAttachment Verb = "CreateAttachment"
	// CreateTrigger renders and creates the Pod that has the claim of the one volume
	// in Volumes provisioned beside Pod, the guest's.
	CreateTrigger Verb = "CreateTrigger"
	// CreateClaim creates Claim, which keeps the guest's state.
	CreateClaim Verb = "CreateClaim"
	// DeleteClaim deletes Claim.
	DeleteClaim Verb = "DeleteClaim"
	// DeletePod deletes a Pod of the guest.
	DeletePod Verb = "DeletePod"
	// PatchPod changes labels, annotations and the readiness gate of a Pod, in one
	// write.
	PatchPod Verb = "PatchPod"
)

// Action is one write the plan asks for beside the patch of the VMI.
type Action struct {
	// Verb says what to do.
	Verb Verb
	// Pod is the Pod acted on, or that another is made for; nil for CreateLauncher and
	// CreateTemporary.
	Pod *corev1.Pod
	// Volumes are the names of the volumes of an attachment or trigger, in order.
	Volumes []string
	// Claim is the claim to create or delete.
	Claim *corev1.PersistentVolumeClaim
	// Fault is the reason of the Synchronized condition if the action fails.
	Fault string
	// GraceSeconds replaces the Pod's own grace period when not nil.
	GraceSeconds *int64
	// Unpaused is what the Pod's readiness gate shall say; nil leaves it.
	Unpaused *bool
	// Labels and Annotations are what the Pod shall have, nil values what it shall
	// lose.
	Labels, Annotations map[string]*string
	// Why is the reason in a few words.
	Why string
}

// String prints the action on one line.
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

// printKeys prints the keys of a change, those that go with a dash, as kubectl label
// has them.
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

// Event is something people should read about the guest. It goes with a change
// of the object, so that no pass repeats it.
type Event struct {
	// Warning says that something stands in the way.
	Warning bool
	// Reason is a CamelCase word.
	Reason string
	// Message names object, field and remedy where they are known.
	Message string
}

// Wait is something that has to happen before the guest gets on. It is told in a
// condition, and never ended by back-off alone.
type Wait struct {
	// Reason is a CamelCase word.
	Reason string
	// Message explains what is awaited, for people: object, field and remedy where
	// they are known.
	Message string
	// Object is kind, namespace and name of what is waited for.
	Object string
	// Until is the event that ends the wait.
	Until string
	// By is whose turn it is.
	By Actor
	// Deadline is when the wait is given up or looked at without an event; nil means
	// never.
	Deadline *time.Time
	// Condition is the type of the condition that tells it; empty means Synchronized.
	Condition v1.VirtualMachineInstanceConditionType
}

// Actor is who ends a wait.
type Actor string

// The actors.
const (
	// ByUser: somebody has to change something.
	ByUser Actor = "user"
	// ByController: this or another controller of virtual machines.
	ByController Actor = "controller"
	// ByStorage: what provisions and fills claims.
	ByStorage Actor = "storage"
	// ByScheduler: what places Pods.
	ByScheduler Actor = "scheduler"
	// ByKubelet: what runs Pods.
	ByKubelet Actor = "kubelet"
	// ByNode: the agent on the guest's node.
	ByNode Actor = "node"
)

// Check is the outcome of one of the ordered checks before a Pod may be
// created. The first that has a Wait is what the object waits for.
type Check struct {
	// Name of the check.
	Name string
	// Wait is what is awaited; nil if the check passed.
	Wait *Wait
}

// Plan is what a decision comes to.
type Plan struct {
	// VMI is the object as it shall become. It differs from the snapshot's
	// only in what this controller owns.
	VMI *v1.VirtualMachineInstance
	// Actions are to be carried out in order, before the patch.
	Actions []Action
	// Events are to be told once VMI is stored, so that one that could not be
	// stored is told when it could.
	Events []Event
	// Checks are the checks that were made, in order.
	Checks []Check
	// Waits are all that has to happen before the guest gets on, the most telling
	// first.
	Waits []Wait
	// Trouble is what stands in the way of a guest that was handed over, whose condition Synchronized is its node's: it
	// is told in an event. Nil if there is nothing.
	Trouble *Failure
	// RequeueAt is when to look again without an event; nil means never.
	RequeueAt *time.Time
}

// Blocked returns the wait that holds the guest's Pod back, or nil.
func (p Plan) Blocked() *Wait {
	for i := range p.Checks {
		if p.Checks[i].Wait != nil {
			return p.Checks[i].Wait
		}
	}
	return nil
}

// String prints the plan on a few lines, for logs and dry runs.
func (p Plan) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "phase=%s", p.VMI.Status.Phase)
	for _, a := range p.Actions {
		fmt.Fprintf(&b, "\n  do %s", a)
	}
	for _, e := range p.Events {
		fmt.Fprintf(&b, "\n  tell %s: %s", e.Reason, e.Message)
	}
	for _, w := range p.Waits {
		fmt.Fprintf(&b, "\n  wait until %s: %s: %s", w.Until, w.Reason, w.Message)
	}
	return b.String()
}
