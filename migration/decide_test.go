// SPDX-License-Identifier: Apache-2.0

package migration

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/migration/placement"
)

func TestDecide_EveryPhase(t *testing.T) {
	w := newWorld(t)
	type stage struct {
		Phase  v1.VirtualMachineInstanceMigrationPhase
		Reason Reason
		Owner  Owner
	}
	var got []stage
	look := func(p Plan) { got = append(got, stage{w.migration.Status.Phase, w.reason(), p.Owner}) }

	look(w.pass())
	look(w.passes())
	w.podBecomesReady(targetNode)
	look(w.passes())
	w.targetPrepares()
	look(w.passes())
	w.sourceBegins()
	look(w.passes())
	w.targetTakesOver()
	look(w.passes())

	want := []stage{
		{v1.MigrationPending, "", OwnerController},
		{v1.MigrationScheduling, ReasonWaitingForTargetPod, OwnerScheduler},
		{v1.MigrationPreparingTarget, ReasonWaitingForTargetNode, OwnerTarget},
		{v1.MigrationTargetReady, ReasonWaitingForSourceNode, OwnerSource},
		{v1.MigrationRunning, ReasonMoving, OwnerSource},
		{v1.MigrationSucceeded, "", OwnerNobody},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("stages (-want +got):\n%s", d)
	}
	var phases []v1.VirtualMachineInstanceMigrationPhase
	for _, p := range w.migration.Status.PhaseTransitionTimestamps {
		phases = append(phases, p.Phase)
	}
	wantPhases := []v1.VirtualMachineInstanceMigrationPhase{
		v1.MigrationPending, v1.MigrationScheduling, v1.MigrationScheduled, v1.MigrationPreparingTarget,
		v1.MigrationTargetReady, v1.MigrationRunning, v1.MigrationSucceeded,
	}
	if d := cmp.Diff(wantPhases, phases); d != "" {
		t.Errorf("phase transitions (-want +got):\n%s", d)
	}
	w.mustBeAt(targetNode)
}

// mustBeAt checks what every end has to leave behind when the VMI is on the node.
func (w *world) mustBeAt(node string) {
	w.t.Helper()
	if !w.released || len(w.migration.Finalizers) > 0 {
		w.t.Error("the finalizer is still there")
	}
	l := w.lease()
	if l.State != handoff.Owned || l.Holder != node || w.vmi.Status.NodeName != node {
		w.t.Errorf("the VMI is owned by %q in state %q with nodeName %q, want Owned by %q", l.Holder, l.State, w.vmi.Status.NodeName, node)
	}
	keep := map[string]string{sourceNode: "src", targetNode: "dst"}[node]
	if len(w.pods) != 1 || w.pods[keep] == nil {
		w.t.Errorf("Pods left are %v, want only %q", w.pods, keep)
	}
	if u := w.admission.Usage(); u.Cluster != 0 || len(u.Outbound) != 0 || len(u.Inbound) != 0 {
		w.t.Errorf("slots are still held: %+v", u)
	}
	if Condition(w.migration.Status, ConditionWaiting) != nil {
		w.t.Error("a finished migration claims to wait")
	}
}

func TestHandOff_OneChange(t *testing.T) {
	w := newWorld(t)
	w.until(v1.MigrationScheduling)
	w.podBecomesReady(targetNode)
	s := w.snapshot()
	claim, _ := s.Claim()
	s.Slot, _ = w.admission.Ask(claim, w.now)

	plan := Decide(s, w.now)

	if len(plan.Actions) != 1 || plan.Actions[0].Kind != ChangeVMI {
		t.Fatalf("actions are %+v, want one change of the VMI", plan.Actions)
	}
	got := w.vmi.DeepCopy()
	if err := plan.Actions[0].Change.Apply(got); err != nil {
		t.Fatal(err)
	}
	ms := got.Status.MigrationState
	if ms.MigrationUID != ourUID || ms.SourceNode != sourceNode || ms.TargetNode != targetNode || ms.TargetPod != "dst" || ms.SourcePod != "src" {
		t.Errorf("migration state is %+v", ms)
	}
	if ms.VMIMConfigurationOptions == nil || *ms.VMIMConfigurationOptions.MaxDowntimeMs != 900 {
		t.Errorf("resolved configuration is %+v, want KubeVirt's defaults", ms.VMIMConfigurationOptions)
	}
	if l := got.Labels[v1.MigrationTargetNodeNameLabel]; l != targetNode {
		t.Errorf("target label is %q", l)
	}
	l, err := handoff.Of(got)
	if err != nil {
		t.Fatal(err)
	}
	deadline := metav1.NewTime(start.Add(5 * time.Minute))
	want := handoff.Lease{State: handoff.Preparing, Epoch: 2, Holder: sourceNode, Target: targetNode, Tag: ourUID, Deadline: &deadline,
		Cause: handoff.CauseMoveAsked,
		Open:  []handoff.Command{{ID: "migrate-in/2", Kind: handoff.CommandMigrateIn, Epoch: 2, Node: targetNode, Tag: ourUID}}}
	if d := cmp.Diff(want, l); d != "" {
		t.Errorf("lease (-want +got):\n%s", d)
	}
	if w.vmi.Status.MigrationState != nil {
		t.Error("Decide changed the snapshot's VMI")
	}
}

// unfinished are the phases in which an abort must work.
var unfinished = []v1.VirtualMachineInstanceMigrationPhase{
	v1.MigrationPhaseUnset, v1.MigrationPending, v1.MigrationScheduling, v1.MigrationScheduled,
	v1.MigrationPreparingTarget, v1.MigrationTargetReady, v1.MigrationRunning,
}

func TestAbort_EveryPhase(t *testing.T) {
	for _, ph := range unfinished {
		t.Run("from "+string(ph), func(t *testing.T) {
			w := newWorld(t)
			w.until(ph)
			w.migration.DeletionTimestamp = &metav1.Time{Time: w.now}
			w.passes()
			if ph == v1.MigrationRunning {
				if !w.vmi.Status.MigrationState.AbortRequested || w.reason() != ReasonAborting || w.released {
					t.Fatalf("a migration under way was not asked to abort: %+v", w.vmi.Status.MigrationState)
				}
				w.sourceReverts("aborted by request")
				w.passes()
			}
			if w.migration.Status.Phase != v1.MigrationFailed {
				t.Errorf("phase is %q, want Failed", w.migration.Status.Phase)
			}
			if Condition(w.migration.Status, v1.VirtualMachineInstanceMigrationAbortRequested) == nil {
				t.Error("condition migrationAbortRequested is missing")
			}
			if ph != v1.MigrationRunning && w.reason() != ReasonAborted {
				t.Errorf("reason is %q, want %q", w.reason(), ReasonAborted)
			}
			w.mustBeAt(sourceNode)
		})
	}
}

// As in KubeVirt: what is aborted before the handoff has failed, which alerts are built on.
func TestAbort_BeforeTheHandOffIsAWarning(t *testing.T) {
	for _, ph := range unfinished {
		t.Run("from "+string(ph), func(t *testing.T) {
			w := newWorld(t)
			w.until(ph)
			w.events = nil
			w.migration.DeletionTimestamp = &metav1.Time{Time: w.now}
			w.passes()
			early := ph == v1.MigrationPhaseUnset || ph == v1.MigrationPending || ph == v1.MigrationScheduling || ph == v1.MigrationScheduled
			if warned := hasEvent(EventFailed, true)(w) == nil; warned != early {
				t.Errorf("warned of the failure: %v, want %v (%+v)", warned, early, w.events)
			}
		})
	}
}

func TestAbort_TooLateSucceeds(t *testing.T) {
	w := newWorld(t)
	w.until(v1.MigrationRunning)
	w.migration.DeletionTimestamp = &metav1.Time{Time: w.now}
	w.passes()
	w.targetTakesOver()
	w.passes()
	if w.migration.Status.Phase != v1.MigrationSucceeded {
		t.Errorf("phase is %q, want Succeeded", w.migration.Status.Phase)
	}
	w.mustBeAt(targetNode)
}

func TestAbort_RequestedOnce(t *testing.T) {
	w := newWorld(t)
	w.until(v1.MigrationRunning)
	w.migration.DeletionTimestamp = &metav1.Time{Time: w.now}
	w.passes()
	if plan := Decide(w.snapshot(), w.now); len(plan.Actions) != 0 {
		t.Errorf("actions are %+v, want none", plan.Actions)
	}
}

func TestVMIEnd_EndsMigrationInEveryPhase(t *testing.T) {
	for _, ph := range unfinished {
		for name, tc := range map[string]struct {
			end  func(*world)
			want Reason
		}{
			"gone":   {func(w *world) { w.vmi = nil }, ReasonGuestNotFound},
			"failed": {func(w *world) { w.vmi.Status.Phase = v1.Failed }, ReasonGuestFinal},
		} {
			t.Run(name+" from "+string(ph), func(t *testing.T) {
				w := newWorld(t)
				w.until(ph)
				tc.end(w)
				w.passes()
				if w.migration.Status.Phase != v1.MigrationFailed || w.reason() != tc.want || !w.released {
					t.Errorf("phase %q, reason %q, released %v; want Failed, %q, true", w.migration.Status.Phase, w.reason(), w.released, tc.want)
				}
				if w.vmi != nil && w.pods["dst"] != nil {
					t.Error("the target Pod is left behind")
				}
			})
		}
	}
}

func TestVMIDeletion(t *testing.T) {
	for _, ph := range unfinished {
		t.Run("from "+string(ph), func(t *testing.T) {
			w := newWorld(t)
			w.until(ph)
			w.vmi.DeletionTimestamp = &metav1.Time{Time: w.now}
			w.passes()
			if ph == v1.MigrationRunning {
				if !w.vmi.Status.MigrationState.AbortRequested || w.released || w.pods["dst"] == nil {
					t.Fatal("a migration under way must be left to the nodes, with its target Pod")
				}
				w.vmi.Status.Phase = v1.Succeeded
				w.passes()
			}
			if w.migration.Status.Phase != v1.MigrationFailed || !w.released || w.pods["dst"] != nil {
				t.Errorf("phase %q, released %v, target Pod %v", w.migration.Status.Phase, w.released, w.pods["dst"])
			}
		})
	}
}

func TestNodeReason_ReachesMigration(t *testing.T) {
	w := newWorld(t)
	w.until(v1.MigrationRunning)
	w.sourceReverts("operation failed: disk is full")
	w.passes()
	c := Condition(w.migration.Status, ConditionFailed)
	if c == nil || c.Reason != string(ReasonNodeReported) || c.Message != "operation failed: disk is full" {
		t.Errorf("condition is %+v", c)
	}
	w.mustBeAt(sourceNode)
}

func TestMigrationState_TakenOverFails(t *testing.T) {
	w := newWorld(t)
	w.until(v1.MigrationPreparingTarget)
	w.vmi.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{MigrationUID: "foreign"}
	w.passes()
	if w.migration.Status.Phase != v1.MigrationFailed || w.reason() != ReasonStateLost {
		t.Errorf("phase %q, reason %q", w.migration.Status.Phase, w.reason())
	}
	if w.vmi.Status.MigrationState.Failed {
		t.Error("the state of another migration was touched")
	}
	w.mustBeAt(sourceNode)
}

func TestRefusedCreation(t *testing.T) {
	for name, tc := range map[string]struct {
		err   error
		phase v1.VirtualMachineInstanceMigrationPhase
		want  Reason
	}{
		"foreign Pod": {fmt.Errorf("wrapped: %w", ErrForeignPod), v1.MigrationFailed, ReasonTargetPodForeign},
		"render":      {fmt.Errorf("%w: no image", ErrRender), v1.MigrationFailed, ReasonRender},
		"quota":       {fmt.Errorf("%w: cpu", placement.ErrQuota), v1.MigrationPending, ReasonQuota},
		"transient":   {errors.New("timeout"), v1.MigrationPending, ReasonCreateFailed},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.pass()
			w.failures = map[ActionKind]error{CreateTarget: tc.err}
			s := w.snapshot()
			plan := Decide(s, w.now)
			if plan.Status.Phase != tc.phase || plan.Reason != tc.want && tc.phase == v1.MigrationPending {
				t.Errorf("phase %q, reason %q; want %q, %q", plan.Status.Phase, plan.Reason, tc.phase, tc.want)
			}
			if _, wanted := s.Claim(); wanted {
				t.Error("a slot is kept for a Pod that was refused")
			}
			quota := Condition(plan.Status, v1.VirtualMachineInstanceMigrationRejectedByResourceQuota) != nil
			if quota != (tc.want == ReasonQuota) {
				t.Errorf("condition migrationRejectedByResourceQuota is %v", quota)
			}
		})
	}
}

func TestPendingWrites_DecideNothing(t *testing.T) {
	w := newWorld(t)
	w.until(v1.MigrationPreparingTarget)
	w.migration.DeletionTimestamp = &metav1.Time{Time: w.now}
	s := w.snapshot()
	s.Pending = "create of Pod ns/dst"
	plan := Decide(s, w.now)
	if len(plan.Actions) > 0 || plan.Release || !cmp.Equal(plan.Status, w.migration.Status) {
		t.Errorf("plan is %+v, want nothing done", plan)
	}
}

func TestOrphanedMigration_IsCanceled(t *testing.T) {
	w := newWorld(t)
	w.put(handoff.Lease{State: handoff.Preparing, Epoch: 7, Holder: sourceNode, Target: "elsewhere", Tag: "gone"})
	w.vmi.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{MigrationUID: "gone", TargetNode: "elsewhere"}
	w.until(v1.MigrationRunning)
	if l := w.lease(); l.Tag != ourUID || l.Epoch != 9 {
		t.Errorf("lease is %+v, want our move at epoch 9", l)
	}
}

func TestCollect_OldMigrations(t *testing.T) {
	w := newWorld(t)
	for i := range 8 {
		o := newMigration(fmt.Sprintf("old-%d", i), "")
		o.CreationTimestamp = metav1.NewTime(start.Add(time.Duration(i-20) * time.Minute))
		o.Status.Phase = v1.MigrationSucceeded
		w.others = append(w.others, o)
	}
	running := newMigration("old-but-unfinished", "x")
	running.Status.Phase = v1.MigrationPending
	running.CreationTimestamp = metav1.NewTime(start.Add(time.Minute))
	w.others = append(w.others, running)
	w.until(v1.MigrationSucceeded)
	seen := map[string]bool{}
	for _, name := range w.collected {
		seen[name] = true
	}
	if d := cmp.Diff(map[string]bool{"old-0": true, "old-1": true, "old-2": true, "old-3": true}, seen); d != "" {
		t.Errorf("collected (-want +got):\n%s", d)
	}
}
