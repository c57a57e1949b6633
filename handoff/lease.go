// SPDX-License-Identifier: Apache-2.0

package handoff

import (
	"encoding/json"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// State is the state of a VMI's ownership.
type State string

const (
	// Unclaimed: no owner. No node has been requested to run the domain.
	Unclaimed State = ""
	// Claimed: a controller prepares the launcher Pod.
	Claimed State = "Claimed"
	// Offered: the controller requested that Holder run the domain; Holder has
	// not accepted yet, so the offer can still be withdrawn safely.
	Offered State = "Offered"
	// Owned: Holder accepted. It alone may start and run the domain.
	Owned State = "Owned"
	// Preparing: Holder runs the domain, and Target was requested to prepare to
	// receive it.
	Preparing State = "Preparing"
	// Prepared: Target is ready; Holder may begin to migrate the domain.
	Prepared State = "Prepared"
	// Moving: Holder's hypervisor is transferring the domain to Target's. Which of
	// the two runs it is known to the hypervisors only, until TakeOver, Revert
	// or Decline reports it.
	Moving State = "Moving"
	// Arrived: the domain runs on Holder, which received it; the tasks deferred
	// until the migration ended are being carried out.
	Arrived State = "Arrived"
	// Releasing: Holder is stopping the domain.
	Releasing State = "Releasing"
	// Lost: Holder is silent. Its domain may run; no other node may run it.
	Lost State = "Lost"
	// Fenced: there is evidence that the domain does not run on the unresponsive node.
	// It runs nowhere, or has arrived at Target.
	Fenced State = "Fenced"
	// Released: the domain has ended; no node may start it again.
	Released State = "Released"
)

// Cause is the event or reading that led to a state.
type Cause string

// The causes by which readers decide; all others are for people.
const (
	// CauseTargetReady: the target of a migration is prepared.
	CauseTargetReady Cause = "TargetReady"
	// CauseDeclined: the domain has not arrived at the target of a migration.
	CauseDeclined Cause = "TargetDeclined"
	// CauseStock: derived from the fields that stock KubeVirt wrote.
	CauseStock Cause = "WrittenByKubeVirt"
)

// The other causes, each set by one event or reading.
const (
	causeClaimed       Cause = "PodIsPrepared"
	causeOffered       Cause = "PodIsReady"
	causeWithdrawn     Cause = "OfferWithdrawn"
	causeAccepted      Cause = "NodeAccepted"
	causeStarted       Cause = "GuestStarted"
	causeMoveAsked     Cause = "MigrationAsked"
	causeMoveBegun     Cause = "MigrationBegun"
	causeAbortAsked    Cause = "AbortAsked"
	causeStalled       Cause = "SwitchBrokeOff"
	causeArrived       Cause = "GuestArrived"
	causeFinalized     Cause = "MigrationFinalized"
	causeReverted      Cause = "MigrationFailed"
	causeCancelled     Cause = "MigrationCancelled"
	causeStopAsked     Cause = "StopAsked"
	causeEnded         Cause = "GuestEnded"
	causeSilent        Cause = "NodeSilent"
	causeReturned      Cause = "NodeReturned"
	causeNodeGone      Cause = "NodeGone"
	causePodGone       Cause = "PodGone"
	causeFenceReported Cause = "FenceConfirmed"
)

// Result is the result of a command.
type Result string

const (
	// ResultDone: the command was carried out.
	ResultDone Result = "Done"
	// ResultMoved: the target runs the domain.
	ResultMoved Result = "Moved"
	// ResultReverted: the migration failed; the holder still runs the domain.
	ResultReverted Result = "Reverted"
	// ResultCancelled: the command was canceled before it began.
	ResultCancelled Result = "Cancelled"
	// ResultEnded: the domain has ended.
	ResultEnded Result = "Ended"
	// ResultUnknown: the command's node is fenced; whether it was carried out no
	// longer matters.
	ResultUnknown Result = "Unknown"
)

// Outcome is the stored result of a finished command. Either side reads it after a
// crash to determine whether its command took effect.
type Outcome struct {
	// ID is the ID of the command.
	ID string `json:"id"`
	// Epoch is the epoch under which the command was issued.
	Epoch uint64 `json:"epoch"`
	// Tag is the UID of the migration, for the commands of a migration.
	Tag types.UID `json:"tag,omitempty"`
	// Result is how the command ended.
	Result Result `json:"result"`
	// Message explains the result to a reader; it may be empty and is at most
	// 256 bytes long.
	Message string `json:"message,omitempty"`
}

// maxOutcomes is how many outcomes a lease keeps: those of the last four migrations.
const maxOutcomes = 8

// maxMessage is the maximum length of an outcome's message, in bytes.
const maxMessage = 256

// Lease is the ownership of a VMI. Its zero value is an unclaimed VMI. A Lease is
// changed by Step only; treat its slices as read-only.
type Lease struct {
	// State is the state of the ownership.
	State State
	// Epoch grows with every change of owner and every migration attempt. Zero
	// is reserved for leases derived from KubeVirt's labels.
	Epoch uint64
	// Holder is the node that owns the VMI, or is requested to (Offered), or that
	// went silent with it (Lost).
	Holder string
	// Target is the target node of a migration; empty outside of one.
	Target string
	// Tag is the UID of the migration.
	Tag types.UID
	// Was is the state to return to from Lost; empty otherwise.
	Was State
	// Stalled means, while Moving, that the holder's hypervisor has stopped
	// migrating the domain and does not run it, and that the holder cannot
	// determine whether the target does. The target decides: TakeOver or Decline.
	Stalled bool
	// Cause is the event or reading that led to State.
	Cause Cause
	// Deadline is when the current step is overdue, in whole seconds; nil means
	// that no party waits, or, while the holder just runs the domain, that the
	// holder's own heartbeat is the measure. An overdue step changes nothing
	// by itself: the responsible component ([Lease.Responsible]) decides.
	Deadline *metav1.Time
	// Open are the commands that were issued and have no outcome yet, oldest
	// first.
	Open []Command
	// Outcomes are the results of the last finished commands, oldest first.
	Outcomes []Outcome

	// unknown holds fields of the annotation that this version does not know.
	unknown map[string]json.RawMessage
}

// MayStart reports whether the node may start the domain: the node accepted the VMI,
// has not reported the start, and no migration is in progress.
func (l Lease) MayStart(node string) bool {
	c, open := l.Command(CommandStart)
	return open && l.State == Owned && l.Holder == node && c.Node == node
}

// MayRun reports whether a running domain of the VMI on the node is legitimate. The
// holder's is from acceptance on, also while it is silent; the target's only while
// the domain is being migrated to it.
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

// Switching reports whether a migration has begun whose end is not stored: the domain
// may be at the holder or at the target.
func (l Lease) Switching() bool {
	return l.Target != "" && (l.State == Moving || l.State == Lost || l.State == Fenced)
}

// InMove reports whether a migration was requested and has not ended, with both of its
// nodes participating.
func (l Lease) InMove() bool {
	return l.State == Preparing || l.State == Prepared || l.State == Moving
}

// Holds reports whether the node owns the VMI: it accepted or received the domain,
// and has not released it or been fenced.
func (l Lease) Holds(node string) bool {
	return node != "" && l.Holder == node && l.State != Offered && l.State != Released && l.State != Fenced
}

// Overdue reports whether the current step passed its deadline. A step without one never
// does: a missing deadline is no sign of lateness, and an overdue step permits fencing.
func (l Lease) Overdue(now time.Time) bool {
	return !l.Deadline.IsZero() && !now.Before(l.Deadline.Time)
}

// Responsible returns the component that has to take the next step, also when the step is overdue. [ByNode] is the holder.
func (l Lease) Responsible() Responsible {
	switch {
	case l.State == Moving && l.Stalled:
		return ByTargetNode
	case l.State == Fenced && l.Target != "":
		return ByTargetNode
	}
	return states[l.State].responsible
}

// Outcome returns the stored result of the command, if it is among the outcomes kept.
func (l Lease) Outcome(id string) (Outcome, bool) {
	return findOutcome(l.Outcomes, func(o Outcome) bool { return o.ID == id })
}

// MoveOutcome returns the result of the last attempt at the migration of this tag, if
// it is among the outcomes kept.
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

// Equal reports whether two leases are equal, including fields unknown to this version.
func (l Lease) Equal(o Lease) bool {
	same := l.State == o.State && l.Epoch == o.Epoch && l.Holder == o.Holder && l.Target == o.Target && l.Tag == o.Tag &&
		l.Was == o.Was && l.Stalled == o.Stalled && l.Cause == o.Cause && l.Deadline.Equal(o.Deadline)
	return same && slices.Equal(l.Open, o.Open) && slices.Equal(l.Outcomes, o.Outcomes) && equalUnknown(l.unknown, o.unknown)
}
