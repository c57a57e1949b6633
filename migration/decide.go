// SPDX-License-Identifier: Apache-2.0

package migration

import (
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
)

// Decide says what must happen next to the migration of the snapshot. It is
// pure: equal snapshots and times give equal plans, and nothing of the snapshot
// is changed.
//
// It is to be called twice in a pass: before acting, and again on the snapshot
// with the results of the actions in it. The status of the second plan is the
// one to write; its actions belong to the next pass.
func Decide(s Snapshot, now time.Time) Plan {
	s.Now = now
	d := newDecision(s, now)
	switch {
	case s.Unsettled != "":
		// The picture is older than what was done; every conclusion from it,
		// and most of all "there is no such Pod", could be wrong.
		d.plan.Owner, d.plan.Message = OwnerController, "the cache does not show yet: "+s.Unsettled
		return d.plan
	case d.leaseErr != nil:
		d.explain(OwnerController, ReasonLeaseUnreadable, d.leaseErr.Error())
	case !s.Migration.IsFinal() && s.Migration.DeletionTimestamp == nil && !s.adopted():
		d.act(Action{Kind: Adopt, Why: "the migration is new"})
	default:
		d.walk()
		d.followOptions()
	}
	d.conclude()
	return d.plan
}

// decision is one run of Decide.
type decision struct {
	s   Snapshot
	now time.Time
	// ms is the guest's migration state if it is this migration's, else nil.
	ms *v1.VirtualMachineInstanceMigrationState
	// lease is the guest's; leased says that it travels on the guest and that its
	// nodes take part in it, so that moving needs a step of it. Without, the nodes
	// speak KubeVirt's protocol alone.
	lease    handoff.Lease
	leased   bool
	leaseErr error
	plan     Plan
	// entered says that a phase was entered in this run.
	entered bool
}

func newDecision(s Snapshot, now time.Time) *decision {
	s = s.ofItsGuest()
	d := &decision{s: s, now: now, ms: s.mine(), plan: Plan{Status: *s.Migration.Status.DeepCopy()}}
	if s.VMI != nil {
		d.lease, d.leaseErr = handoff.Of(s.VMI)
		_, stored := s.VMI.Annotations[handoff.Annotation]
		d.leased = stored && !unread(s.VMI, d.lease)
	}
	return d
}

// unread tells whether the guest was offered by a lease to a node that knows none: a stock
// virt-handler, which has taken the guest and moves it without a word in the lease.
func unread(vmi *v1.VirtualMachineInstance, lease handoff.Lease) bool {
	switch {
	case lease.State == handoff.Offered:
		return vmi.IsFinal()
	case lease.State != handoff.Owned || lease.Cause != handoff.CauseStock:
		return false
	}
	var stored handoff.Lease
	return stored.UnmarshalJSON([]byte(vmi.Annotations[handoff.Annotation])) == nil && stored.State == handoff.Offered
}

// step decides within a phase and returns the phase it leads to, which is the
// same when something is awaited.
type step func(*decision) v1.VirtualMachineInstanceMigrationPhase

// row is a phase in the transition table.
type row struct {
	// owner has to act while the migration stands in the phase.
	owner Owner
	// awaits and message tell what is awaited, unless the step tells better.
	awaits  Reason
	message string
	// within bounds the phase and overdue is the reason once it has passed. A
	// nil function means that step knows the bound.
	within  func(*decision) time.Duration
	overdue Reason
	// step decides.
	step step
}

// table is the one place where phases follow each other, together with senders and
// receivers, which have the rows of migrations between clusters.
var table = map[v1.VirtualMachineInstanceMigrationPhase]row{
	v1.MigrationPhaseUnset: {
		owner: OwnerController, step: (*decision).unset,
	},
	v1.MigrationPending: {
		owner: OwnerController, within: (*decision).pendingBound, overdue: ReasonPendingTimeout,
		step: (*decision).pending,
	},
	v1.MigrationScheduling: {
		owner: OwnerScheduler, awaits: ReasonWaitingForTargetPod, message: "the target Pod is being scheduled and started",
		step: (*decision).scheduling,
	},
	v1.MigrationScheduled: {
		owner: OwnerController, within: (*decision).handOffBound, overdue: ReasonHandOffTimeout,
		step: (*decision).scheduled,
	},
	v1.MigrationPreparingTarget: {
		owner: OwnerTarget, awaits: ReasonWaitingForTargetNode, message: "the target node gets ready to receive the guest",
		within: (*decision).prepareBound, overdue: ReasonPrepareTimeout, step: (*decision).preparing,
	},
	v1.MigrationTargetReady: {
		owner: OwnerSource, awaits: ReasonWaitingForSourceNode, message: "the target is ready, the source node is to begin",
		within: (*decision).beginBound, overdue: ReasonBeginTimeout, step: (*decision).targetReady,
	},
	v1.MigrationRunning: {
		owner: OwnerSource, awaits: ReasonMoving, message: "the guest is being moved",
		within: (*decision).runningBound, overdue: ReasonMoveTimeout, step: (*decision).running,
	},
	v1.MigrationSucceeded: {owner: OwnerNobody, step: (*decision).succeeded},
	v1.MigrationFailed:    {owner: OwnerNobody, step: (*decision).failed},
}

// walk follows the table as far as the evidence leads, but never past the
// entry into a final phase: what is tidied up then would be evidence against the
// reason of the end, so the end is stored first.
func (d *decision) walk() {
	rows := rowsOf(d.s.Migration)
	for range len(rows) + 1 {
		phase := d.plan.Status.Phase
		r, known := rows[phase]
		if !known {
			d.fail(cause{ReasonUnsupported, fmt.Sprintf("a migration of this kind is never in phase %q", phase)})
			return
		}
		d.plan.Owner = r.owner
		next := d.next(r)
		if next == phase {
			return
		}
		if !d.final() {
			d.enter(next)
		}
		if d.final() {
			return
		}
	}
}

// next lets the interrupts have their say, then the phase's own step.
func (d *decision) next(r row) v1.VirtualMachineInstanceMigrationPhase {
	if !d.final() {
		d.due(d.deadline(r), r.overdue)
		d.explain(r.owner, r.awaits, r.message)
		if c, hit := d.interrupted(r); hit {
			return d.stop(c)
		}
	}
	return r.step(d)
}

// due sets when the phase is overdue, and the reason with which the migration then
// ends; none if it then succeeds all the same. A zero time means never.
func (d *decision) due(at time.Time, overdue Reason) { d.plan.Deadline, d.plan.overdue = at, overdue }

// deadline returns when the phase of the row is overdue; zero means never. A guest in
// post-copy cannot come back, and one that has arrived need not.
func (d *decision) deadline(r row) time.Time {
	if r.within == nil || d.standing() == arrived || d.ms != nil && d.ms.Mode == v1.MigrationPostCopy {
		return time.Time{}
	}
	bound := r.within(d)
	if bound <= 0 {
		return time.Time{}
	}
	return phaseSince(d.s.Migration, &d.plan.Status).Add(bound)
}

func (d *decision) final() bool {
	return d.plan.Status.Phase == v1.MigrationSucceeded || d.plan.Status.Phase == v1.MigrationFailed
}

// enter puts the migration into the phase and notes when, once per phase.
func (d *decision) enter(phase v1.VirtualMachineInstanceMigrationPhase) {
	d.plan.Status.Phase = phase
	d.entered = true
	d.explain("", "", "")
	for _, t := range d.plan.Status.PhaseTransitionTimestamps {
		if t.Phase == phase {
			return
		}
	}
	at := d.stamp()
	if first, before := d.s.Entered[phase]; before && first.Before(&at) {
		at = first
	}
	d.plan.Status.PhaseTransitionTimestamps = append(d.plan.Status.PhaseTransitionTimestamps,
		v1.VirtualMachineInstanceMigrationPhaseTransitionTimestamp{Phase: phase, PhaseTransitionTimestamp: at})
}

// stamp is the time as the API stores it.
func (d *decision) stamp() metav1.Time { return metav1.NewTime(d.now).Rfc3339Copy() }

func (d *decision) act(a Action) { d.plan.Actions = append(d.plan.Actions, a) }

func (d *decision) tell(e Event) { d.plan.Events = append(d.plan.Events, e) }

// explain replaces the explanation of where the migration stands.
func (d *decision) explain(o Owner, r Reason, message string) {
	if o != "" {
		d.plan.Owner = o
	}
	d.plan.Reason, d.plan.Message = r, message
}

// stay explains what the current phase waits for, and remains in it.
func (d *decision) stay(o Owner, r Reason, message string) v1.VirtualMachineInstanceMigrationPhase {
	d.explain(o, r, message)
	return d.plan.Status.Phase
}

// conclude writes the explanation into the conditions and what the guest's
// migration state tells into the status.
func (d *decision) conclude() {
	st := &d.plan.Status
	// What is to be done comes first: who carries it out decides again afterwards. A Pod or claim that arrives after
	// the finalizer is gone would stay for ever.
	d.plan.Release = d.plan.Release && len(d.plan.Actions) == 0 && d.s.Late == ""
	if d.s.Migration.DeletionTimestamp != nil && st.Phase != v1.MigrationSucceeded {
		setCondition(st, isTrue(v1.VirtualMachineInstanceMigrationAbortRequested, "", "the migration was deleted"), d.stamp())
	}
	d.mirror()
	d.unblocked()
	d.concludeApart()
	if d.final() {
		d.due(time.Time{}, "")
		dropCondition(st, ConditionWaiting)
		if d.ms != nil {
			st.MigrationState = d.ms.DeepCopy()
		}
		return
	}
	d.waits()
	if st.Phase == v1.MigrationPending || st.Phase == v1.MigrationScheduling && fresh(d.s.Migration) {
		d.noteSource()
	}
}

// waits writes what the migration waits for, and until when, into its condition.
func (d *decision) waits() {
	st := &d.plan.Status
	if d.plan.Reason == "" {
		return
	}
	text := d.plan.Message
	if !d.plan.Deadline.IsZero() && st.Phase != v1.MigrationPending {
		text += "; " + string(d.plan.Owner) + " has until " + d.plan.Deadline.UTC().Format(time.RFC3339)
	}
	setCondition(st, isTrue(ConditionWaiting, d.plan.Reason, text), d.stamp())
}

// noteSource writes where the guest comes from into the status.
func (d *decision) noteSource() {
	st := &d.plan.Status
	if d.s.SourcePod == nil {
		return
	}
	if st.MigrationState == nil {
		st.MigrationState = &v1.VirtualMachineInstanceMigrationState{}
	}
	st.MigrationState.SourcePod = d.s.SourcePod.Name
	st.MigrationState.SourcePersistentStatePVCName, st.MigrationState.TargetPersistentStatePVCName = d.s.StateClaims()
}

func (d *decision) synchronizeBound() time.Duration { return d.s.Config.Timeouts.Synchronize }
func (d *decision) pendingBound() time.Duration     { return d.s.Config.Timeouts.Pending }
func (d *decision) prepareBound() time.Duration     { return d.s.Config.Timeouts.Prepare }
func (d *decision) beginBound() time.Duration       { return d.s.Config.Timeouts.Begin }

// handOffBound lets a slot at the target be waited for as long as one to begin with. What
// comes after that has its time from when the slot was there. Another cluster does not wait.
func (d *decision) handOffBound() time.Duration {
	t, told := d.s.Config.Timeouts, Condition(d.s.Migration.Status, ConditionWaiting)
	if told == nil || d.s.Migration.Status.Phase != v1.MigrationScheduled || t.HandOff <= 0 || betweenClusters(d.s.Migration) {
		return t.HandOff
	}
	if told.Reason == string(ReasonWaitingForSlot) || d.s.Slot.Asked && !d.s.Slot.Inbound {
		return t.Pending
	}
	bound := t.HandOff + max(told.LastTransitionTime.Sub(phaseSince(d.s.Migration, &d.plan.Status)), 0)
	if t.Pending > 0 {
		bound = min(bound, t.Pending)
	}
	return bound
}

// runningBound is the configured bound, or a budget from the options that were
// resolved at hand-off.
func (d *decision) runningBound() time.Duration {
	if t := d.s.Config.Timeouts.Running; t != 0 {
		return t
	}
	if d.ms == nil {
		return 0
	}
	return Resolution{Options: d.ms.VMIMConfigurationOptions}.Budget(d.s.VMI)
}
