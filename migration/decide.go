// SPDX-License-Identifier: Apache-2.0

package migration

import (
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
)

// Decide returns what must happen next to the migration of the snapshot. It is pure:
// equal snapshots and times give equal plans, and the snapshot is not changed.
//
// Call it twice in a pass: before acting, and again on the snapshot with the results
// of the actions. The second plan's status is the one to write; its actions belong to
// the next pass.
func Decide(s Snapshot, now time.Time) Plan {
	d := newDecision(s, now)
	switch {
	case s.Pending != "":
		// The snapshot is older than the own writes; every conclusion from it, most of
		// all "there is no such Pod", could be wrong.
		d.plan.Responsible, d.plan.Message = handoff.ByController, "waiting for the cache to observe this controller's write: "+s.Pending
		return d.plan
	case d.leaseErr != nil:
		d.explain(handoff.ByController, ReasonLeaseUnreadable, d.leaseErr.Error())
	case !s.Migration.IsFinal() && s.Migration.DeletionTimestamp == nil && !s.adopted():
		d.act(Action{Verb: Adopt, Why: "the migration is new"})
	default:
		d.walk()
		d.followOptions()
	}
	conclusion{d}.conclude()
	return d.plan
}

// decision is one run of Decide.
type decision struct {
	s   Snapshot
	now time.Time
	// ms is the VMI's migration state if it is this migration's, else nil.
	ms *v1.VirtualMachineInstanceMigrationState
	// lease is the VMI's; leased says that it is stored on the VMI and that the VMI's
	// nodes follow it, so that a migration needs its transition. Otherwise the nodes
	// follow KubeVirt's protocol alone.
	lease    handoff.Lease
	leased   bool
	leaseErr error
	plan     Plan
	// entered says that a phase was entered in this run.
	entered bool
}

func newDecision(s Snapshot, now time.Time) *decision {
	s = s.ofItsVMI()
	d := &decision{s: s, now: now, ms: s.mine(), plan: Plan{Status: *s.Migration.Status.DeepCopy()}}
	if s.VMI != nil {
		d.lease, d.leaseErr = handoff.Of(s.VMI)
		_, stored := s.VMI.Annotations[handoff.Annotation]
		d.leased = stored && !unread(s.VMI, d.lease)
	}
	return d
}

// unread reports whether the lease was offered to a node that does not support leases: a stock
// virt-handler, which has accepted the VMI and migrates it without updating the lease.
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

// step decides within a phase and returns the next phase, or the same one while it waits.
type step func(*decision) v1.VirtualMachineInstanceMigrationPhase

// in makes a method of a role a function of the decision.
func in[R ~struct{ *decision }, T any](f func(R) T) func(*decision) T {
	return func(d *decision) T { return f(R{d}) }
}

// row is a phase in the transition table.
type row struct {
	// responsible has to act while the migration is in the phase.
	responsible handoff.Responsible
	// awaits and message say what is awaited, unless the step explains better.
	awaits  Reason
	message string
	// within bounds the phase; overdue is the reason once the bound has passed. With a
	// nil function the step has its own bound.
	within  func(*decision) time.Duration
	overdue Reason
	// step decides.
	step step
}

// table is the only definition of the order of phases, together with senders and
// receivers, which hold the rows of migrations between clusters.
var table = map[v1.VirtualMachineInstanceMigrationPhase]row{
	v1.MigrationPhaseUnset: {
		responsible: handoff.ByController, step: in(advance.unset),
	},
	v1.MigrationPending: {
		responsible: handoff.ByController, within: in(policyBounds.pending), overdue: reasonPendingTimeout,
		step: in(advance.pending),
	},
	v1.MigrationScheduling: {
		responsible: handoff.ByScheduler, awaits: reasonWaitingForTargetPod, message: "the target Pod is being scheduled and started",
		step: in(advance.scheduling),
	},
	v1.MigrationScheduled: {
		responsible: handoff.ByController, within: in(policyBounds.handOff), overdue: reasonHandOffTimeout,
		step: in(advance.scheduled),
	},
	v1.MigrationPreparingTarget: {
		responsible: handoff.ByTargetNode, awaits: reasonWaitingForTargetNode, message: "the target node is preparing to receive the VMI",
		within: in(policyBounds.prepare), overdue: reasonPrepareTimeout, step: in(advance.preparing),
	},
	v1.MigrationTargetReady: {
		responsible: handoff.BySourceNode, awaits: reasonWaitingForSourceNode, message: "the target is ready, waiting for the source node to begin",
		within: in(policyBounds.begin), overdue: reasonBeginTimeout, step: in(advance.targetReady),
	},
	v1.MigrationRunning: {
		responsible: handoff.BySourceNode, awaits: ReasonMoving, message: "the VMI is being migrated",
		within: in(policyBounds.running), overdue: reasonMoveTimeout, step: in(advance.running),
	},
	v1.MigrationSucceeded: {responsible: handoff.ByNobody, step: in(finish.succeeded)},
	v1.MigrationFailed:    {responsible: handoff.ByNobody, step: in(finish.failed)},
}

// walk follows the table as far as the evidence leads, but never past the entry into
// a final phase: cleaning up would destroy the evidence for the reason of the end, so
// the end is stored first.
func (d *decision) walk() {
	rows := rowsOf(d.s.Migration)
	for range len(rows) + 1 {
		phase := d.plan.Status.Phase
		r, known := rows[phase]
		if !known {
			stop{d}.fail(cause{ReasonUnsupported, fmt.Sprintf("a migration of this kind is never in phase %q", phase)})
			return
		}
		d.plan.Responsible = r.responsible
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

// next evaluates the interrupts, then the phase's own step.
func (d *decision) next(r row) v1.VirtualMachineInstanceMigrationPhase {
	if !d.final() {
		d.due(d.deadline(r), r.overdue)
		d.explain(r.responsible, r.awaits, r.message)
		if c, hit := (interrupt{d}).interrupted(r); hit {
			return stop{d}.decide(c)
		}
	}
	return r.step(d)
}

// due sets when the phase is overdue, and the reason with which the migration then
// fails; empty if it then succeeds. A zero time means never.
func (d *decision) due(at time.Time, overdue Reason) { d.plan.Deadline, d.plan.Overdue = at, overdue }

// deadline returns when the phase of the row is overdue; zero means never. Post-copy
// cannot be reverted, and a VMI that has arrived need not be.
func (d *decision) deadline(r row) time.Time {
	if r.within == nil || (position{d}).standing() == arrived || d.ms != nil && d.ms.Mode == v1.MigrationPostCopy {
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

// enter sets the phase and records the time, once per phase.
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

// stamp returns the time as the API stores it.
func (d *decision) stamp() metav1.Time { return metav1.NewTime(d.now).Rfc3339Copy() }

func (d *decision) act(a Action) { d.plan.Actions = append(d.plan.Actions, a) }

func (d *decision) emit(e Event) { d.plan.Events = append(d.plan.Events, e) }

// explain replaces the explanation of where the migration stands.
func (d *decision) explain(o handoff.Responsible, r Reason, message string) {
	if o != "" {
		d.plan.Responsible = o
	}
	d.plan.Reason, d.plan.Message = r, message
}

// stay records what the phase waits for, and returns the current phase.
func (d *decision) stay(o handoff.Responsible, r Reason, message string) v1.VirtualMachineInstanceMigrationPhase {
	d.explain(o, r, message)
	return d.plan.Status.Phase
}

// overdue reports whether the current phase has passed its deadline.
func (d *decision) overdue() (time.Time, bool) {
	at := d.plan.Deadline
	return at, !at.IsZero() && !d.now.Before(at)
}
