// SPDX-License-Identifier: Apache-2.0

package handoff

import (
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// ErrFenced means that the sender acted on an epoch that is no longer current. It
// must stop acting on the guest and read the lease again.
var ErrFenced = errors.New("handoff: stale epoch")

// ErrRefused means that the event does not fit the lease's state, or that its
// sender is not the one who may send it.
var ErrRefused = errors.New("handoff: event refused")

// ErrTooEarly means that a silent node may still act: its guest must not be
// declared gone before the lease's deadline, unless a fence was confirmed.
var ErrTooEarly = errors.New("handoff: the silent node may still act")

// Kind names an event.
type Kind string

const (
	// Claim says that the guest's Pod is being prepared. Sent by the controller;
	// sent again it renews the deadline.
	Claim Kind = "Claim"
	// Offer asks Node to run the guest. Sent by the controller.
	Offer Kind = "Offer"
	// Withdraw takes back a claim, or an offer nobody accepted. Sent by the
	// controller.
	Withdraw Kind = "Withdraw"
	// Accept takes the offer. Sent by the offered node.
	Accept Kind = "Accept"
	// Started says that the guest's domain runs. Sent by the holder.
	Started Kind = "Started"
	// Prepare asks Node to get ready to receive the guest, under Tag. Sent by
	// the controller.
	Prepare Kind = "Prepare"
	// Ready says the target can receive. Sent by the target.
	Ready Kind = "Ready"
	// Begin says the holder starts to move the guest. Sent by the holder,
	// stored before its hypervisor is told.
	Begin Kind = "Begin"
	// Abort asks the holder to call off a move that has begun. Sent by the
	// controller. It may come too late.
	Abort Kind = "Abort"
	// TakeOver says the guest runs on the target. Sent by the target.
	TakeOver Kind = "TakeOver"
	// Finalize says that what waited for the end of the move is done. Sent by the
	// holder, which was the target.
	Finalize Kind = "Finalize"
	// Revert says the move failed and the guest still runs on the holder. Sent
	// by the holder.
	Revert Kind = "Revert"
	// Stall says that the holder neither moves nor runs the guest any more and
	// cannot tell whether the target runs it: its hypervisor stopped half-way
	// through the switch, or its node went down. Sent by the holder.
	Stall Kind = "Stall"
	// Decline says that the guest has not come to the target. It answers Stall, and
	// the question that a fenced holder leaves. Sent by the target.
	Decline Kind = "Decline"
	// Cancel calls off a move that has not begun. Sent by the controller.
	Cancel Kind = "Cancel"
	// Stop says that the guest is being brought to its end. Sent by the holder
	// or the controller.
	Stop Kind = "Stop"
	// Release says that the guest has ended. Sent by the holder, or by the
	// controller for a guest that runs on no node.
	Release Kind = "Release"
	// Suspect says that the holder is silent. Sent by the controller.
	Suspect Kind = "Suspect"
	// Return says that the silent holder is back, its guest untouched. Sent by the
	// holder.
	Return Kind = "Return"
	// Fence says that there is Evidence that the guest does not run on Node,
	// the silent holder or the silent target of a broken move. Sent by the
	// controller.
	Fence Kind = "Fence"
)

// Event is a wish to change a lease.
type Event struct {
	// Kind says what is asked.
	Kind Kind
	// Epoch is the epoch of the lease the sender acted on.
	Epoch uint64
	// Node is the sending node, or for Offer, Prepare, Suspect and Fence the node
	// meant.
	Node string
	// Tag is the migration's UID for Prepare, Cancel and Abort.
	Tag types.UID
	// Within bounds the step that begins with this event. Zero means the default
	// of the state; the wait after Suspect, and after a Stall, is never shorter
	// than FenceAfter.
	Within time.Duration
	// Evidence is for Fence.
	Evidence *Evidence
	// Message explains the outcome of what the event ends.
	Message string
}
