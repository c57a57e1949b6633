// SPDX-License-Identifier: Apache-2.0

package handoff

import (
	"encoding/json"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// State is where a guest's ownership stands.
type State string

const (
	// Unclaimed: no owner. No node has been asked to run the guest.
	Unclaimed State = ""
	// Claimed: a controller prepares the guest's Pod.
	Claimed State = "Claimed"
	// Offered: the controller asked Holder to run the guest; Holder has not
	// accepted yet, so the offer can still be withdrawn safely.
	Offered State = "Offered"
	// Owned: Holder accepted. It alone may start and run the guest.
	Owned State = "Owned"
	// Preparing: Holder runs the guest, and Target was asked to get ready to
	// receive it.
	Preparing State = "Preparing"
	// Prepared: Target is ready; Holder may begin to move the guest.
	Prepared State = "Prepared"
	// Moving: Holder's hypervisor is passing the guest to Target's. Which of
	// the two runs it is known to the hypervisors only, until TakeOver, Revert
	// or Decline says so.
	Moving State = "Moving"
	// Arrived: the guest runs on Holder, which received it; what waited for the
	// end of the move is being done.
	Arrived State = "Arrived"
	// Releasing: Holder is bringing the guest to its end.
	Releasing State = "Releasing"
	// Lost: Holder is silent. Its guest may run; nobody else may run it.
	Lost State = "Lost"
	// Fenced: there is evidence that the guest does not run on the node that was
	// silent. It runs nowhere, or has arrived at Target.
	Fenced State = "Fenced"
	// Released: the guest has ended; nobody may start it again.
	Released State = "Released"
)

// Cause says what led to a state.
type Cause string

// The causes, each set by one event or reading.
const (
	CauseNone          Cause = ""
	CauseClaimed       Cause = "PodIsPrepared"
	CauseOffered       Cause = "PodIsReady"
	CauseWithdrawn     Cause = "OfferWithdrawn"
	CauseAccepted      Cause = "NodeAccepted"
	CauseStarted       Cause = "GuestStarted"
	CauseMoveAsked     Cause = "MigrationAsked"
	CauseTargetReady   Cause = "TargetReady"
	CauseMoveBegun     Cause = "MigrationBegun"
	CauseAbortAsked    Cause = "AbortAsked"
	CauseStalled       Cause = "SwitchBrokeOff"
	CauseArrived       Cause = "GuestArrived"
	CauseFinalized     Cause = "MigrationFinalized"
	CauseReverted      Cause = "MigrationFailed"
	CauseDeclined      Cause = "TargetDeclined"
	CauseCancelled     Cause = "MigrationCancelled"
	CauseStopAsked     Cause = "StopAsked"
	CauseEnded         Cause = "GuestEnded"
	CauseSilent        Cause = "NodeSilent"
	CauseReturned      Cause = "NodeReturned"
	CauseNodeGone      Cause = "NodeGone"
	CausePodGone       Cause = "PodGone"
	CauseFenceReported Cause = "FenceConfirmed"
	// CauseStock: understood from what stock KubeVirt wrote.
	CauseStock Cause = "WrittenByKubeVirt"
)

// Result tells how a command ended.
type Result string

const (
	// ResultDone: it was carried out.
	ResultDone Result = "Done"
	// ResultMoved: the target runs the guest.
	ResultMoved Result = "Moved"
	// ResultReverted: the move failed; the holder still runs the guest.
	ResultReverted Result = "Reverted"
	// ResultCancelled: it was called off before it began.
	ResultCancelled Result = "Cancelled"
	// ResultEnded: the guest has ended.
	ResultEnded Result = "Ended"
	// ResultUnknown: the node that had it is fenced; whether it did it is of no
	// importance any more.
	ResultUnknown Result = "Unknown"
)

// Outcome is the stored result of a finished command. It is what either side
// reads after a crash to learn whether its command took effect.
type Outcome struct {
	// ID is that of the command.
	ID string `json:"id"`
	// Epoch is the epoch under which the command was issued.
	Epoch uint64 `json:"epoch"`
	// Tag is the UID of the migration for the commands of a move.
	Tag types.UID `json:"tag,omitempty"`
	// Result says how it ended.
	Result Result `json:"result"`
	// Message explains the result to a reader; it may be empty and is at most
	// 256 bytes long.
	Message string `json:"message,omitempty"`
}

// maxOutcomes is how many outcomes a lease keeps: those of the last four moves.
const maxOutcomes = 8

// maxMessage bounds, in bytes, what an outcome may explain.
const maxMessage = 256

// Lease says who owns a guest. Its zero value is an unclaimed guest. A Lease is
// changed by Step only; treat its slices as read-only.
type Lease struct {
	// State is where the ownership stands.
	State State
	// Epoch grows with every change of owner and every attempt to move. Zero
	// is reserved for leases understood from KubeVirt's labels.
	Epoch uint64
	// Holder is the node that owns the guest, or is asked to (Offered), or that
	// went silent with it (Lost).
	Holder string
	// Target is the node a move goes to; empty outside of a move.
	Target string
	// Tag names the move: the migration's UID.
	Tag types.UID
	// Was is the state to return to from Lost; empty otherwise.
	Was State
	// Stalled says, while Moving, that the holder's hypervisor has stopped to
	// move the guest and does not run it, and that the holder cannot tell
	// whether the target does. The target's word decides: TakeOver or Decline.
	Stalled bool
	// Cause says what led to State.
	Cause Cause
	// Deadline is when the current step is overdue, in whole seconds; nil means
	// that nobody waits, or, while the holder just runs the guest, that the
	// holder's own signs of life are the measure. An overdue step changes nothing
	// by itself: whose turn it is ([Lease.Turn]) decides.
	Deadline *metav1.Time
	// Open are the commands that were issued and have no outcome yet, oldest
	// first.
	Open []Command
	// Outcomes are the results of the last finished commands, oldest first.
	Outcomes []Outcome

	// unknown holds fields of the annotation that this version does not know.
	unknown map[string]json.RawMessage
}

// MayStart reports whether the node may start the guest's domain: it accepted
// the guest, has not reported it started, and no move is under way.
func (l Lease) MayStart(node string) bool {
	c, open := l.Command(CommandStart)
	return open && l.State == Owned && l.Holder == node && c.Node == node
}

// MayRun reports whether a running domain of the guest on the node is
// legitimate. The holder's is from acceptance on, also while it is silent; the
// target's only while the guest is being moved to it.
func (l Lease) MayRun(node string) bool {
	switch {
	case node == "":
		return false
	case l.Switching() && l.Target == node:
		return true
	}
	switch l.State {
	case Owned, Preparing, Prepared, Moving, Arrived, Releasing, Lost:
		return l.Holder == node
	default:
		return false
	}
}

// Switching reports whether a move has begun whose end is not stored: the guest
// may be at the holder or at the target.
func (l Lease) Switching() bool {
	return l.Target != "" && (l.State == Moving || l.State == Lost || l.State == Fenced)
}

// InMove reports whether a move was asked for and has not ended, both of its
// nodes taking part.
func (l Lease) InMove() bool {
	return l.State == Preparing || l.State == Prepared || l.State == Moving
}

// Holds reports whether the node owns the guest: it accepted it or received it,
// and has neither released nor lost it.
func (l Lease) Holds(node string) bool {
	return node != "" && l.Holder == node && l.State != Offered && l.State != Released && l.State != Fenced
}

// Overdue reports whether the current step passed its deadline. A step without one never
// does: that nothing says when is no sign that it is late, and what is overdue may be
// fenced.
func (l Lease) Overdue(now time.Time) bool {
	return !l.Deadline.IsZero() && !now.Before(l.Deadline.Time)
}

// Party is one of those who take part in a hand-over.
type Party string

// The parties. Nobody has the turn once the guest is released.
const (
	Nobody     Party = "nobody"
	Controller Party = "controller"
	HolderNode Party = "holder"
	TargetNode Party = "target"
)

// Turn tells who must take the next step, also when it is overdue.
func (l Lease) Turn() Party {
	switch {
	case l.State == Moving && l.Stalled:
		return TargetNode
	case l.State == Fenced && l.Target != "":
		return TargetNode
	}
	return states[l.State].turn
}

// Outcome returns the stored result of the command, if it is among the last.
func (l Lease) Outcome(id string) (Outcome, bool) {
	return findOutcome(l.Outcomes, func(o Outcome) bool { return o.ID == id })
}

// MoveOutcome returns how the last attempt at the move of this tag ended, if that
// is among the last outcomes.
func (l Lease) MoveOutcome(tag types.UID) (Outcome, bool) {
	return findOutcome(l.Outcomes, func(o Outcome) bool {
		return o.Tag == tag && tag != "" && o.ID == CommandMigrateIn.id(o.Epoch)
	})
}

func findOutcome(all []Outcome, match func(Outcome) bool) (Outcome, bool) {
	for _, o := range slices.Backward(all) {
		if match(o) {
			return o, true
		}
	}
	return Outcome{}, false
}

// Equal reports whether two leases say the same, fields unknown to this version
// included.
func (l Lease) Equal(o Lease) bool {
	same := l.State == o.State && l.Epoch == o.Epoch && l.Holder == o.Holder && l.Target == o.Target && l.Tag == o.Tag &&
		l.Was == o.Was && l.Stalled == o.Stalled && l.Cause == o.Cause && l.Deadline.Equal(o.Deadline)
	return same && slices.Equal(l.Open, o.Open) && slices.Equal(l.Outcomes, o.Outcomes) && equalUnknown(l.unknown, o.unknown)
}
