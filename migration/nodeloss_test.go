// SPDX-License-Identifier: Apache-2.0

package migration_test

import (
	"testing"
	"time"

	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/migration"
)

// TestLostNode_EndsMigrationOnlyWithKnownOwner: whatever the controller
// cannot know it waits for, and what has not begun has its deadline.
func TestLostNode_EndsMigrationOnlyWithKnownOwner(t *testing.T) {
	silent := func(w *world) { w.Step(handoff.Event{Kind: handoff.Suspect, Node: sourceNode}) }
	late := func(w *world) { w.Now = w.Now.Add(time.Hour) }
	back := func(w *world) { w.Step(handoff.Event{Kind: handoff.Return, Node: sourceNode}) }
	fence := func(w *world) {
		w.Step(handoff.Event{Kind: handoff.Fence, Node: sourceNode, Evidence: &handoff.Evidence{Kind: handoff.FenceConfirmed}})
	}
	arrives := func(w *world) {
		w.Step(handoff.Event{Kind: handoff.TakeOver, Node: targetNode})
		w.Step(handoff.Event{Kind: handoff.Finalize, Node: targetNode})
		w.VMI.Status.MigrationState.Completed = true
	}
	declines := func(w *world) { w.Step(handoff.Event{Kind: handoff.Decline, Node: targetNode}) }
	type turn struct {
		do     func(*world)
		phase  v1.VirtualMachineInstanceMigrationPhase
		reason migration.Reason
	}
	for name, tc := range map[string]struct {
		from  v1.VirtualMachineInstanceMigrationPhase
		turns []turn
	}{
		"before it has a target": {v1.MigrationPhaseUnset, []turn{
			{silent, v1.MigrationPending, migration.ReasonWaitingForGuest},
			{back, v1.MigrationScheduling, "WaitingForTargetPod"},
		}},
		"with a target that is ready": {v1.MigrationScheduling, []turn{
			{func(w *world) { silent(w); w.PodBecomesReady(targetNode) }, v1.MigrationScheduled, migration.ReasonWaitingForGuest},
			{back, v1.MigrationPreparingTarget, "WaitingForTargetNode"},
		}},
		"with a target that is ready, for good": {v1.MigrationScheduling, []turn{
			{func(w *world) { silent(w); w.PodBecomesReady(targetNode) }, v1.MigrationScheduled, migration.ReasonWaitingForGuest},
			{late, v1.MigrationFailed, "HandOffTimeout"},
		}},
		"before it has begun, target silent": {v1.MigrationPreparingTarget, []turn{{late, v1.MigrationFailed, "PrepareTimeout"}}},
		"before it has begun, source silent": {v1.MigrationTargetReady, []turn{{late, v1.MigrationFailed, "BeginTimeout"}}},
		"in the move, and it comes back": {v1.MigrationRunning, []turn{
			{silent, v1.MigrationRunning, migration.ReasonMoving},
			{back, v1.MigrationRunning, migration.ReasonMoving},
			{arrives, v1.MigrationSucceeded, ""},
		}},
		"in the move, which ends well": {v1.MigrationRunning, []turn{
			{silent, v1.MigrationRunning, migration.ReasonMoving},
			{arrives, v1.MigrationSucceeded, ""},
		}},
		"in the move, fenced, and the guest had arrived": {v1.MigrationRunning, []turn{
			{silent, v1.MigrationRunning, migration.ReasonMoving},
			{func(w *world) { late(w); fence(w) }, v1.MigrationRunning, "Aborting"},
			{arrives, v1.MigrationSucceeded, ""},
		}},
		"in the move, fenced, and it had not": {v1.MigrationRunning, []turn{
			{silent, v1.MigrationRunning, migration.ReasonMoving},
			{func(w *world) { late(w); fence(w) }, v1.MigrationRunning, "Aborting"},
			{func(w *world) { declines(w); w.VMI.Status.Phase = v1.Failed }, v1.MigrationFailed, migration.ReasonNodeReported},
		}},
		"in the move, the object says so first": {v1.MigrationRunning, []turn{
			{silent, v1.MigrationRunning, migration.ReasonMoving},
			{func(w *world) { w.VMI.Status.Phase = v1.Failed }, v1.MigrationFailed, migration.ReasonGuestFinal},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.Until(tc.from)
			for i, turn := range tc.turns {
				turn.do(w)
				w.Passes()
				if w.Migration.Status.Phase != turn.phase || w.Reason() != turn.reason {
					t.Fatalf("turn %d: phase %q, reason %q; want %q, %q: %+v", i, w.Migration.Status.Phase, w.Reason(), turn.phase, turn.reason, w.Lease())
				}
			}
			if w.Migration.IsFinal() != w.Released {
				t.Errorf("phase %q, released %v", w.Migration.Status.Phase, w.Released)
			}
		})
	}
}

// A slot at the target may take long to come. What is left to do then has its own time.
func TestHandOffTimeout_FromSlot(t *testing.T) {
	w := newWorld(t)
	w.Config.Limits.Inbound = 0
	w.Restart()
	w.Until(v1.MigrationScheduling)
	w.PodBecomesReady(targetNode)
	w.Passes()
	w.Now = w.Now.Add(time.Hour)
	if w.Passes(); w.Migration.Status.Phase != v1.MigrationScheduled || w.Reason() != migration.ReasonWaitingForSlot {
		t.Fatalf("after an hour: phase %q, reason %q", w.Migration.Status.Phase, w.Reason())
	}
	// There is a slot, and the VMI's owner is unresponsive.
	w.Step(handoff.Event{Kind: handoff.Suspect, Node: sourceNode})
	w.Config.Limits.Inbound = 2
	w.Admission.SetLimits(w.Config.Limits, w.Now)
	if w.Passes(); w.Migration.Status.Phase != v1.MigrationScheduled || w.Reason() != migration.ReasonWaitingForGuest {
		t.Fatalf("with the slot: phase %q, reason %q", w.Migration.Status.Phase, w.Reason())
	}
	w.Now = w.Now.Add(14 * time.Minute)
	if w.Passes(); w.Migration.Status.Phase != v1.MigrationScheduled {
		t.Fatalf("14 minutes later: phase %q, reason %q", w.Migration.Status.Phase, w.Reason())
	}
	w.Now = w.Now.Add(2 * time.Minute)
	if w.Passes(); w.Migration.Status.Phase != v1.MigrationFailed || w.Reason() != "HandOffTimeout" {
		t.Fatalf("16 minutes later: phase %q, reason %q", w.Migration.Status.Phase, w.Reason())
	}
}
