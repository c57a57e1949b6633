// SPDX-License-Identifier: Apache-2.0

package handoff

import (
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// ErrFenced means that the sender acted on an epoch that is no longer current. It
// must stop acting on the domain and read the lease again.
var ErrFenced = errors.New("handoff: stale epoch")

// ErrRefused means that the event does not fit the lease's state, or that its
// sender is not allowed to send it.
var ErrRefused = errors.New("handoff: event refused")

// ErrTooEarly means that an unresponsive node may still act: its domain must not be
// declared gone before the lease's deadline, unless a fence was confirmed.
var ErrTooEarly = errors.New("handoff: the unresponsive node may still act")

// Kind names an event.
type Kind string

const (
	// Claim reports that the launcher Pod is being prepared. Sent by the
	// controller; repeating it renews the deadline.
	Claim Kind = "Claim"
	// Offer requests that Node run the domain. Sent by the controller.
	Offer Kind = "Offer"
	// Withdraw revokes a claim, or an offer that was not accepted. Sent by the
	// controller.
	Withdraw Kind = "Withdraw"
	// Accept accepts the offer. Sent by the offered node.
	Accept Kind = "Accept"
	// Started reports that the domain runs. Sent by the holder.
	Started Kind = "Started"
	// Prepare requests that Node prepare to receive the domain, under Tag. Sent
	// by the controller.
	Prepare Kind = "Prepare"
	// Ready reports that the target can receive. Sent by the target.
	Ready Kind = "Ready"
	// Begin reports that the holder begins to migrate the domain. Sent by the
	// holder, stored before its hypervisor is called.
	Begin Kind = "Begin"
	// Abort requests that the holder abort a migration that has begun. Sent by the
	// controller. It may arrive too late.
	Abort Kind = "Abort"
	// TakeOver reports that the domain runs on the target. Sent by the target.
	TakeOver Kind = "TakeOver"
	// Finalize reports that the tasks deferred until the migration ended are done.
	// Sent by the holder, which was the target.
	Finalize Kind = "Finalize"
	// Revert reports that the migration failed and the domain still runs on the
	// holder. Sent by the holder.
	Revert Kind = "Revert"
	// Stall reports that the holder neither migrates nor runs the domain any more
	// and cannot determine whether the target runs it: its hypervisor stopped
	// halfway through the switch, or its node went down. Sent by the holder.
	Stall Kind = "Stall"
	// Decline reports that the domain has not arrived at the target. It answers
	// Stall, and resolves the state that a fenced holder leaves. Sent by the target.
	Decline Kind = "Decline"
	// Cancel cancels a migration that has not begun. Sent by the controller.
	Cancel Kind = "Cancel"
	// Stop reports that the domain is being stopped. Sent by the holder or the
	// controller.
	Stop Kind = "Stop"
	// Release reports that the domain has ended. Sent by the holder, or by the
	// controller for a VMI that runs on no node.
	Release Kind = "Release"
	// Suspect reports that the holder is silent. Sent by the controller.
	Suspect Kind = "Suspect"
	// Return reports that the unresponsive holder is back, its domain untouched. Sent by
	// the holder.
	Return Kind = "Return"
	// Fence reports Evidence that the domain does not run on Node, the unresponsive
	// holder or the unresponsive target of an interrupted migration. Sent by the
	// controller.
	Fence Kind = "Fence"
)

// Event is a request to change a lease.
type Event struct {
	// Kind is the change requested.
	Kind Kind
	// Epoch is the epoch of the lease the sender acted on.
	Epoch uint64
	// Node is the sending node, or for Offer, Prepare, Suspect and Fence the node
	// concerned.
	Node string
	// Tag is the migration's UID for Prepare, Cancel and Abort.
	Tag types.UID
	// Within bounds the step that begins with this event. Zero means the default
	// of the state; the wait after Suspect, and after a Stall, is never shorter
	// than FenceAfter.
	Within time.Duration
	// Evidence is required for Fence.
	Evidence *Evidence
	// Message explains the outcome of the commands that the event concludes.
	Message string
}
