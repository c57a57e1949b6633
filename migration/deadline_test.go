// SPDX-License-Identifier: Apache-2.0

package migration_test

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/migration"
)

func TestDeadlines(t *testing.T) {
	never := migration.Config{Timeouts: migration.Timeouts{Running: -1}}
	for name, tc := range map[string]struct {
		phase  v1.VirtualMachineInstanceMigrationPhase
		setup  func(*world)
		after  time.Duration
		config migration.Config
		want   migration.Reason
		kept   bool
	}{
		"pending too long":     {phase: v1.MigrationPending, setup: func(w *world) { w.Config.Limits.Cluster = 0; w.Restart() }, after: 25 * time.Hour, want: "PendingTimeout"},
		"S14/70 unschedulable": {phase: v1.MigrationScheduling, setup: unschedulablePod, after: 300 * time.Second, want: migration.ReasonUnschedulable},
		"almost unschedulable": {
			phase: v1.MigrationScheduling, setup: unschedulablePod, after: 299 * time.Second, kept: true, want: migration.ReasonUnschedulable,
		},
		"S14/70 unschedulable by annotation": {
			phase: v1.MigrationScheduling, after: 10 * time.Second, want: migration.ReasonUnschedulable,
			setup: func(w *world) {
				unschedulablePod(w)
				w.Migration.Annotations = map[string]string{v1.MigrationUnschedulablePodTimeoutSecondsAnnotation: "10"}
			},
		},
		"S14/70 not yet unschedulable by annotation": {
			phase: v1.MigrationScheduling, after: 8 * time.Second, kept: true, want: migration.ReasonUnschedulable,
			setup: func(w *world) {
				unschedulablePod(w)
				w.Migration.Annotations = map[string]string{v1.MigrationUnschedulablePodTimeoutSecondsAnnotation: "11"}
			},
		},
		"S14/71 target Pod late by annotation": {
			phase: v1.MigrationScheduling, after: 10 * time.Second, want: "TargetPodTimeout",
			setup: func(w *world) {
				w.Migration.Annotations = map[string]string{v1.MigrationPendingPodTimeoutSecondsAnnotation: "10"}
			},
		},
		"S14/71 target Pod not yet late by annotation": {
			phase: v1.MigrationScheduling, after: 8 * time.Second, kept: true, want: "WaitingForTargetPod",
			setup: func(w *world) {
				w.Migration.Annotations = map[string]string{v1.MigrationPendingPodTimeoutSecondsAnnotation: "11"}
			},
		},
		"S14/124 unschedulable, with a plugged volume": {
			phase: v1.MigrationScheduling, after: 300 * time.Second, want: migration.ReasonUnschedulable,
			setup: func(w *world) {
				unschedulablePod(w)
				w.plug("disk", v1.VolumeReady)
			},
		},
		"S14/70 annotation that is no number": {
			phase: v1.MigrationScheduling, after: 299 * time.Second, kept: true, want: migration.ReasonUnschedulable,
			setup: func(w *world) {
				unschedulablePod(w)
				w.Migration.Annotations = map[string]string{v1.MigrationUnschedulablePodTimeoutSecondsAnnotation: "abc"}
			},
		},
		"S14/71 target Pod not ready":   {phase: v1.MigrationScheduling, after: 900 * time.Second, want: "TargetPodTimeout"},
		"S14/71 target Pod almost late": {phase: v1.MigrationScheduling, after: 890 * time.Second, kept: true, want: "WaitingForTargetPod"},
		"target node not prepared":      {phase: v1.MigrationPreparingTarget, after: 5 * time.Minute, want: "PrepareTimeout"},
		"source node does not begin":    {phase: v1.MigrationTargetReady, after: 5 * time.Minute, want: "BeginTimeout"},
		"move beyond its budget":        {phase: v1.MigrationRunning, after: 24 * time.Hour, kept: true, want: "Aborting"},
		"move without budget":           {phase: v1.MigrationRunning, after: 240 * time.Hour, config: never, kept: true, want: migration.ReasonMoving},
		"post-copy cannot come back":    {phase: v1.MigrationRunning, after: 24 * time.Hour, kept: true, want: migration.ReasonMoving, setup: func(w *world) { w.VMI.Status.MigrationState.Mode = v1.MigrationPostCopy }},
		"phase Scheduled has its own":   {phase: v1.MigrationScheduled, setup: func(w *world) { w.Config.Limits.Inbound = 0; w.Restart(); w.PodBecomesReady(targetNode) }, after: 25 * time.Hour, want: "HandOffTimeout"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			if tc.config.Timeouts != (migration.Timeouts{}) {
				w.Config = tc.config.WithDefaults()
			}
			w.Until(tc.phase)
			if tc.setup != nil {
				tc.setup(w)
			}
			if plan := w.Pass(); !plan.Deadline.IsZero() && plan.Deadline.Before(w.Now) {
				t.Fatalf("deadline %s is over before its time", plan.Deadline)
			}
			w.Now = start.Add(tc.after)
			w.Passes()
			if w.Reason() != tc.want {
				t.Errorf("reason is %q, want %q", w.Reason(), tc.want)
			}
			if tc.kept {
				if w.Migration.IsFinal() {
					t.Errorf("phase is %q, want the migration unfinished", w.Migration.Status.Phase)
				}
				return
			}
			w.mustBeAt(sourceNode)
		})
	}
}

func unschedulablePod(w *world) {
	w.MarkUnschedulable("0/2 nodes are available")
}

// TestPhase_EnteredOnce: what is stored late has the times, and the deadlines, of when it came to be so.
func TestPhase_EnteredOnce(t *testing.T) {
	for name, tc := range map[string]struct {
		entered map[v1.VirtualMachineInstanceMigrationPhase]metav1.Time
		want    time.Duration // after start
	}{
		"now":                         {nil, time.Minute},
		"before":                      {map[v1.VirtualMachineInstanceMigrationPhase]metav1.Time{v1.MigrationPreparingTarget: metav1.NewTime(start.Add(50 * time.Second))}, 50 * time.Second},
		"by a clock that went faster": {map[v1.VirtualMachineInstanceMigrationPhase]metav1.Time{v1.MigrationPreparingTarget: metav1.NewTime(start.Add(time.Hour))}, time.Minute},
		"another phase was":           {map[v1.VirtualMachineInstanceMigrationPhase]metav1.Time{v1.MigrationTargetReady: metav1.NewTime(start)}, time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.Until(v1.MigrationScheduling)
			w.PodBecomesReady(targetNode)
			stored := w.Migration.Status.DeepCopy()
			w.Until(v1.MigrationPreparingTarget) // the VMI says so
			w.Migration.Status, w.Now = *stored, start.Add(time.Minute)
			s := w.Snapshot()
			s.Entered = tc.entered
			p := migration.Decide(s, w.Now)
			last := p.Status.PhaseTransitionTimestamps[len(p.Status.PhaseTransitionTimestamps)-1]
			if last.Phase != v1.MigrationPreparingTarget || !last.PhaseTransitionTimestamp.Equal(&metav1.Time{Time: start.Add(tc.want)}) {
				t.Errorf("entered %+v, want %s after the start", last, tc.want)
			}
			if want := start.Add(tc.want + w.Config.Timeouts.Prepare); !p.Deadline.Equal(want) {
				t.Errorf("deadline %v, want %v", p.Deadline, want)
			}
		})
	}
}
