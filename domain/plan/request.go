// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"time"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/action"
	"github.com/virtloom/virtloom/domain/convert"
	"github.com/virtloom/virtloom/domain/internal/xmlspec"
	"github.com/virtloom/virtloom/domain/status"
	"github.com/virtloom/virtloom/handoff"
)

// RequestVerb is the kind of a [Request].
type RequestVerb string

// The verbs, with the names of KubeVirt's subresources.
const (
	// RequestPause pauses the VMI until RequestUnpause.
	RequestPause   RequestVerb = "pause"
	RequestUnpause RequestVerb = "unpause"
	// RequestReset restarts the domain at once, RequestSoftReboot requests a restart from the
	// guest.
	RequestReset      RequestVerb = "reset"
	RequestSoftReboot RequestVerb = "softreboot"
	// RequestFreeze freezes the guest's file systems until RequestUnfreeze.
	RequestFreeze   RequestVerb = "freeze"
	RequestUnfreeze RequestVerb = "unfreeze"
)

// Request is an imperative request of a user for a running VMI (KubeVirt: the subresources of a
// VirtualMachineInstance).
type Request struct {
	// Verb is the kind of the request.
	Verb RequestVerb
	// ThawAfter is, for RequestFreeze, the time after which the file systems are thawed
	// without a request (KubeVirt: unfreezeTimeout); 0 is without limit.
	ThawAfter time.Duration
}

// requestService serves the requests of users.
type requestService struct{ *decision }

// DecideRequest returns what a node has to do for a request. It is deterministic and changes
// none of its arguments. The plan does not change the object: [Decide] reflects the result
// later. The goal is stored in the domain's metadata, so that a paused VMI stays paused after a
// restart of the agent. A request whose goal is reached already has an empty plan.
//
// Only the node that owns the VMI carries out requests, and none during a migration. The error
// is an [*convert.Error] that wraps [domain.ErrInvalidState] if the request is not possible now,
// [domain.ErrNoAgent] if it requires the guest agent and that is not connected,
// [domain.ErrNotFound] if the VMI is not here, and [domain.ErrInvalid] for an unknown verb.
//
// Requests and passes for the same VMI must be carried out one after another: each builds on the
// metadata that the one before has stored in the domain.
func DecideRequest(s Snapshot, r Request, now time.Time) (Plan, error) {
	d := requestService{newDecision(s, now)}
	steps, known := requests[r.Verb]
	if !known {
		return Plan{}, d.refuse(r, domain.ErrInvalid, "request is not supported", "use pause, unpause, reset, softreboot, freeze or unfreeze")
	}
	if err := d.mayServe(r); err != nil {
		return Plan{}, err
	}
	if err := steps(d, r); err != nil {
		return Plan{}, err
	}
	return d.plan, nil
}

// requests has the function that decides each request.
var requests = map[RequestVerb]func(requestService, Request) error{
	RequestPause: requestService.servePause, RequestUnpause: requestService.serveUnpause,
	RequestReset: requestService.serveReset, RequestSoftReboot: requestService.serveSoftReboot,
	RequestFreeze: requestService.serveFreeze, RequestUnfreeze: requestService.serveUnfreeze,
}

// refuse returns the error for a request that cannot be carried out.
func (d requestService) refuse(r Request, err error, reason, remedy string) error {
	object := "VirtualMachineInstance"
	if d.VMI != nil {
		object += " " + d.VMI.Namespace + "/" + d.VMI.Name
	}
	return &convert.Error{Object: object, Reason: fmt.Sprintf("%s: %s", r.Verb, reason), Remedy: remedy, Err: err}
}

// mayServe checks that this node alone owns the VMI, and that its domain runs.
func (d requestService) mayServe(r Request) error {
	if d.VMI == nil {
		return d.refuse(r, domain.ErrNotFound, "the VMI does not exist", "")
	}
	lease, err := handoff.Of(d.VMI)
	if err != nil {
		return err
	}
	d.lease, d.next = lease, lease
	d.plan.VMI, d.plan.Role = d.VMI.DeepCopy(), handoff.RoleOf(lease, d.Node)
	const later = "retry later"
	switch {
	case d.plan.Role != handoff.RoleHolder:
		return d.refuse(r, domain.ErrNotFound, "the VMI is not on node "+d.Node, "send the request to the node in status.nodeName")
	case lease.State == handoff.Releasing, d.VMI.IsFinal(), d.VMI.DeletionTimestamp != nil:
		return d.refuse(r, domain.ErrInvalidState, "the VMI is being stopped", "")
	case lease.State != handoff.Owned || d.Migrating || d.MigrationActive:
		return d.refuse(r, domain.ErrInvalidState, fmt.Sprintf("the VMI is being migrated, or its node was unresponsive (lease state %s)", lease.State), later)
	case !d.SilentSince.IsZero():
		return d.refuse(r, domain.ErrInvalidState, "the hypervisor does not answer about the domain", later)
	case d.State == nil || d.meta.UID != d.VMI.UID || !d.State.Alive():
		return d.refuse(r, domain.ErrInvalidState, "VMI is not running", "wait until its phase is Running")
	}
	return nil
}

// runs reports whether the domain's CPUs run, so that the guest can react.
func (d requestService) runs() bool {
	return d.State.Status == domain.StatusRunning || d.State.Status == domain.StatusBlocked
}

// servePause stores the request before it suspends the domain, so that no pass resumes it. A
// domain that is paused for another reason stays paused.
func (d requestService) servePause(r Request) error {
	paused := d.State.Status == domain.StatusPaused
	switch {
	case paused && d.State.Busy():
		return d.refuse(r, domain.ErrInvalidState, "an operation in progress has paused the domain: "+string(d.State.Reason), "retry later")
	case !paused && !d.runs():
		return d.refuse(r, domain.ErrInvalidState, "the domain is not running: "+string(d.State.Status), "")
	}
	if !d.meta.Paused {
		d.remember("a user has requested a pause", func(m *domain.Metadata) { m.Paused = true })
	}
	if !paused {
		d.apply(domain.Suspend, "a user has requested a pause")
	}
	return nil
}

// serveUnpause removes the mark first: after a crash in between, a pass resumes the domain
// since no user has paused it.
func (d requestService) serveUnpause(r Request) error {
	paused := d.State.Status == domain.StatusPaused
	if paused && d.State.Busy() {
		return d.refuse(r, domain.ErrInvalidState, "an operation in progress has paused the domain: "+string(d.State.Reason), "retry later")
	}
	if d.meta.Paused {
		d.remember("a user has requested an unpause", func(m *domain.Metadata) { m.Paused = false })
	}
	if paused {
		pause(d).resume("a user has requested an unpause")
	}
	return nil
}

// serveReset restarts the domain, which also thaws its file systems.
func (d requestService) serveReset(r Request) error {
	if d.State.Status == domain.StatusShuttingDown || d.State.Status == domain.StatusPaused && d.State.Busy() {
		return d.refuse(r, domain.ErrInvalidState, fmt.Sprintf("the domain cannot be reset in its state (%s, %s)", d.State.Status, d.State.Reason), "retry later")
	}
	d.apply(domain.Reset, "a user has requested a reset")
	if d.meta.ThawAt != nil {
		d.remember("a reset thaws the file systems", func(m *domain.Metadata) { m.ThawAt = nil })
	}
	return nil
}

// serveSoftReboot uses the guest agent, or without one the power button, which requires ACPI.
func (d requestService) serveSoftReboot(r Request) error {
	agent := status.AgentConnected(d.State.Domain)
	switch {
	case !d.runs():
		return d.refuse(r, domain.ErrInvalidState, "the guest cannot react: "+string(d.State.Status), "unpause the VMI first, or reset it")
	case !agent && !xmlspec.ACPIEnabled(d.VMI):
		return d.refuse(r, domain.ErrInvalidState, "the guest has neither a connected agent nor ACPI", "start the guest agent, or reset the VMI")
	}
	d.do(action.Action{Verb: action.Apply, Why: "a user has requested a reboot", Operation: domain.Operation{Verb: domain.Reboot, Domain: d.State.Name, Agent: agent}})
	return nil
}

// serveFreeze stores the time limit before it freezes. It calls the agent even if the file
// systems are known to be frozen, since they may have been thawed otherwise. The time limit of
// an earlier freeze stays.
func (d requestService) serveFreeze(r Request) error {
	if err := d.agentListens(r); err != nil {
		return err
	}
	if r.ThawAfter < 0 {
		return d.refuse(r, domain.ErrInvalid, fmt.Sprintf("unfreezeTimeout: Invalid value: %s: must not be negative", r.ThawAfter), "use 0 or more")
	}
	if r.ThawAfter > 0 && d.meta.ThawAt == nil {
		at := d.now.Add(r.ThawAfter)
		d.remember("the time limit of the freeze", func(m *domain.Metadata) { m.ThawAt = &at })
		d.requeueAfter(r.ThawAfter)
	}
	d.do(action.Action{Verb: action.Freeze, Why: "a user has requested a freeze"})
	return nil
}

// serveUnfreeze calls the agent even if no file system is known to be frozen: that may be out
// of date, and the call is harmless.
func (d requestService) serveUnfreeze(r Request) error {
	if err := d.agentListens(r); err != nil {
		return err
	}
	d.do(action.Action{Verb: action.Thaw, Why: "a user has requested an unfreeze"})
	if d.meta.ThawAt != nil {
		d.remember("its file systems are thawed", func(m *domain.Metadata) { m.ThawAt = nil })
	}
	return nil
}

// agentListens rejects a request that needs the guest agent if that cannot react.
func (d requestService) agentListens(r Request) error {
	switch {
	case !d.runs():
		return d.refuse(r, domain.ErrInvalidState, "the guest cannot react: "+string(d.State.Status), "unpause the VMI first")
	case !status.AgentConnected(d.State.Domain):
		return d.refuse(r, domain.ErrNoAgent, "guest agent is not connected", "install and start qemu-guest-agent in the guest")
	}
	return nil
}
