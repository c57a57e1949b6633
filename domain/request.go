// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"fmt"
	"time"

	"github.com/virtloom/virtloom/handoff"
)

// RequestVerb says what a [Request] asks for.
type RequestVerb string

// The verbs, by the names of KubeVirt's subresources.
const (
	// RequestPause stops the guest's CPUs until RequestUnpause lets them go on.
	RequestPause   RequestVerb = "pause"
	RequestUnpause RequestVerb = "unpause"
	// RequestReset restarts the guest at once, RequestSoftReboot asks it to.
	RequestReset      RequestVerb = "reset"
	RequestSoftReboot RequestVerb = "softreboot"
	// RequestFreeze holds writes to the guest's file systems until
	// RequestUnfreeze.
	RequestFreeze   RequestVerb = "freeze"
	RequestUnfreeze RequestVerb = "unfreeze"
)

// Request is something a user asks of a running guest, now and not by its spec
// (KubeVirt: the subresources of a VirtualMachineInstance).
type Request struct {
	// Verb says what is asked for.
	Verb RequestVerb
	// ThawAfter is, for RequestFreeze, how long the file systems stay frozen if
	// nobody asks to thaw them (KubeVirt: unfreezeTimeout); 0 for as long as it takes.
	ThawAfter time.Duration
}

// DecideRequest says what a node must do to carry out a request. It is
// deterministic and changes nothing. The plan says nothing new about the object;
// what becomes of the guest is seen by [Decide], and kept in the domain, so that a
// guest that was paused stays so whoever restarts. A request whose goal is reached
// already has an empty plan.
//
// Only the node that owns the guest carries out requests, and none during a move.
// What cannot be done now is an [*Error] that wraps [ErrInvalidState], or
// [ErrNoAgent] where the guest's agent is needed and not there; a guest that is
// not here is [ErrNotFound], a verb that does not exist [ErrInvalid].
//
// Requests and passes over the same guest must be carried out one after another:
// each builds on what the one before has stored in the domain.
func DecideRequest(s Sight, r Request, now time.Time) (Plan, error) {
	d := newDecision(s, now)
	steps, known := requests[r.Verb]
	if !known {
		return Plan{}, d.refuse(r, ErrInvalid, "there is no such request", "use pause, unpause, reset, softreboot, freeze or unfreeze")
	}
	if err := d.mayServe(r); err != nil {
		return Plan{}, err
	}
	if err := steps(d, r); err != nil {
		return Plan{}, err
	}
	return d.plan, nil
}

// requests are how each is carried out.
var requests = map[RequestVerb]func(*decision, Request) error{
	RequestPause: (*decision).pauseGuest, RequestUnpause: (*decision).unpauseGuest,
	RequestReset: (*decision).resetGuest, RequestSoftReboot: (*decision).rebootGuest,
	RequestFreeze: (*decision).freezeGuest, RequestUnfreeze: (*decision).unfreezeGuest,
}

// refuse is the error for a request that cannot be carried out.
func (d *decision) refuse(r Request, err error, reason, remedy string) error {
	object := "VirtualMachineInstance"
	if d.VMI != nil {
		object += " " + d.VMI.Namespace + "/" + d.VMI.Name
	}
	return &Error{Object: object, Reason: fmt.Sprintf("%s: %s", r.Verb, reason), Remedy: remedy, Err: err}
}

// mayServe makes sure that this node owns the guest, alone, and that it runs.
func (d *decision) mayServe(r Request) error {
	if d.VMI == nil {
		return d.refuse(r, ErrNotFound, "the guest does not exist", "")
	}
	lease, err := handoff.Of(d.VMI)
	if err != nil {
		return err
	}
	d.lease, d.next = lease, lease
	d.plan.VMI, d.plan.Role = d.VMI.DeepCopy(), RoleOf(lease, d.Node)
	const later = "ask again when that is over"
	switch {
	case d.plan.Role != RoleHolder:
		return d.refuse(r, ErrNotFound, "the guest is not on node "+d.Node, "ask the node that status.nodeName names")
	case lease.State == handoff.Releasing, d.VMI.IsFinal(), d.VMI.DeletionTimestamp != nil:
		return d.refuse(r, ErrInvalidState, "the guest is being ended", "")
	case lease.State != handoff.Owned || d.Moving || d.MoveActive:
		return d.refuse(r, ErrInvalidState, fmt.Sprintf("the guest is about to be moved, or its node has been silent (%s)", lease.State), later)
	case !d.SilentSince.IsZero():
		return d.refuse(r, ErrInvalidState, "the hypervisor does not answer about the guest", later)
	case d.State == nil || d.meta.UID != d.VMI.UID || !d.State.Alive():
		return d.refuse(r, ErrInvalidState, "the guest does not run", "wait until its phase is Running")
	}
	return nil
}

// runs tells whether the guest's CPUs run and it can listen.
func (d *decision) runs() bool {
	return d.State.Status == StatusRunning || d.State.Status == StatusBlocked
}

// pauseGuest keeps that it was asked for before the guest stops: so nobody lets it
// go on again. One that stands still for another reason then stays so.
func (d *decision) pauseGuest(r Request) error {
	paused := d.State.Status == StatusPaused
	switch {
	case paused && d.State.busy():
		return d.refuse(r, ErrInvalidState, "the guest stands still at the moment: "+string(d.State.Reason), "ask again when that is over")
	case !paused && !d.runs():
		return d.refuse(r, ErrInvalidState, "the guest does not run: "+string(d.State.Status), "")
	}
	if !d.meta.Paused {
		d.remember("a user wants it to pause", func(m *Metadata) { m.Paused = true })
	}
	if !paused {
		d.apply(Suspend, "a user wants it to pause")
	}
	return nil
}

// unpauseGuest takes the mark away first: if this breaks off in between, the guest
// is let go on as one that nobody wants to pause.
func (d *decision) unpauseGuest(r Request) error {
	paused := d.State.Status == StatusPaused
	if paused && d.State.busy() {
		return d.refuse(r, ErrInvalidState, "the guest stands still at the moment: "+string(d.State.Reason), "ask again when that is over")
	}
	if d.meta.Paused {
		d.remember("a user wants it to go on", func(m *Metadata) { m.Paused = false })
	}
	if paused {
		d.resume("a user wants it to go on")
	}
	return nil
}

// resetGuest restarts the guest, and with it its file systems.
func (d *decision) resetGuest(r Request) error {
	if d.State.Status == StatusShuttingDown || d.State.Status == StatusPaused && d.State.busy() {
		return d.refuse(r, ErrInvalidState, fmt.Sprintf("the guest cannot be reset now (%s, %s)", d.State.Status, d.State.Reason), "ask again later")
	}
	d.apply(Reset, "a user wants it to restart")
	if d.meta.ThawAt != nil {
		d.remember("a guest that restarts has thawed", func(m *Metadata) { m.ThawAt = nil })
	}
	return nil
}

// rebootGuest asks the agent, or where there is none presses the button, which a
// guest without ACPI does not have.
func (d *decision) rebootGuest(r Request) error {
	agent := AgentConnected(d.State.Domain)
	switch {
	case !d.runs():
		return d.refuse(r, ErrInvalidState, "the guest does not listen: "+string(d.State.Status), "unpause it first, or reset it")
	case !agent && !acpiEnabled(d.VMI):
		return d.refuse(r, ErrInvalidState, "the guest has neither an agent that answers nor ACPI", "start its agent, or reset it")
	}
	d.do(Task{Verb: TaskApply, Why: "a user wants it to restart", Operation: Operation{Verb: Reboot, Domain: d.State.Name, Agent: agent}})
	return nil
}

// freezeGuest keeps when it is to end before it begins. It asks the agent even if the
// guest is known to be frozen: somebody may have thawed it since. The end of one that
// was asked for before stays what it was.
func (d *decision) freezeGuest(r Request) error {
	if err := d.agentListens(r); err != nil {
		return err
	}
	if r.ThawAfter < 0 {
		return d.refuse(r, ErrInvalid, fmt.Sprintf("%s is no time", r.ThawAfter), "use 0 or more")
	}
	if r.ThawAfter > 0 && d.meta.ThawAt == nil {
		at := d.now.Add(r.ThawAfter)
		d.remember("its file systems are to be thawed in time", func(m *Metadata) { m.ThawAt = &at })
		d.again(r.ThawAfter)
	}
	d.do(Task{Verb: TaskFreeze, Why: "a user wants its file systems to stand still"})
	return nil
}

// unfreezeGuest asks the agent even if nothing is known to be frozen: what is known
// may be old, and asking does no harm.
func (d *decision) unfreezeGuest(r Request) error {
	if err := d.agentListens(r); err != nil {
		return err
	}
	d.do(Task{Verb: TaskThaw, Why: "a user wants its file systems to go on"})
	if d.meta.ThawAt != nil {
		d.remember("its file systems are thawed", func(m *Metadata) { m.ThawAt = nil })
	}
	return nil
}

// agentListens refuses what needs the agent of a guest that cannot answer.
func (d *decision) agentListens(r Request) error {
	switch {
	case !d.runs():
		return d.refuse(r, ErrInvalidState, "the guest does not listen: "+string(d.State.Status), "unpause it first")
	case !AgentConnected(d.State.Domain):
		return d.refuse(r, ErrNoAgent, "the guest's agent is not connected", "install and start qemu-guest-agent in the guest")
	}
	return nil
}
