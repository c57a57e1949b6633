// SPDX-License-Identifier: Apache-2.0

package migration

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
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
	p.until(func() bool { return slices.Index(order, w.migration.Status.Phase) >= place })
	if len(w.migration.Finalizers) == 0 {
		w.pass()
	}
	// Phases in which there is nothing to wait for are left as soon as they are entered; a
	// crash may leave a migration in one.
	w.migration.Status.Phase = want
	return p, w
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
					w.migration.DeletionTimestamp = &metav1.Time{Time: w.now}
					p.until(func() bool { return w.released })
					if i < 2 { // the other side may never hear of it
						p.from.now, p.to.now = start.Add(time.Hour), start.Add(time.Hour)
					}
					p.until(func() bool { return p.from.released && p.to.released })
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
	if r := w.reason(); w.migration.Status.Phase != v1.MigrationFailed || r != ReasonAborted && r != ReasonNodeReported {
		t.Errorf("phase %q, reason %q", w.migration.Status.Phase, r)
	}
	if p.at != atSource || p.moving || p.from.vmi.IsFinal() || p.to.pods["dst"] != nil && p.to.released {
		t.Errorf("the VMI is at %s, moving %v, its object in phase %s, target Pod %v", p.at, p.moving, p.from.vmi.Status.Phase, p.to.pods["dst"])
	}
	if l := p.from.lease(); l.State != handoff.Owned || l.Holder != sourceNode {
		t.Errorf("the lease is %+v", l)
	}
	if len(p.from.vmi.Status.MigratedVolumes) > 0 {
		t.Error("the VMI's claims are still listed as moving")
	}
	if Condition(w.migration.Status, v1.VirtualMachineInstanceMigrationAbortRequested) == nil {
		t.Error("the abort is not reported")
	}
	if p.to.vmi.IsFinal() || p.to.vmi.DeletionTimestamp != nil {
		t.Errorf("the object that was to receive the VMI is gone: its creator is to delete it")
	}
}

func TestDeadlinesOfDecentralizedMigrations(t *testing.T) {
	for name, tc := range map[string]struct {
		sender bool
		phase  v1.VirtualMachineInstanceMigrationPhase
		after  time.Duration
		want   Reason
		asked  bool // then the other side has to answer
	}{
		"sender, Synchronizing":     {true, v1.MigrationSynchronizing, time.Hour, ReasonSynchronizeTimeout, false},
		"sender, Scheduling":        {true, v1.MigrationScheduling, 24 * time.Hour, ReasonReceiverTimeout, false},
		"sender, Scheduled":         {true, v1.MigrationScheduled, 15 * time.Minute, ReasonHandOffTimeout, false},
		"sender, PreparingTarget":   {true, v1.MigrationPreparingTarget, 5 * time.Minute, ReasonPrepareTimeout, false},
		"sender, TargetReady":       {true, v1.MigrationTargetReady, 5 * time.Minute, ReasonBeginTimeout, false},
		"sender, Running":           {true, v1.MigrationRunning, 24 * time.Hour, ReasonAborting, true},
		"receiver, WaitingForSync":  {false, v1.MigrationWaitingForSync, time.Hour, ReasonSynchronizeTimeout, false},
		"receiver, Pending":         {false, v1.MigrationPending, 24 * time.Hour, ReasonPendingTimeout, false},
		"receiver, Scheduling":      {false, v1.MigrationScheduling, 15 * time.Minute, ReasonTargetPodTimeout, false},
		"receiver, Scheduled":       {false, v1.MigrationScheduled, 15 * time.Minute, ReasonHandOffTimeout, false},
		"receiver, PreparingTarget": {false, v1.MigrationPreparingTarget, 5 * time.Minute, ReasonPrepareTimeout, false},
		"receiver, TargetReady":     {false, v1.MigrationTargetReady, 5 * time.Minute, ReasonAborting, true},
		"receiver, Running":         {false, v1.MigrationRunning, 24 * time.Hour, ReasonAborting, true},
	} {
		t.Run(name, func(t *testing.T) {
			p, w := broughtTo(t, tc.sender, false, tc.phase)
			hinder(p, w, tc.phase)
			w.now = start.Add(tc.after - time.Second)
			if w.passes(); w.migration.IsFinal() {
				t.Fatalf("it failed before its time: %q", w.reason())
			}
			w.now = start.Add(tc.after)
			w.passes()
			if w.reason() != tc.want || w.migration.IsFinal() == tc.asked {
				t.Fatalf("phase %q, reason %q; want %q: %+v", w.migration.Status.Phase, w.reason(), tc.want, w.migration.Status.Conditions)
			}
			if ms := stateIn(w); ms != nil && (!ms.Failed || !ms.Completed) != tc.asked || ms.AbortRequested != (tc.sender || tc.asked) {
				t.Errorf("what the other side gets is %+v", ms)
			}
			// The other side is notified, and ends as well; if it was never notified, by itself.
			if tc.phase == v1.MigrationWaitingForSync {
				p.from.now = w.now
			}
			p.until(func() bool { return p.from.migration.IsFinal() && p.to.migration.IsFinal() || tc.asked && !tc.sender })
		})
	}
}

// hinder keeps the side in its phase.
func hinder(p *clusters, w *world, phase v1.VirtualMachineInstanceMigrationPhase) {
	switch {
	case phase == v1.MigrationPending:
		w.config.Limits.Cluster = 0
		w.restart()
		delete(w.pods, "dst")
	case phase == v1.MigrationScheduling && w == p.to:
		w.pods["dst"].Status.Phase, w.pods["dst"].Spec.NodeName = corev1.PodPending, ""
	case phase == v1.MigrationScheduled && w == p.to:
		w.config.Limits.Inbound = 0
		w.restart()
		ms := stateIn(w)
		ms.MigrationUID, ms.TargetNodeAddress, ms.TargetState.NodeAddress = "", "", nil
		w.podBecomesReady(targetNode)
	case phase == v1.MigrationScheduling:
		stateIn(w).TargetState.Pod = ""
	case phase == v1.MigrationScheduled:
		stateIn(w).TargetState.Node = ""
	case phase == v1.MigrationPreparingTarget:
		stateIn(w).TargetNodeAddress, stateIn(w).TargetState.NodeAddress = "", nil
	}
	for i := range w.migration.Status.PhaseTransitionTimestamps {
		w.migration.Status.PhaseTransitionTimestamps[i].PhaseTransitionTimestamp = metav1.NewTime(start)
	}
}

func TestReceiver_GivesUpWithoutAnswer(t *testing.T) {
	for name, came := range map[string]bool{"nothing came": false, "something came": true} {
		t.Run(name, func(t *testing.T) {
			_, w := broughtTo(t, false, false, v1.MigrationTargetReady)
			w.migration.DeletionTimestamp = &metav1.Time{Time: w.now}
			stateIn(w).TargetState.DomainDetected = came
			plan := w.passes()
			if want := w.now.Add(time.Hour); w.migration.IsFinal() || plan.Deadline.Equal(want) == came {
				t.Fatalf("phase %q, deadline %s", w.migration.Status.Phase, plan.Deadline)
			}
			w.now = w.now.Add(time.Hour)
			w.passes()
			if w.migration.IsFinal() == came || (w.pods["dst"] != nil) != came {
				t.Errorf("phase %q, target Pod %v", w.migration.Status.Phase, w.pods["dst"])
			}
		})
	}
}

func TestDecentralizedFailure_ReachesOtherSide(t *testing.T) {
	for name, tc := range map[string]struct {
		sender bool // is the one that fails
		phase  v1.VirtualMachineInstanceMigrationPhase
		event  func(*clusters)
		here   Reason
		there  Reason
	}{
		"target Pod dies, not begun":  {false, v1.MigrationTargetReady, func(p *clusters) { p.to.pods["dst"].Status.Phase = corev1.PodFailed }, ReasonTargetPodLost, ReasonOtherReported},
		"target Pod dies in the move": {false, v1.MigrationRunning, func(p *clusters) { delete(p.to.pods, "dst") }, ReasonTargetPodLost, ReasonOtherReported},
		"no node takes the target Pod": {false, v1.MigrationScheduling, func(p *clusters) {
			hinder(p, p.to, v1.MigrationScheduling)
			unschedulablePod(p.to)
			p.to.now = start.Add(301 * time.Second)
		}, ReasonUnschedulable, ReasonOtherReported},
		"receiving object is deleted": {false, v1.MigrationScheduling, func(p *clusters) { p.to.vmi.DeletionTimestamp = &metav1.Time{Time: start} }, ReasonGuestDeleted, ReasonOtherReported},
		"guest is deleted":            {true, v1.MigrationScheduling, func(p *clusters) { p.from.vmi.DeletionTimestamp = &metav1.Time{Time: start} }, ReasonGuestDeleted, ReasonGuestDeleted},
		"guest ends":                  {true, v1.MigrationPreparingTarget, func(p *clusters) { p.from.vmi.Status.Phase = v1.Succeeded }, ReasonGuestFinal, ReasonGuestFinal},
		"gate is turned off":          {true, v1.MigrationScheduling, func(p *clusters) { p.from.config.Decentralized = false }, ReasonGate, ReasonGate},
		"a volume is plugged in": {true, v1.MigrationScheduling, func(p *clusters) {
			p.from.vmi.Status.VolumeStatus = []v1.VolumeStatus{{Name: "late", HotplugVolume: &v1.HotplugVolumeStatus{}}}
			stateIn(p.from).TargetNode = targetNode
		}, ReasonUnsupported, ReasonUnsupported},
		"state is lost":                {true, v1.MigrationScheduling, func(p *clusters) { p.from.vmi.Status.MigrationState = nil }, ReasonStateLost, ""},
		"state is another migration's": {false, v1.MigrationScheduling, func(p *clusters) { p.to.vmi.Status.MigrationState.MigrationUID = "x" }, ReasonStateLost, ""},
	} {
		t.Run(name, func(t *testing.T) {
			p, w := broughtTo(t, tc.sender, false, tc.phase)
			other := p.from
			if tc.sender {
				other = p.to
			}
			tc.event(p)
			w.passes()
			w.passes()
			if w.migration.Status.Phase != v1.MigrationFailed || w.reason() != tc.here {
				t.Fatalf("phase %q, reason %q; want %q", w.migration.Status.Phase, w.reason(), tc.here)
			}
			if tc.there == "" {
				return
			}
			p.until(func() bool { p.push(); p.pull(); return other.migration.IsFinal() })
			if other.reason() != tc.there || p.at != atSource {
				t.Errorf("the other side ended with %q, want %q; the VMI is at %s", other.reason(), tc.there, p.at)
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
				delete(w.pods, "dst")
				w.passes()
				if w.migration.Status.Phase != v1.MigrationFailed || w.reason() != ReasonOtherReported || !w.released {
					t.Errorf("phase %q, reason %q, released %v", w.migration.Status.Phase, w.reason(), w.released)
				}
			})
		}
	}
}

func TestDecentralizedMigration_Retry(t *testing.T) {
	p, w := broughtTo(t, false, false, v1.MigrationTargetReady)
	w.migration.DeletionTimestamp = &metav1.Time{Time: w.now}
	p.until(func() bool { return p.from.released && p.to.released })
	for _, w := range []*world{p.from, p.to} {
		spec, uid := w.migration.Spec, w.migration.UID+"-2"
		w.migration, w.released = newMigration("again", uid), false
		w.migration.Spec = spec
	}
	p.before, p.begun = "", false
	p.until(func() bool { return p.from.released && p.to.released })
	if p.at != atTarget || p.to.migration.Status.Phase != v1.MigrationSucceeded || p.from.migration.Status.Phase != v1.MigrationSucceeded {
		t.Errorf("the VMI is at %s, receiver %q %q, sender %q %q", p.at,
			p.to.migration.Status.Phase, p.to.reason(), p.from.migration.Status.Phase, p.from.reason())
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
			w.put(tc.lease)
			now := metav1.NewTime(w.now)
			ms := stateIn(w)
			ms.EndTimestamp, ms.Completed, ms.Failed = &now, true, !tc.moved
			w.passes()
			w.passes()
			l := w.lease()
			if l.State != tc.want || w.vmi.Status.Phase != tc.phase || !w.released || l.State == handoff.Fenced && l.Target != "" {
				t.Errorf("lease %+v, phase %s, released %v", l, w.vmi.Status.Phase, w.released)
			}
			if text := string(w.migration.Status.Phase); strings.Contains(text, "Succeeded") != tc.moved {
				t.Errorf("the migration is %s", text)
			}
		})
	}
}
