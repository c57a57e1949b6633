// SPDX-License-Identifier: Apache-2.0

// Package diagnose explains to people what a VirtualMachineInstance (VMI) waits for: the waits
// of a decision of package vmi, each with its cause and remedy, and inconsistencies of status,
// lease, Pod and domain that the decision leaves to others.
package diagnose

import (
	"fmt"
	"slices"
	"time"

	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/vmi"
)

// Diagnosis reports the state of a VMI to an operator: what blocks it, and the remedies.
// Its JSON form is for programs, [Diagnosis.Write] for people.
type Diagnosis struct {
	// Namespace and Guest name the VMI, At is the time of the diagnosis.
	Namespace string    `json:"namespace"`
	VMI       string    `json:"guest"`
	At        time.Time `json:"at"`
	// Phase is the stored phase, Since when it was entered, if known, and Becomes the phase
	// that the next pass stores; empty if the phase does not change.
	Phase   v1.VirtualMachineInstancePhase `json:"phase"`
	Since   *time.Time                     `json:"since,omitempty"`
	Becomes v1.VirtualMachineInstancePhase `json:"becomes,omitempty"`
	// Node is status.nodeName, Lease the state of the lease as text.
	Node  string `json:"node,omitempty"`
	Lease string `json:"lease"`
	// Pod is the launcher Pod; nil if there is none.
	Pod *PodStanding `json:"pod,omitempty"`
	// Checks are the preconditions of the launcher Pod evaluated so far, in order.
	Checks []CheckStanding `json:"checks,omitempty"`
	// Next lists the writes of the next pass except that of the status.
	Next []Step `json:"next,omitempty"`
	// Findings lists blockers and inconsistencies, the most significant first.
	Findings []Finding `json:"findings"`
}

// PodStanding is the state of the launcher Pod.
type PodStanding struct {
	// Name is the Pod's name, Node where it was scheduled, Phase its phase.
	Name  string `json:"name"`
	Node  string `json:"node,omitempty"`
	Phase string `json:"phase"`
	// Ready is true if the Pod is ready for the handoff to the node agent.
	Ready bool `json:"ready"`
	// Ending is true if the Pod has ended or is terminating.
	Ending bool `json:"ending,omitempty"`
}

// CheckStanding is a check and its result.
type CheckStanding struct {
	// Name is the name of the check.
	Name string `json:"name"`
	// Passed is true if the check does not block the Pod.
	Passed bool `json:"passed"`
}

// Step is a write that the next pass makes.
type Step struct {
	// Verb is the kind of write, Why its cause.
	Verb vmi.Verb `json:"verb"`
	Why  string   `json:"why"`
}

// FindingKind classifies a finding for programs.
type FindingKind string

// The kinds of findings.
const (
	// LauncherMissing: the VMI has no launcher Pod, or that Pod is gone or has ended.
	LauncherMissing FindingKind = "LauncherMissing"
	// LastWriteFailed: the last write was rejected.
	LastWriteFailed FindingKind = "LastWriteFailed"
	// WaitingForStorage: a claim or DataVolume is missing, or not ready yet.
	WaitingForStorage FindingKind = "WaitingForStorage"
	// InvalidNetwork: the networks and interfaces of the VMI are invalid or not supported.
	InvalidNetwork FindingKind = "InvalidNetwork"
	// InvalidSpec: another part of the spec is invalid or not supported.
	InvalidSpec FindingKind = "InvalidSpec"
	// NotUnderstood: lease or phase is invalid, and no action is taken.
	NotUnderstood FindingKind = "NotUnderstood"
	// Unschedulable: the scheduler finds no node for the launcher Pod.
	Unschedulable FindingKind = "Unschedulable"
	// PodNotReady: the Pod is scheduled, and its containers do not run.
	PodNotReady FindingKind = "PodNotReady"
	// WaitingForNode: the node agent must act. NodeSilent: the node agent is unresponsive.
	WaitingForNode FindingKind = "WaitingForNode"
	NodeSilent     FindingKind = "NodeSilent"
	// WaitingForMigration: a migration of the VMI must end first, or is its source.
	WaitingForMigration FindingKind = "WaitingForMigration"
	// WaitingForController: this or another controller must act.
	WaitingForController FindingKind = "WaitingForController"
	// WritePending: the controller's cache has not observed its own write yet.
	WritePending FindingKind = "WritePending"
	// Ending: the VMI is being deleted or shut down, and something still blocks that.
	Ending FindingKind = "Ending"
	// Disagreement: status, lease, Pod and domain are inconsistent.
	Disagreement FindingKind = "Disagreement"
	// UpdatePending: the domain differs from the spec until the VMI is migrated.
	UpdatePending FindingKind = "UpdatePending"
	// Paused: the domain is paused.
	Paused FindingKind = "Paused"
	// NotLeaving: the VMI was asked to leave its node, and no migration is active.
	NotLeaving FindingKind = "NotLeaving"
)

// Finding is a blocker or an inconsistency.
type Finding struct {
	// Kind is the kind for programs, Reason that of the condition or event.
	Kind   FindingKind `json:"kind"`
	Reason string      `json:"reason,omitempty"`
	// What is the observation, Why its cause or effect, Remedy the recommended action.
	What   string `json:"what"`
	Why    string `json:"why"`
	Remedy string `json:"remedy"`
	// Details are further lines of text.
	Details []string `json:"details,omitempty"`
	// Object is the kind, namespace and name of the object concerned.
	Object string `json:"object,omitempty"`
	// Responsible is the component that has to act, Until the event that resolves it; empty if there is none.
	Responsible handoff.Responsible `json:"by,omitempty"`
	Until       string              `json:"until,omitempty"`
	// Deadline is when the wait times out or is retried; nil means never.
	Deadline *time.Time `json:"deadline,omitempty"`
}

// Of returns the state of the VMI in the snapshot. It is pure and runs the same code as the
// live decision: it reports what [vmi.Decide] does. Beyond the waits of Decide it reports
// inconsistencies that Decide leaves to others.
func Of(s vmi.Snapshot, now time.Time) Diagnosis {
	plan := vmi.Decide(s, now)
	g := s.VMI
	d := Diagnosis{
		Namespace: g.Namespace, VMI: g.Name, At: now, Phase: g.Status.Phase, Since: phaseSince(g),
		Node: g.Status.NodeName, Findings: []Finding{},
	}
	if plan.VMI.Status.Phase != d.Phase {
		d.Becomes = plan.VMI.Status.Phase
	}
	for _, c := range plan.Checks {
		d.Checks = append(d.Checks, CheckStanding{Name: c.Name, Passed: c.Wait == nil})
	}
	for _, a := range plan.Actions {
		d.Next = append(d.Next, Step{Verb: a.Verb, Why: a.Why})
	}
	for _, w := range plan.Waits {
		d.Findings = append(d.Findings, advised(w, checkOf(plan, w)))
	}
	lease, err := handoff.Of(g)
	if err != nil {
		d.Lease = "invalid"
		return d
	}
	d.Lease = leaseText(lease)
	x := &examined{Snapshot: s, plan: plan, lease: lease, pod: s.Launcher()}
	d.Pod = podStanding(x.pod)
	for i := range d.Findings {
		if f := &d.Findings[i]; f.Kind == PodNotReady && x.pod != nil {
			f.Details = containers(x.pod)
		}
	}
	for _, look := range examinations {
		if f := look(x); f != nil {
			d.Findings = append(d.Findings, *f)
		}
	}
	if f := x.launcherMissing(); f != nil {
		d.Findings = slices.Insert(d.Findings, 0, *f) // all other findings follow from it
	}
	return d
}

// checkOf returns the name of the check that returned the wait; empty if none did.
func checkOf(p vmi.Plan, w vmi.Wait) string {
	i := slices.IndexFunc(p.Checks, func(c vmi.Check) bool { return c.Wait != nil && *c.Wait == w })
	if i < 0 {
		return ""
	}
	return p.Checks[i].Name
}

// phaseSince returns when the stored phase was entered; nil if it was not recorded.
func phaseSince(g *v1.VirtualMachineInstance) *time.Time {
	for i := range g.Status.PhaseTransitionTimestamps {
		if t := &g.Status.PhaseTransitionTimestamps[i]; t.Phase == g.Status.Phase {
			return &t.PhaseTransitionTimestamp.Time
		}
	}
	if g.Status.Phase == v1.VmPhaseUnset && !g.CreationTimestamp.IsZero() {
		return &g.CreationTimestamp.Time
	}
	return nil
}

// leaseText describes the lease in a few words.
func leaseText(l handoff.Lease) string {
	text := string(l.State)
	switch {
	case l.Cause == handoff.CauseStock:
		return "none: placed as by stock KubeVirt, " + podText(l.Holder)
	case l.State == handoff.Unclaimed:
		return "none"
	case l.Holder != "" && l.Target != "":
		text += fmt.Sprintf(", node %s to node %s", l.Holder, l.Target)
	case l.Holder != "":
		text += ", node " + l.Holder
	case l.Target != "":
		text += ", to node " + l.Target
	}
	if l.Stalled {
		text += ", stalled"
	}
	return fmt.Sprintf("%s, epoch %d", text, l.Epoch)
}

func podText(node string) string {
	if node == "" {
		return "on no node"
	}
	return "on node " + node
}
