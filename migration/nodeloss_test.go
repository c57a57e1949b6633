// SPDX-License-Identifier: Apache-2.0

package migration

import (
	"testing"
	"time"

	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
)

// TestLostNode_EndsMigrationOnlyWithKnownOwner: whatever the controller
// cannot know it waits for, and what has not begun has its deadline.
func TestLostNode_EndsMigrationOnlyWithKnownOwner(t *testing.T) {
	silent := func(w *world) { w.step(handoff.Event{Kind: handoff.Suspect, Node: sourceNode}) }
	late := func(w *world) { w.now = w.now.Add(time.Hour) }
	back := func(w *world) { w.step(handoff.Event{Kind: handoff.Return, Node: sourceNode}) }
	fence := func(w *world) {
		w.step(handoff.Event{Kind: handoff.Fence, Node: sourceNode, Evidence: &handoff.Evidence{Kind: handoff.FenceConfirmed}})
	}
	arrives := func(w *world) {
		w.step(handoff.Event{Kind: handoff.TakeOver, Node: targetNode})
		w.step(handoff.Event{Kind: handoff.Finalize, Node: targetNode})
		w.vmi.Status.MigrationState.Completed = true
	}
	declines := func(w *world) { w.step(handoff.Event{Kind: handoff.Decline, Node: targetNode}) }
	type turn struct {
		do     func(*world)
		phase  v1.VirtualMachineInstanceMigrationPhase
		reason Reason
	}
	for name, tc := range map[string]struct {
		from  v1.VirtualMachineInstanceMigrationPhase
		turns []turn
	}{
		"before it has a target": {v1.MigrationPhaseUnset, []turn{
			{silent, v1.MigrationPending, ReasonWaitingForGuest},
			{back, v1.MigrationScheduling, ReasonWaitingForTargetPod},
		}},
		"with a target that is ready": {v1.MigrationScheduling, []turn{
			{func(w *world) { silent(w); w.podBecomesReady(targetNode) }, v1.MigrationScheduled, ReasonWaitingForGuest},
			{back, v1.MigrationPreparingTarget, ReasonWaitingForTargetNode},
		}},
		"with a target that is ready, for good": {v1.MigrationScheduling, []turn{
			{func(w *world) { silent(w); w.podBecomesReady(targetNode) }, v1.MigrationScheduled, ReasonWaitingForGuest},
			{late, v1.MigrationFailed, ReasonHandOffTimeout},
		}},
		"before it has begun, target silent": {v1.MigrationPreparingTarget, []turn{{late, v1.MigrationFailed, ReasonPrepareTimeout}}},
		"before it has begun, source silent": {v1.MigrationTargetReady, []turn{{late, v1.MigrationFailed, ReasonBeginTimeout}}},
		"in the move, and it comes back": {v1.MigrationRunning, []turn{
			{silent, v1.MigrationRunning, ReasonMoving},
			{back, v1.MigrationRunning, ReasonMoving},
			{arrives, v1.MigrationSucceeded, ""},
		}},
		"in the move, which ends well": {v1.MigrationRunning, []turn{
			{silent, v1.MigrationRunning, ReasonMoving},
			{arrives, v1.MigrationSucceeded, ""},
		}},
		"in the move, fenced, and the guest had arrived": {v1.MigrationRunning, []turn{
			{silent, v1.MigrationRunning, ReasonMoving},
			{func(w *world) { late(w); fence(w) }, v1.MigrationRunning, ReasonAborting},
			{arrives, v1.MigrationSucceeded, ""},
		}},
		"in the move, fenced, and it had not": {v1.MigrationRunning, []turn{
			{silent, v1.MigrationRunning, ReasonMoving},
			{func(w *world) { late(w); fence(w) }, v1.MigrationRunning, ReasonAborting},
			{func(w *world) { declines(w); w.vmi.Status.Phase = v1.Failed }, v1.MigrationFailed, ReasonNodeReported},
		}},
		"in the move, the object says so first": {v1.MigrationRunning, []turn{
			{silent, v1.MigrationRunning, ReasonMoving},
			{func(w *world) { w.vmi.Status.Phase = v1.Failed }, v1.MigrationFailed, ReasonGuestFinal},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.until(tc.from)
			for i, turn := range tc.turns {
				turn.do(w)
				w.passes()
				if w.migration.Status.Phase != turn.phase || w.reason() != turn.reason {
					t.Fatalf("turn %d: phase %q, reason %q; want %q, %q: %+v", i, w.migration.Status.Phase, w.reason(), turn.phase, turn.reason, w.lease())
				}
			}
			if w.migration.IsFinal() != w.released {
				t.Errorf("phase %q, released %v", w.migration.Status.Phase, w.released)
			}
		})
	}
}

// A slot at the target may take long to come. What is left to do then has its own time.
func TestHandOffTimeout_FromSlot(t *testing.T) {
	w := newWorld(t)
	w.config.Limits.Inbound = 0
	w.restart()
	w.until(v1.MigrationScheduling)
	w.podBecomesReady(targetNode)
	w.passes()
	w.now = w.now.Add(time.Hour)
	if w.passes(); w.migration.Status.Phase != v1.MigrationScheduled || w.reason() != ReasonWaitingForSlot {
		t.Fatalf("after an hour: phase %q, reason %q", w.migration.Status.Phase, w.reason())
	}
	// There is a slot, and the VMI's owner is unresponsive.
	w.step(handoff.Event{Kind: handoff.Suspect, Node: sourceNode})
	w.config.Limits.Inbound = 2
	w.admission.SetLimits(w.config.Limits, w.now)
	if w.passes(); w.migration.Status.Phase != v1.MigrationScheduled || w.reason() != ReasonWaitingForGuest {
		t.Fatalf("with the slot: phase %q, reason %q", w.migration.Status.Phase, w.reason())
	}
	w.now = w.now.Add(14 * time.Minute)
	if w.passes(); w.migration.Status.Phase != v1.MigrationScheduled {
		t.Fatalf("14 minutes later: phase %q, reason %q", w.migration.Status.Phase, w.reason())
	}
	w.now = w.now.Add(2 * time.Minute)
	if w.passes(); w.migration.Status.Phase != v1.MigrationFailed || w.reason() != ReasonHandOffTimeout {
		t.Fatalf("16 minutes later: phase %q, reason %q", w.migration.Status.Phase, w.reason())
	}
}
