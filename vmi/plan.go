// SPDX-License-Identifier: Apache-2.0

package vmi

import (
	"fmt"
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
	// DeletePod deletes a Pod of the guest.
	DeletePod Verb = "DeletePod"
	// SetUnpaused writes the readiness gate of the guest's Pod.
	SetUnpaused Verb = "SetUnpaused"
)

// Action is one write the plan asks for beside the patch of the VMI.
type Action struct {
	// Verb says what to do.
	Verb Verb
	// Pod is the Pod acted on; nil for CreateLauncher.
	Pod *corev1.Pod
	// GraceSeconds replaces the Pod's own grace period when not nil.
	GraceSeconds *int64
	// Unpaused is the value for SetUnpaused.
	Unpaused bool
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
	if a.GraceSeconds != nil {
		fmt.Fprintf(&b, " grace=%ds", *a.GraceSeconds)
	}
	fmt.Fprintf(&b, " (%s)", a.Why)
	return b.String()
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

// Check is the outcome of one of the ordered checks before a Pod may be
// created. The first blocked one is what the object waits for.
type Check struct {
	// Name of the check.
	Name string
	// Blocked says that nothing may be created yet.
	Blocked bool
	// Reason is a CamelCase word, empty when not blocked.
	Reason string
	// Message explains what is awaited, for people.
	Message string
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
	// RequeueAt is when to look again without an event; nil means never.
	RequeueAt *time.Time
}

// Blocked returns the check that holds the guest's Pod back, or nil.
func (p Plan) Blocked() *Check {
	for i := range p.Checks {
		if p.Checks[i].Blocked {
			return &p.Checks[i]
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
	if c := p.Blocked(); c != nil {
		fmt.Fprintf(&b, "\n  blocked by %s: %s: %s", c.Name, c.Reason, c.Message)
	}
	return b.String()
}
