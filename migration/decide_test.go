// SPDX-License-Identifier: Apache-2.0

package migration_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/migration"
	"github.com/virtloom/virtloom/migration/placement"
)

func TestDecide_EveryPhase(t *testing.T) {
	w := newWorld(t)
	type stage struct {
		Phase  v1.VirtualMachineInstanceMigrationPhase
		Reason migration.Reason
		Owner  handoff.Responsible
	}
	var got []stage
	look := func(p migration.Plan) { got = append(got, stage{w.Migration.Status.Phase, w.Reason(), p.Responsible}) }

	look(w.Pass())
	look(w.Passes())
	w.PodBecomesReady(targetNode)
	look(w.Passes())
	w.TargetPrepares()
	look(w.Passes())
	w.SourceBegins()
	look(w.Passes())
	w.TargetTakesOver()
	look(w.Passes())

	want := []stage{
		{v1.MigrationPending, "", handoff.ByController},
		{v1.MigrationScheduling, "WaitingForTargetPod", handoff.ByScheduler},
		{v1.MigrationPreparingTarget, "WaitingForTargetNode", handoff.ByTargetNode},
		{v1.MigrationTargetReady, "WaitingForSourceNode", handoff.BySourceNode},
		{v1.MigrationRunning, migration.ReasonMoving, handoff.BySourceNode},
		{v1.MigrationSucceeded, "", handoff.ByNobody},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("stages (-want +got):\n%s", d)
	}
	var phases []v1.VirtualMachineInstanceMigrationPhase
	for _, p := range w.Migration.Status.PhaseTransitionTimestamps {
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
	if !w.Released || len(w.Migration.Finalizers) > 0 {
		w.t.Error("the finalizer is still there")
	}
	l := w.Lease()
	if l.State != handoff.Owned || l.Holder != node || w.VMI.Status.NodeName != node {
		w.t.Errorf("the VMI is owned by %q in state %q with nodeName %q, want Owned by %q", l.Holder, l.State, w.VMI.Status.NodeName, node)
	}
	keep := map[string]string{sourceNode: "src", targetNode: "dst"}[node]
	if len(w.Pods) != 1 || w.Pods[keep] == nil {
		w.t.Errorf("Pods left are %v, want only %q", w.Pods, keep)
	}
	if u := w.Admission.Usage(); u.Cluster != 0 || len(u.Outbound) != 0 || len(u.Inbound) != 0 {
		w.t.Errorf("slots are still held: %+v", u)
	}
	if migration.Condition(w.Migration.Status, migration.ConditionWaiting) != nil {
		w.t.Error("a finished migration claims to wait")
	}
}

func TestHandOff_OneChange(t *testing.T) {
	w := newWorld(t)
	w.Until(v1.MigrationScheduling)
	w.PodBecomesReady(targetNode)
	s := w.Snapshot()
	claim, _ := s.Claim(start)
	s.Slot, _ = w.Admission.Ask(claim, w.Now)

	plan := migration.Decide(s, w.Now)

	if len(plan.Actions) != 1 || plan.Actions[0].Verb != migration.ChangeVMI {
		t.Fatalf("actions are %+v, want one change of the VMI", plan.Actions)
	}
	got := w.VMI.DeepCopy()
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
		Cause: "MigrationAsked",
		Open:  []handoff.Command{{ID: "migrate-in/2", Kind: handoff.CommandMigrateIn, Epoch: 2, Node: targetNode, Tag: ourUID}}}
	if d := cmp.Diff(want, l); d != "" {
		t.Errorf("lease (-want +got):\n%s", d)
	}
	if w.VMI.Status.MigrationState != nil {
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
			w.Until(ph)
			w.Migration.DeletionTimestamp = &metav1.Time{Time: w.Now}
			w.Passes()
			if ph == v1.MigrationRunning {
				if !w.VMI.Status.MigrationState.AbortRequested || w.Reason() != "Aborting" || w.Released {
					t.Fatalf("a migration under way was not asked to abort: %+v", w.VMI.Status.MigrationState)
				}
				w.SourceReverts("aborted by request")
				w.Passes()
			}
			if w.Migration.Status.Phase != v1.MigrationFailed {
				t.Errorf("phase is %q, want Failed", w.Migration.Status.Phase)
			}
			if migration.Condition(w.Migration.Status, v1.VirtualMachineInstanceMigrationAbortRequested) == nil {
				t.Error("condition migrationAbortRequested is missing")
			}
			if ph != v1.MigrationRunning && w.Reason() != migration.ReasonAborted {
				t.Errorf("reason is %q, want %q", w.Reason(), migration.ReasonAborted)
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
			w.Until(ph)
			w.Events = nil
			w.Migration.DeletionTimestamp = &metav1.Time{Time: w.Now}
			w.Passes()
			early := ph == v1.MigrationPhaseUnset || ph == v1.MigrationPending || ph == v1.MigrationScheduling || ph == v1.MigrationScheduled
			if warned := hasEvent("FailedMigration", true)(w) == nil; warned != early {
				t.Errorf("warned of the failure: %v, want %v (%+v)", warned, early, w.Events)
			}
		})
	}
}

func TestAbort_TooLateSucceeds(t *testing.T) {
	w := newWorld(t)
	w.Until(v1.MigrationRunning)
	w.Migration.DeletionTimestamp = &metav1.Time{Time: w.Now}
	w.Passes()
	w.TargetTakesOver()
	w.Passes()
	if w.Migration.Status.Phase != v1.MigrationSucceeded {
		t.Errorf("phase is %q, want Succeeded", w.Migration.Status.Phase)
	}
	w.mustBeAt(targetNode)
}

func TestAbort_RequestedOnce(t *testing.T) {
	w := newWorld(t)
	w.Until(v1.MigrationRunning)
	w.Migration.DeletionTimestamp = &metav1.Time{Time: w.Now}
	w.Passes()
	if plan := migration.Decide(w.Snapshot(), w.Now); len(plan.Actions) != 0 {
		t.Errorf("actions are %+v, want none", plan.Actions)
	}
}

func TestVMIEnd_EndsMigrationInEveryPhase(t *testing.T) {
	for _, ph := range unfinished {
		for name, tc := range map[string]struct {
			end  func(*world)
			want migration.Reason
		}{
			"gone":   {func(w *world) { w.VMI = nil }, migration.ReasonGuestNotFound},
			"failed": {func(w *world) { w.VMI.Status.Phase = v1.Failed }, migration.ReasonGuestFinal},
		} {
			t.Run(name+" from "+string(ph), func(t *testing.T) {
				w := newWorld(t)
				w.Until(ph)
				tc.end(w)
				w.Passes()
				if w.Migration.Status.Phase != v1.MigrationFailed || w.Reason() != tc.want || !w.Released {
					t.Errorf("phase %q, reason %q, released %v; want Failed, %q, true", w.Migration.Status.Phase, w.Reason(), w.Released, tc.want)
				}
				if w.VMI != nil && w.Pods["dst"] != nil {
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
			w.Until(ph)
			w.VMI.DeletionTimestamp = &metav1.Time{Time: w.Now}
			w.Passes()
			if ph == v1.MigrationRunning {
				if !w.VMI.Status.MigrationState.AbortRequested || w.Released || w.Pods["dst"] == nil {
					t.Fatal("a migration under way must be left to the nodes, with its target Pod")
				}
				w.VMI.Status.Phase = v1.Succeeded
				w.Passes()
			}
			if w.Migration.Status.Phase != v1.MigrationFailed || !w.Released || w.Pods["dst"] != nil {
				t.Errorf("phase %q, released %v, target Pod %v", w.Migration.Status.Phase, w.Released, w.Pods["dst"])
			}
		})
	}
}

func TestNodeReason_ReachesMigration(t *testing.T) {
	w := newWorld(t)
	w.Until(v1.MigrationRunning)
	w.SourceReverts("operation failed: disk is full")
	w.Passes()
	c := migration.Condition(w.Migration.Status, migration.ConditionFailed)
	if c == nil || c.Reason != string(migration.ReasonNodeReported) || c.Message != "operation failed: disk is full" {
		t.Errorf("condition is %+v", c)
	}
	w.mustBeAt(sourceNode)
}

func TestMigrationState_TakenOverFails(t *testing.T) {
	w := newWorld(t)
	w.Until(v1.MigrationPreparingTarget)
	w.VMI.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{MigrationUID: "foreign"}
	w.Passes()
	if w.Migration.Status.Phase != v1.MigrationFailed || w.Reason() != "MigrationStateLost" {
		t.Errorf("phase %q, reason %q", w.Migration.Status.Phase, w.Reason())
	}
	if w.VMI.Status.MigrationState.Failed {
		t.Error("the state of another migration was touched")
	}
	w.mustBeAt(sourceNode)
}

func TestRefusedCreation(t *testing.T) {
	for name, tc := range map[string]struct {
		err   error
		phase v1.VirtualMachineInstanceMigrationPhase
		want  migration.Reason
	}{
		"foreign Pod": {fmt.Errorf("wrapped: %w", migration.ErrForeignPod), v1.MigrationFailed, migration.ReasonTargetPodForeign},
		"render":      {fmt.Errorf("%w: no image", migration.ErrRender), v1.MigrationFailed, migration.ReasonRender},
		"quota":       {fmt.Errorf("%w: cpu", placement.ErrQuota), v1.MigrationPending, migration.ReasonQuota},
		"transient":   {errors.New("timeout"), v1.MigrationPending, migration.ReasonCreateFailed},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.Pass()
			w.Failures = map[migration.Verb]error{migration.CreateTarget: tc.err}
			s := w.Snapshot()
			plan := migration.Decide(s, w.Now)
			if plan.Status.Phase != tc.phase || plan.Reason != tc.want && tc.phase == v1.MigrationPending {
				t.Errorf("phase %q, reason %q; want %q, %q", plan.Status.Phase, plan.Reason, tc.phase, tc.want)
			}
			if _, wanted := s.Claim(start); wanted {
				t.Error("a slot is kept for a Pod that was refused")
			}
			quota := migration.Condition(plan.Status, v1.VirtualMachineInstanceMigrationRejectedByResourceQuota) != nil
			if quota != (tc.want == migration.ReasonQuota) {
				t.Errorf("condition migrationRejectedByResourceQuota is %v", quota)
			}
		})
	}
}

func TestPendingWrites_DecideNothing(t *testing.T) {
	w := newWorld(t)
	w.Until(v1.MigrationPreparingTarget)
	w.Migration.DeletionTimestamp = &metav1.Time{Time: w.Now}
	s := w.Snapshot()
	s.Pending = "create of Pod ns/dst"
	plan := migration.Decide(s, w.Now)
	if len(plan.Actions) > 0 || plan.Release || !cmp.Equal(plan.Status, w.Migration.Status) {
		t.Errorf("plan is %+v, want nothing done", plan)
	}
}

func TestOrphanedMigration_IsCanceled(t *testing.T) {
	w := newWorld(t)
	w.Put(handoff.Lease{State: handoff.Preparing, Epoch: 7, Holder: sourceNode, Target: "elsewhere", Tag: "gone"})
	w.VMI.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{MigrationUID: "gone", TargetNode: "elsewhere"}
	w.Until(v1.MigrationRunning)
	if l := w.Lease(); l.Tag != ourUID || l.Epoch != 9 {
		t.Errorf("lease is %+v, want our move at epoch 9", l)
	}
}

func TestCollect_OldMigrations(t *testing.T) {
	w := newWorld(t)
	for i := range 8 {
		o := newMigration(fmt.Sprintf("old-%d", i), "")
		o.CreationTimestamp = metav1.NewTime(start.Add(time.Duration(i-20) * time.Minute))
		o.Status.Phase = v1.MigrationSucceeded
		w.Others = append(w.Others, o)
	}
	running := newMigration("old-but-unfinished", "x")
	running.Status.Phase = v1.MigrationPending
	running.CreationTimestamp = metav1.NewTime(start.Add(time.Minute))
	w.Others = append(w.Others, running)
	w.Until(v1.MigrationSucceeded)
	seen := map[string]bool{}
	for _, name := range w.Collected {
		seen[name] = true
	}
	if d := cmp.Diff(map[string]bool{"old-0": true, "old-1": true, "old-2": true, "old-3": true}, seen); d != "" {
		t.Errorf("collected (-want +got):\n%s", d)
	}
}
