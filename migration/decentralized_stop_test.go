// SPDX-License-Identifier: Apache-2.0

package migration_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/migration"
	"github.com/virtloom/virtloom/migration/explain"
)

var (
	sending = []v1.VirtualMachineInstanceMigrationPhase{
		v1.MigrationPhaseUnset, v1.MigrationSynchronizing, v1.MigrationPending, v1.MigrationScheduling, v1.MigrationScheduled,
		v1.MigrationPreparingTarget, v1.MigrationTargetReady, v1.MigrationRunning,
	}
	receiving = []v1.VirtualMachineInstanceMigrationPhase{
		v1.MigrationPhaseUnset, v1.MigrationWaitingForSync, v1.MigrationPending, v1.MigrationScheduling, v1.MigrationScheduled,
		v1.MigrationPreparingTarget, v1.MigrationTargetReady, v1.MigrationRunning,
	}
)

// broughtTo is a pair of which one side has come to the phase, and no further.
func broughtTo(t *testing.T, sender, stock bool, want v1.VirtualMachineInstanceMigrationPhase) (p *clusters, w *world) {
	t.Helper()
	p = newClusters(t, stock)
	w, order := p.to, receiving
	if sender {
		w, order = p.from, sending
	}
	p.before = "begin"
	if want == v1.MigrationRunning {
		p.before = "switch"
	}
	place := slices.Index(order, want)
	p.until(func() bool { return slices.Index(order, w.Migration.Status.Phase) >= place })
	if len(w.Migration.Finalizers) == 0 {
		w.Pass()
	}
	// Phases in which there is nothing to wait for are left as soon as they are entered; a
	// crash may leave a migration in one.
	w.Migration.Status.Phase = want
	return p, w
}

// The explanation of a receiver that waits for an answer has the deadline.
func TestDecentralizedAbort_ExplainsDeadline(t *testing.T) {
	_, w := broughtTo(t, false, false, v1.MigrationTargetReady)
	w.Migration.DeletionTimestamp = &metav1.Time{Time: w.Now}
	w.Passes()
	s := w.Snapshot()
	s.Slot = w.Admission.Explain(types.NamespacedName{Namespace: "ns", Name: w.Migration.Name}, w.Now)
	if e := explain.Explain(s, w.Now); e.Deadline == nil || !e.Deadline.Equal(w.Now.Add(time.Hour)) || e.Overdue != migration.ReasonAborted {
		t.Errorf("%s", e)
	}
}

func TestDecentralizedAbort(t *testing.T) {
	for _, stock := range []bool{false, true} {
		for i := range sending {
			for _, sender := range []bool{true, false} {
				phase, side := receiving[i], "receiver"
				if sender {
					phase, side = sending[i], "sender"
				}
				name := side + " in " + string(phase)
				if stock {
					name += ", stock nodes"
				}
				t.Run(name, func(t *testing.T) {
					p, w := broughtTo(t, sender, stock, phase)
					w.Migration.DeletionTimestamp = &metav1.Time{Time: w.Now}
					p.until(func() bool { return w.Released })
					if i < 2 { // the other side may never hear of it
						p.from.Now, p.to.Now = start.Add(time.Hour), start.Add(time.Hour)
					}
					p.until(func() bool { return p.from.Released && p.to.Released })
					p.mustStay(w)
				})
			}
		}
	}
}

// mustStay checks that the side has failed for its abort, and that the VMI stays where it
// was, with nothing left of the attempt.
func (p *clusters) mustStay(w *world) {
	t := w.t
	t.Helper()
	if r := w.Reason(); w.Migration.Status.Phase != v1.MigrationFailed || r != migration.ReasonAborted && r != migration.ReasonNodeReported {
		t.Errorf("phase %q, reason %q", w.Migration.Status.Phase, r)
	}
	if p.at != atSource || p.moving || p.from.VMI.IsFinal() || p.to.Pods["dst"] != nil && p.to.Released {
		t.Errorf("the VMI is at %s, moving %v, its object in phase %s, target Pod %v", p.at, p.moving, p.from.VMI.Status.Phase, p.to.Pods["dst"])
	}
	if l := p.from.Lease(); l.State != handoff.Owned || l.Holder != sourceNode {
		t.Errorf("the lease is %+v", l)
	}
	if len(p.from.VMI.Status.MigratedVolumes) > 0 {
		t.Error("the VMI's claims are still listed as moving")
	}
	if migration.Condition(w.Migration.Status, v1.VirtualMachineInstanceMigrationAbortRequested) == nil {
		t.Error("the abort is not reported")
	}
	if p.to.VMI.IsFinal() || p.to.VMI.DeletionTimestamp != nil {
		t.Errorf("the object that was to receive the VMI is gone: its creator is to delete it")
	}
}

func TestDeadlinesOfDecentralizedMigrations(t *testing.T) {
	for name, tc := range map[string]struct {
		sender bool
		phase  v1.VirtualMachineInstanceMigrationPhase
		after  time.Duration
		want   migration.Reason
		asked  bool // then the other side has to answer
	}{
		"sender, Synchronizing":     {true, v1.MigrationSynchronizing, time.Hour, "SynchronizeTimeout", false},
		"sender, Scheduling":        {true, v1.MigrationScheduling, 24 * time.Hour, "ReceiverTimeout", false},
		"sender, Scheduled":         {true, v1.MigrationScheduled, 15 * time.Minute, "HandOffTimeout", false},
		"sender, PreparingTarget":   {true, v1.MigrationPreparingTarget, 5 * time.Minute, "PrepareTimeout", false},
		"sender, TargetReady":       {true, v1.MigrationTargetReady, 5 * time.Minute, "BeginTimeout", false},
		"sender, Running":           {true, v1.MigrationRunning, 24 * time.Hour, "Aborting", true},
		"receiver, WaitingForSync":  {false, v1.MigrationWaitingForSync, time.Hour, "SynchronizeTimeout", false},
		"receiver, Pending":         {false, v1.MigrationPending, 24 * time.Hour, "PendingTimeout", false},
		"receiver, Scheduling":      {false, v1.MigrationScheduling, 15 * time.Minute, "TargetPodTimeout", false},
		"receiver, Scheduled":       {false, v1.MigrationScheduled, 15 * time.Minute, "HandOffTimeout", false},
		"receiver, PreparingTarget": {false, v1.MigrationPreparingTarget, 5 * time.Minute, "PrepareTimeout", false},
		"receiver, TargetReady":     {false, v1.MigrationTargetReady, 5 * time.Minute, "Aborting", true},
		"receiver, Running":         {false, v1.MigrationRunning, 24 * time.Hour, "Aborting", true},
	} {
		t.Run(name, func(t *testing.T) {
			p, w := broughtTo(t, tc.sender, false, tc.phase)
			hinder(p, w, tc.phase)
			w.Now = start.Add(tc.after - time.Second)
			if w.Passes(); w.Migration.IsFinal() {
				t.Fatalf("it failed before its time: %q", w.Reason())
			}
			w.Now = start.Add(tc.after)
			w.Passes()
			if w.Reason() != tc.want || w.Migration.IsFinal() == tc.asked {
				t.Fatalf("phase %q, reason %q; want %q: %+v", w.Migration.Status.Phase, w.Reason(), tc.want, w.Migration.Status.Conditions)
			}
			if ms := stateIn(w); ms != nil && (!ms.Failed || !ms.Completed) != tc.asked || ms.AbortRequested != (tc.sender || tc.asked) {
				t.Errorf("what the other side gets is %+v", ms)
			}
			// The other side is notified, and ends as well; if it was never notified, by itself.
			if tc.phase == v1.MigrationWaitingForSync {
				p.from.Now = w.Now
			}
			p.until(func() bool { return p.from.Migration.IsFinal() && p.to.Migration.IsFinal() || tc.asked && !tc.sender })
		})
	}
}

// hinder keeps the side in its phase.
func hinder(p *clusters, w *world, phase v1.VirtualMachineInstanceMigrationPhase) {
	switch {
	case phase == v1.MigrationPending:
		w.Config.Limits.Cluster = 0
		w.Restart()
		delete(w.Pods, "dst")
	case phase == v1.MigrationScheduling && w == p.to:
		w.Pods["dst"].Status.Phase, w.Pods["dst"].Spec.NodeName = corev1.PodPending, ""
	case phase == v1.MigrationScheduled && w == p.to:
		w.Config.Limits.Inbound = 0
		w.Restart()
		ms := stateIn(w)
		ms.MigrationUID, ms.TargetNodeAddress, ms.TargetState.NodeAddress = "", "", nil
		w.PodBecomesReady(targetNode)
	case phase == v1.MigrationScheduling:
		stateIn(w).TargetState.Pod = ""
	case phase == v1.MigrationScheduled:
		stateIn(w).TargetState.Node = ""
	case phase == v1.MigrationPreparingTarget:
		stateIn(w).TargetNodeAddress, stateIn(w).TargetState.NodeAddress = "", nil
	}
	for i := range w.Migration.Status.PhaseTransitionTimestamps {
		w.Migration.Status.PhaseTransitionTimestamps[i].PhaseTransitionTimestamp = metav1.NewTime(start)
	}
}

func TestReceiver_GivesUpWithoutAnswer(t *testing.T) {
	for name, came := range map[string]bool{"nothing came": false, "something came": true} {
		t.Run(name, func(t *testing.T) {
			_, w := broughtTo(t, false, false, v1.MigrationTargetReady)
			w.Migration.DeletionTimestamp = &metav1.Time{Time: w.Now}
			stateIn(w).TargetState.DomainDetected = came
			plan := w.Passes()
			if want := w.Now.Add(time.Hour); w.Migration.IsFinal() || plan.Deadline.Equal(want) == came {
				t.Fatalf("phase %q, deadline %s", w.Migration.Status.Phase, plan.Deadline)
			}
			w.Now = w.Now.Add(time.Hour)
			w.Passes()
			if w.Migration.IsFinal() == came || (w.Pods["dst"] != nil) != came {
				t.Errorf("phase %q, target Pod %v", w.Migration.Status.Phase, w.Pods["dst"])
			}
		})
	}
}

func TestDecentralizedFailure_ReachesOtherSide(t *testing.T) {
	for name, tc := range map[string]struct {
		sender bool // is the one that fails
		phase  v1.VirtualMachineInstanceMigrationPhase
		event  func(*clusters)
		here   migration.Reason
		there  migration.Reason
	}{
		"target Pod dies, not begun":  {false, v1.MigrationTargetReady, func(p *clusters) { p.to.Pods["dst"].Status.Phase = corev1.PodFailed }, "TargetPodLost", "OtherClusterReportedFailure"},
		"target Pod dies in the move": {false, v1.MigrationRunning, func(p *clusters) { delete(p.to.Pods, "dst") }, "TargetPodLost", "OtherClusterReportedFailure"},
		"no node takes the target Pod": {false, v1.MigrationScheduling, func(p *clusters) {
			hinder(p, p.to, v1.MigrationScheduling)
			unschedulablePod(p.to)
			p.to.Now = start.Add(301 * time.Second)
		}, migration.ReasonUnschedulable, "OtherClusterReportedFailure"},
		"receiving object is deleted": {false, v1.MigrationScheduling, func(p *clusters) { p.to.VMI.DeletionTimestamp = &metav1.Time{Time: start} }, migration.ReasonGuestDeleted, "OtherClusterReportedFailure"},
		"guest is deleted":            {true, v1.MigrationScheduling, func(p *clusters) { p.from.VMI.DeletionTimestamp = &metav1.Time{Time: start} }, migration.ReasonGuestDeleted, migration.ReasonGuestDeleted},
		"guest ends":                  {true, v1.MigrationPreparingTarget, func(p *clusters) { p.from.VMI.Status.Phase = v1.Succeeded }, migration.ReasonGuestFinal, migration.ReasonGuestFinal},
		"gate is turned off":          {true, v1.MigrationScheduling, func(p *clusters) { p.from.Config.Decentralized = false }, migration.ReasonGate, migration.ReasonGate},
		"a volume is plugged in": {true, v1.MigrationScheduling, func(p *clusters) {
			p.from.VMI.Status.VolumeStatus = []v1.VolumeStatus{{Name: "late", HotplugVolume: &v1.HotplugVolumeStatus{}}}
			stateIn(p.from).TargetNode = targetNode
		}, migration.ReasonUnsupported, migration.ReasonUnsupported},
		"state is lost":                {true, v1.MigrationScheduling, func(p *clusters) { p.from.VMI.Status.MigrationState = nil }, "MigrationStateLost", ""},
		"state is another migration's": {false, v1.MigrationScheduling, func(p *clusters) { p.to.VMI.Status.MigrationState.MigrationUID = "x" }, "MigrationStateLost", ""},
	} {
		t.Run(name, func(t *testing.T) {
			p, w := broughtTo(t, tc.sender, false, tc.phase)
			other := p.from
			if tc.sender {
				other = p.to
			}
			tc.event(p)
			w.Passes()
			w.Passes()
			if w.Migration.Status.Phase != v1.MigrationFailed || w.Reason() != tc.here {
				t.Fatalf("phase %q, reason %q; want %q", w.Migration.Status.Phase, w.Reason(), tc.here)
			}
			if tc.there == "" {
				return
			}
			p.until(func() bool { p.push(); p.pull(); return other.Migration.IsFinal() })
			if other.Reason() != tc.there || p.at != atSource {
				t.Errorf("the other side ended with %q, want %q; the VMI is at %s", other.Reason(), tc.there, p.at)
			}
		})
	}
}

func TestClosedState_EndsMigrationBeforeHandoff(t *testing.T) {
	for i := 2; i < 5; i++ {
		for _, sender := range []bool{true, false} {
			phase := receiving[i]
			if sender {
				phase = sending[i]
			}
			t.Run(fmt.Sprintf("%s, sender %v", phase, sender), func(t *testing.T) {
				_, w := broughtTo(t, sender, false, phase)
				ms := stateIn(w)
				ms.MigrationUID, ms.Completed = "", true
				delete(w.Pods, "dst")
				w.Passes()
				if w.Migration.Status.Phase != v1.MigrationFailed || w.Reason() != "OtherClusterReportedFailure" || !w.Released {
					t.Errorf("phase %q, reason %q, released %v", w.Migration.Status.Phase, w.Reason(), w.Released)
				}
			})
		}
	}
}

func TestDecentralizedMigration_Retry(t *testing.T) {
	p, w := broughtTo(t, false, false, v1.MigrationTargetReady)
	w.Migration.DeletionTimestamp = &metav1.Time{Time: w.Now}
	p.until(func() bool { return p.from.Released && p.to.Released })
	for _, w := range []*world{p.from, p.to} {
		spec, uid := w.Migration.Spec, w.Migration.UID+"-2"
		w.Migration, w.Released = newMigration("again", uid), false
		w.Migration.Spec = spec
	}
	p.before, p.begun = "", false
	p.until(func() bool { return p.from.Released && p.to.Released })
	if p.at != atTarget || p.to.Migration.Status.Phase != v1.MigrationSucceeded || p.from.Migration.Status.Phase != v1.MigrationSucceeded {
		t.Errorf("the VMI is at %s, receiver %q %q, sender %q %q", p.at,
			p.to.Migration.Status.Phase, p.to.Reason(), p.from.Migration.Status.Phase, p.from.Reason())
	}
}

func TestRelay_OtherClusterReport(t *testing.T) {
	fenced := handoff.Lease{State: handoff.Fenced, Epoch: 5, Target: handoff.Elsewhere, Tag: ourUID}
	stalled := handoff.Lease{State: handoff.Moving, Epoch: 5, Holder: sourceNode, Target: handoff.Elsewhere, Tag: ourUID, Stalled: true}
	for name, tc := range map[string]struct {
		lease handoff.Lease
		moved bool
		want  handoff.State
		phase v1.VirtualMachineInstancePhase
	}{
		"source node gone, guest arrived": {fenced, true, handoff.Released, v1.Succeeded},
		"source node gone, guest has not": {fenced, false, handoff.Fenced, v1.Running},
		"source node lost track, arrived": {stalled, true, handoff.Released, v1.Succeeded},
		"source node lost track, has not": {stalled, false, handoff.Owned, v1.Running},
	} {
		t.Run(name, func(t *testing.T) {
			_, w := broughtTo(t, true, false, v1.MigrationRunning)
			w.Put(tc.lease)
			now := metav1.NewTime(w.Now)
			ms := stateIn(w)
			ms.EndTimestamp, ms.Completed, ms.Failed = &now, true, !tc.moved
			w.Passes()
			w.Passes()
			l := w.Lease()
			if l.State != tc.want || w.VMI.Status.Phase != tc.phase || !w.Released || l.State == handoff.Fenced && l.Target != "" {
				t.Errorf("lease %+v, phase %s, released %v", l, w.VMI.Status.Phase, w.Released)
			}
			if text := string(w.Migration.Status.Phase); strings.Contains(text, "Succeeded") != tc.moved {
				t.Errorf("the migration is %s", text)
			}
		})
	}
}
