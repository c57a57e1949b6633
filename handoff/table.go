// SPDX-License-Identifier: Apache-2.0

package handoff

import (
	"slices"
	"time"
)

// The default time limits of the steps; see State.Within.
const (
	// claimWithin bounds the preparation of the Pod. An overdue claim is
	// renewed or withdrawn.
	claimWithin = 5 * time.Minute
	// acceptWithin bounds an offer: KubeVirt's heartbeat timeout of an
	// unresponsive node.
	acceptWithin = 5 * time.Minute
	// prepareWithin bounds the preparation of a target: KubeVirt's time for
	// an unschedulable target Pod.
	prepareWithin = 5 * time.Minute
	// beginWithin bounds the wait of a prepared target for the holder.
	beginWithin = 5 * time.Minute
	// DefaultMoveWithin bounds the transfer where the holder sets no limit:
	// KubeVirt's 150 s for each GiB, for a domain of 12 GiB.
	DefaultMoveWithin = 30 * time.Minute
	// finalizeWithin bounds the tasks deferred until a migration ended.
	finalizeWithin = 5 * time.Minute
	// stopWithin bounds a graceful stop: KubeVirt's 30 s of grace, and as
	// much to destroy the domain.
	stopWithin = time.Minute
	// releaseWithin bounds how long a fenced VMI waits for the controller's
	// decision.
	releaseWithin = 5 * time.Minute
)

// stateRule is the component that has to act in a state and its time limit.
type stateRule struct {
	responsible Responsible
	within      time.Duration // zero: no component waits
	least       time.Duration // minimum for any event's limit
}

var states = map[State]stateRule{
	Unclaimed: {responsible: ByController},
	Claimed:   {responsible: ByController, within: claimWithin},
	Offered:   {responsible: ByNode, within: acceptWithin},
	Owned:     {responsible: ByNode},
	Preparing: {responsible: ByTargetNode, within: prepareWithin},
	Prepared:  {responsible: ByNode, within: beginWithin},
	Moving:    {responsible: ByNode, within: DefaultMoveWithin},
	Arrived:   {responsible: ByNode, within: finalizeWithin},
	Releasing: {responsible: ByNode, within: stopWithin},
	Lost:      {responsible: ByController, within: FenceAfter, least: FenceAfter},
	Fenced:    {responsible: ByController, within: releaseWithin},
	Released:  {responsible: ByNobody},
}

// Within returns the default time limit of a state, used when the event that leads to it has none: how long the component
// that has to act has for it. Zero means that there is no limit, as no component waits for it.
func (s State) Within() time.Duration { return states[s].within }

// party is a role in a handoff: who may send an event.
type party string

const (
	fromController party = "controller"
	fromHolder     party = "holder"
	fromTarget     party = "target"
)

// transition is one row of the table that Step reads: the event leads from one
// state to the other.
type transition struct {
	event Kind
	from  []State
	// to is the new state; same keeps it, back is the state in Lease.Was.
	to    State
	cause Cause
	// sender is the party that may send it. For the nodes Event.Node must be that node.
	sender party
	// epoch means that a new epoch begins.
	epoch bool
	// when returns why the event does not fit although the state does, empty if
	// it fits; nil means that it always fits.
	when func(Lease, Event) string
	// change completes a copy of the old lease that already has the new state and
	// epoch.
	change func(*Lease, Event)
}

const (
	same State = "(the same)"
	back State = "(as before)"
)

var transitions = []transition{
	{event: Claim, from: []State{Unclaimed, Claimed}, to: Claimed, cause: causeClaimed, sender: fromController},
	{event: Offer, from: []State{Unclaimed, Claimed, Fenced}, to: Offered, cause: causeOffered, sender: fromController, epoch: true,
		when: offerable, change: func(l *Lease, e Event) { l.Holder = e.Node }},
	{event: Withdraw, from: []State{Claimed, Offered}, to: Unclaimed, cause: causeWithdrawn, sender: fromController, epoch: true,
		change: func(l *Lease, _ Event) { l.Holder = "" }},
	{event: Accept, from: []State{Offered}, to: Owned, cause: causeAccepted, sender: fromHolder,
		change: func(l *Lease, _ Event) { l.issue(CommandStart, l.Holder) }},
	{event: Started, from: []State{Owned}, to: same, cause: causeStarted, sender: fromHolder, when: starting,
		change: func(l *Lease, e Event) { l.conclude(ResultDone, e.Message, CommandStart) }},

	{event: Prepare, from: []State{Owned}, to: Preparing, cause: causeMoveAsked, sender: fromController, epoch: true,
		when: movable, change: prepare},
	{event: Ready, from: []State{Preparing}, to: Prepared, cause: CauseTargetReady, sender: fromTarget},
	{event: Begin, from: []State{Prepared}, to: Moving, cause: causeMoveBegun, sender: fromHolder,
		change: func(l *Lease, _ Event) { l.issue(CommandMigrateOut, l.Holder) }},
	{event: Cancel, from: []State{Preparing, Prepared}, to: Owned, cause: causeCancelled, sender: fromController, epoch: true,
		when: tagged, change: migrationEnds(ResultCancelled)},
	{event: Abort, from: []State{Moving}, to: same, cause: causeAbortAsked, sender: fromController,
		when: abortable, change: func(l *Lease, _ Event) { l.issue(CommandAbort, l.Holder) }},
	{event: Revert, from: []State{Preparing, Prepared, Moving}, to: Owned, cause: causeReverted, sender: fromHolder, epoch: true,
		when: notStalled, change: migrationEnds(ResultReverted)},
	{event: TakeOver, from: []State{Moving, Lost, Fenced}, to: Arrived, cause: causeArrived, sender: fromTarget, epoch: true,
		change: takeOver},
	{event: Finalize, from: []State{Arrived}, to: Owned, cause: causeFinalized, sender: fromHolder,
		change: func(l *Lease, e Event) { l.conclude(ResultDone, e.Message, CommandFinalize) }},
	{event: Stall, from: []State{Moving}, to: same, cause: causeStalled, sender: fromHolder,
		when: notStalled, change: func(l *Lease, _ Event) { l.Stalled = true }},
	{event: Decline, from: []State{Moving}, to: Owned, cause: CauseDeclined, sender: fromTarget, epoch: true,
		when: stalled, change: migrationEnds(ResultReverted)},
	{event: Decline, from: []State{Fenced}, to: same, cause: CauseDeclined, sender: fromTarget, epoch: true,
		change: targetOut},

	{event: Stop, from: []State{Owned, Arrived, Preparing, Prepared}, to: Releasing, cause: causeStopAsked, sender: fromHolder, change: stop},
	{event: Release, from: []State{Owned, Preparing, Prepared, Arrived, Releasing, Lost}, to: Released, cause: causeEnded,
		sender: fromHolder, epoch: true, when: notSwitching, change: release},
	{event: Release, from: []State{Unclaimed, Claimed, Offered, Fenced}, to: Released, cause: causeEnded,
		sender: fromController, epoch: true, when: notSwitching, change: release},

	{event: Suspect, from: []State{Owned, Moving, Arrived, Releasing}, to: Lost, cause: causeSilent, sender: fromController, epoch: true,
		when: suspicious},
	{event: Return, from: []State{Lost}, to: back, cause: causeReturned, sender: fromHolder,
		change: func(l *Lease, _ Event) { l.Was = "" }},
	{event: Fence, from: []State{Lost}, to: Fenced, sender: fromController, epoch: true,
		when: holderMeant, change: holderOut},
	{event: Fence, from: []State{Moving, Fenced}, to: Fenced, sender: fromController, epoch: true,
		when: targetMeant, change: targetOut},
}

func prepare(l *Lease, e Event) {
	l.Target, l.Tag = e.Node, e.Tag
	l.issue(CommandMigrateIn, e.Node)
}

// migrationEnds ends a migration that leaves the domain to its holder.
func migrationEnds(r Result) func(*Lease, Event) {
	return func(l *Lease, e Event) {
		l.conclude(r, e.Message)
		l.Target, l.Tag, l.Stalled = "", "", false
	}
}

func takeOver(l *Lease, e Event) {
	l.conclude(ResultMoved, e.Message)
	l.issue(CommandFinalize, e.Node)
	l.Holder, l.Target, l.Tag, l.Was, l.Stalled = e.Node, "", "", "", false
}

func stop(l *Lease, e Event) {
	l.conclude(ResultCancelled, e.Message)
	l.Target, l.Tag = "", ""
	l.issue(CommandStop, l.Holder)
}

func release(l *Lease, e Event) {
	l.conclude(ResultEnded, e.Message)
	l.Holder, l.Target, l.Tag, l.Was, l.Stalled = "", "", "", "", false
}

// holderOut removes the holder from the lease. Its commands stay open while the target
// may have the domain.
func holderOut(l *Lease, e Event) {
	l.Holder, l.Was, l.Stalled = "", "", false
	if l.Target == "" {
		l.conclude(ResultUnknown, e.Message)
	}
}

// targetOut removes the target from an interrupted migration. The holder, if the lease
// still names one, has a domain that was paused while the target's may have run: it must
// not run again.
func targetOut(l *Lease, e Event) {
	l.conclude(ResultUnknown, e.Message)
	l.Holder, l.Target, l.Tag, l.Was, l.Stalled = "", "", "", "", false
}

func offerable(l Lease, e Event) string {
	switch {
	case e.Node == "":
		return "no node is named"
	case l.Target != "":
		return "the VMI may have arrived at the target"
	}
	return ""
}

func starting(l Lease, _ Event) string {
	if _, open := l.Command(CommandStart); !open {
		return "no start is open"
	}
	return ""
}

func movable(l Lease, e Event) string {
	_, starts := l.Command(CommandStart)
	switch {
	case e.Node == "":
		return "no node is named"
	case e.Node == l.Holder:
		return "the target is the node that runs the VMI"
	case e.Tag == "":
		return "the migration is not named"
	case starts:
		return "the domain has not been reported started"
	}
	return ""
}

func tagged(l Lease, e Event) string {
	if e.Tag != l.Tag {
		return "another migration is under way"
	}
	return ""
}

func abortable(l Lease, e Event) string {
	if _, open := l.Command(CommandAbort); open {
		return "it is being aborted"
	}
	return tagged(l, e)
}

func stalled(l Lease, _ Event) string {
	if !l.Stalled {
		return "the holder has not lost track of the VMI"
	}
	return ""
}

func notStalled(l Lease, _ Event) string {
	if l.Stalled {
		return "the target's word is awaited"
	}
	return ""
}

func notSwitching(l Lease, _ Event) string {
	if l.Switching() {
		return "the VMI may be at the target"
	}
	return ""
}

func suspicious(l Lease, e Event) string {
	switch {
	case e.Node != l.Holder:
		return "the node is not the holder"
	case l.Stalled:
		return "the holder does not run the VMI; the answer of the target is awaited"
	}
	return ""
}

func holderMeant(l Lease, e Event) string {
	if e.Node != l.Holder {
		return "the node is not the unresponsive holder"
	}
	return evident(e)
}

func targetMeant(l Lease, e Event) string {
	switch {
	case e.Node != l.Target || e.Node == "":
		return "the node is not the target"
	case l.State == Moving && !l.Stalled:
		return "the holder still migrates the VMI"
	}
	return evident(e)
}

func evident(e Event) string {
	if e.Evidence == nil || e.Evidence.cause() == "" {
		return "there is no evidence"
	}
	return ""
}

// rowFor returns the row of the table for an event in a state.
func rowFor(k Kind, s State) (transition, bool) {
	i := slices.IndexFunc(transitions, func(t transition) bool { return t.event == k && slices.Contains(t.from, s) })
	if i < 0 {
		return transition{}, false
	}
	return transitions[i], true
}
