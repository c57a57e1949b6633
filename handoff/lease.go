// SPDX-License-Identifier: Apache-2.0

package handoff

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Annotation is the key under which the lease travels on the
// VirtualMachineInstance, as JSON.
const Annotation = "virtloom.dev/handoff"

// State is where a guest's ownership stands.
type State string

const (
	// Unclaimed: no node has been asked to run the guest.
	Unclaimed State = ""
	// Offered: the controller asked Holder to run the guest; Holder has not
	// accepted yet, so the offer can still be withdrawn safely.
	Offered State = "Offered"
	// Owned: Holder accepted. It alone may start and run the guest.
	Owned State = "Owned"
	// Preparing: Owned, and Target was asked to get ready to receive.
	Preparing State = "Preparing"
	// Prepared: Target is ready; Holder may begin to move the guest.
	Prepared State = "Prepared"
	// Moving: Holder's hypervisor is passing the guest to Target's. Which of
	// the two runs it is known to the hypervisors only, until TakeOver, Revert
	// or Decline says so.
	Moving State = "Moving"
	// Released: the guest has ended; nobody may start it again.
	Released State = "Released"
)

// Result tells how a command that was tagged with an epoch ended.
type Result string

const (
	// ResultMoved: the target runs the guest.
	ResultMoved Result = "Moved"
	// ResultReverted: the move failed; the holder still runs the guest.
	ResultReverted Result = "Reverted"
	// ResultCancelled: the move was called off before it began.
	ResultCancelled Result = "Cancelled"
	// ResultEnded: the guest has ended.
	ResultEnded Result = "Ended"
)

// Outcome is the stored result of the last finished command. It is what either
// side reads after a crash to learn whether its command took effect.
type Outcome struct {
	// Epoch is the epoch under which the command ran.
	Epoch uint64 `json:"epoch"`
	// Tag is the command's tag: the UID of the migration for a move.
	Tag types.UID `json:"tag,omitempty"`
	// Result says how it ended.
	Result Result `json:"result"`
	// Message explains the result to a reader; it may be empty.
	Message string `json:"message,omitempty"`
}

// Lease says who owns a guest. Its zero value is an unclaimed guest.
type Lease struct {
	// State is where the ownership stands.
	State State `json:"state,omitempty"`
	// Epoch grows with every change of owner and every attempt to move. Zero
	// is reserved for leases understood from KubeVirt's labels.
	Epoch uint64 `json:"epoch"`
	// Holder is the node that owns the guest, or is asked to (Offered).
	Holder string `json:"holder,omitempty"`
	// Target is the node a move goes to; empty outside of a move.
	Target string `json:"target,omitempty"`
	// Tag names the move: the migration's UID.
	Tag types.UID `json:"tag,omitempty"`
	// Stalled says, while Moving, that the holder's hypervisor has stopped to
	// move the guest and does not run it, and that the holder cannot tell
	// whether the target does. The target's word decides: TakeOver or Decline.
	Stalled bool `json:"stalled,omitempty"`
	// Deadline is when the current step is overdue; nil means never. An
	// overdue step changes nothing by itself: the owner of the step decides.
	Deadline *metav1.Time `json:"deadline,omitempty"`
	// Last is the outcome of the last finished command, nil before any.
	Last *Outcome `json:"last,omitempty"`
}

// MayStart reports whether the node may start the guest's domain: it holds the
// accepted lease and no move is under way.
func (l Lease) MayStart(node string) bool {
	return l.State == Owned && l.Holder == node
}

// MayRun reports whether a running domain of the guest on the node is
// legitimate. The holder's is from acceptance on; the target's only while the
// guest is being moved to it.
func (l Lease) MayRun(node string) bool {
	switch l.State {
	case Owned, Preparing, Prepared:
		return l.Holder == node
	case Moving:
		return l.Holder == node || l.Target == node
	default:
		return false
	}
}

// InMove reports whether a move was asked for and has not ended.
func (l Lease) InMove() bool {
	return l.State == Preparing || l.State == Prepared || l.State == Moving
}

// Overdue reports whether the current step passed its deadline.
func (l Lease) Overdue(now time.Time) bool {
	return l.Deadline != nil && !now.Before(l.Deadline.Time)
}
