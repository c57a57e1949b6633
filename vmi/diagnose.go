// SPDX-License-Identifier: Apache-2.0

package vmi

import (
	"fmt"
	"slices"
	"time"

	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
)

// Diagnosis tells an operator where a guest stands, what is in its way, and what mends that.
// Its JSON form is for programs, [Diagnosis.Write] for people.
type Diagnosis struct {
	// Namespace and Guest name the guest, At is the time of the diagnosis.
	Namespace string    `json:"namespace"`
	Guest     string    `json:"guest"`
	At        time.Time `json:"at"`
	// Phase is the stored phase, Since when it was entered, if that is known, and Becomes the
	// phase that the next pass stores; empty if that leaves it.
	Phase   v1.VirtualMachineInstancePhase `json:"phase"`
	Since   *time.Time                     `json:"since,omitempty"`
	Becomes v1.VirtualMachineInstancePhase `json:"becomes,omitempty"`
	// Node is the node of the status, Lease whom the guest belongs to by its lease.
	Node  string `json:"node,omitempty"`
	Lease string `json:"lease"`
	// Pod is the Pod that runs, or shall run, the guest; nil if there is none.
	Pod *PodStanding `json:"pod,omitempty"`
	// Checks are what was checked before the guest may have a Pod, in order, as far as it was.
	Checks []CheckStanding `json:"checks,omitempty"`
	// Next are the writes of the next pass beside that of the status.
	Next []Step `json:"next,omitempty"`
	// Findings are what is in the way or does not fit together, the most telling first.
	Findings []Finding `json:"findings"`
}

// PodStanding is how far the guest's Pod is.
type PodStanding struct {
	// Name is the Pod's, Node where it was placed, Phase its own.
	Name  string `json:"name"`
	Node  string `json:"node,omitempty"`
	Phase string `json:"phase"`
	// Ready says that the node agent can take the guest over.
	Ready bool `json:"ready"`
	// Ending says that it is on its way out.
	Ending bool `json:"ending,omitempty"`
}

// CheckStanding is a check and whether it passed.
type CheckStanding struct {
	// Name is that of the check.
	Name string `json:"name"`
	// Passed says that it is not in the way.
	Passed bool `json:"passed"`
}

// Step is a write that a pass would make.
type Step struct {
	// Verb says what would be written, Why what for.
	Verb Verb   `json:"verb"`
	Why  string `json:"why"`
}

// FindingKind says, for programs, what is the matter.
type FindingKind string

// The kinds of findings.
const (
	// LauncherMissing: the guest has no Pod, or the one it ran in has gone or ended.
	LauncherMissing FindingKind = "LauncherMissing"
	// LastWriteFailed: what was tried last was refused.
	LastWriteFailed FindingKind = "LastWriteFailed"
	// WaitingForStorage: a claim or DataVolume is missing, or not ready yet.
	WaitingForStorage FindingKind = "WaitingForStorage"
	// InvalidNetwork: the guest's networks and interfaces are not to be had.
	InvalidNetwork FindingKind = "InvalidNetwork"
	// InvalidSpec: something else of the guest's spec is not to be had here.
	InvalidSpec FindingKind = "InvalidSpec"
	// NotUnderstood: the object says what it cannot, and is left alone.
	NotUnderstood FindingKind = "NotUnderstood"
	// Unschedulable: no node takes the guest's Pod.
	Unschedulable FindingKind = "Unschedulable"
	// PodNotReady: the Pod has its node, and its containers do not run.
	PodNotReady FindingKind = "PodNotReady"
	// WaitingForNode: the agent of the guest's node has to act, and NodeSilent: it gives no sign of life.
	WaitingForNode FindingKind = "WaitingForNode"
	NodeSilent     FindingKind = "NodeSilent"
	// WaitingForMigration: a migration of the guest has to end first, or to bring it.
	WaitingForMigration FindingKind = "WaitingForMigration"
	// WaitingForController: this or another controller has to act.
	WaitingForController FindingKind = "WaitingForController"
	// WriteUnseen: the controller's cache does not show its own write yet.
	WriteUnseen FindingKind = "WriteUnseen"
	// Ending: the guest or its object is to end, and something still keeps it.
	Ending FindingKind = "Ending"
	// Disagreement: status, lease, Pod and domain do not say the same.
	Disagreement FindingKind = "Disagreement"
	// UpdatePending: the domain is not as the spec asks until the guest has moved.
	UpdatePending FindingKind = "UpdatePending"
	// Paused: the guest stands still.
	Paused FindingKind = "Paused"
	// NotLeaving: the guest was asked to leave its node, and nothing moves it.
	NotLeaving FindingKind = "NotLeaving"
)

// Finding is something in the way, or that does not fit together.
type Finding struct {
	// Kind says what is the matter, Reason the same in the words of conditions and events.
	Kind   FindingKind `json:"kind"`
	Reason string      `json:"reason,omitempty"`
	// What was found, Why that is so or matters, Remedy what to do about it.
	What   string `json:"what"`
	Why    string `json:"why"`
	Remedy string `json:"remedy"`
	// Details are more to know, a line each.
	Details []string `json:"details,omitempty"`
	// Object is kind, namespace and name of what it is about.
	Object string `json:"object,omitempty"`
	// By is whose turn it is, Until the event that ends it; empty if there is none.
	By    Actor  `json:"by,omitempty"`
	Until string `json:"until,omitempty"`
	// Deadline is when it is given up or looked at again; nil means never.
	Deadline *time.Time `json:"deadline,omitempty"`
}

// Diagnose says where the guest of the snapshot stands. It is pure and by the same code as the
// live decision: what it tells is what [Decide] does. Beside what Decide waits for it tells of what
// does not fit together, which Decide leaves to others.
func Diagnose(s Snapshot, now time.Time) Diagnosis {
	plan := Decide(s, now)
	g := s.VMI
	d := Diagnosis{
		Namespace: g.Namespace, Guest: g.Name, At: now, Phase: g.Status.Phase, Since: phaseSince(g),
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
		d.Lease = "cannot be read"
		return d
	}
	d.Lease = leaseText(lease)
	x := &examined{Snapshot: s, plan: plan, lease: lease, pod: s.Launcher()}
	d.Pod = podStanding(x.pod)
	for i := range d.Findings {
		if f := &d.Findings[i]; f.Kind == PodNotReady && x.pod != nil {
			f.Details = Containers(x.pod)
		}
	}
	for _, look := range examinations {
		if f := look(x); f != nil {
			d.Findings = append(d.Findings, *f)
		}
	}
	if f := x.launcherMissing(); f != nil {
		d.Findings = slices.Insert(d.Findings, 0, *f) // whatever else there is follows from that
	}
	return d
}

// checkOf names the check that a wait is of; empty if it is of none.
func checkOf(p Plan, w Wait) string {
	i := slices.IndexFunc(p.Checks, func(c Check) bool { return c.Wait != nil && *c.Wait == w })
	if i < 0 {
		return ""
	}
	return p.Checks[i].Name
}

// phaseSince is when the stored phase was entered; nil if nobody noted it.
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

// leaseText says in a few words whom the guest belongs to.
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
