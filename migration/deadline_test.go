// SPDX-License-Identifier: Apache-2.0

package migration

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"
)

func TestDeadlines(t *testing.T) {
	never := Config{Timeouts: Timeouts{Running: -1}}
	for name, tc := range map[string]struct {
		phase  v1.VirtualMachineInstanceMigrationPhase
		setup  func(*world)
		after  time.Duration
		config Config
		want   Reason
		kept   bool
	}{
		"pending too long":     {phase: v1.MigrationPending, setup: func(w *world) { w.config.Limits.Cluster = 0; w.restart() }, after: 25 * time.Hour, want: ReasonPendingTimeout},
		"S14/70 unschedulable": {phase: v1.MigrationScheduling, setup: unschedulablePod, after: 300 * time.Second, want: ReasonUnschedulable},
		"almost unschedulable": {
			phase: v1.MigrationScheduling, setup: unschedulablePod, after: 299 * time.Second, kept: true, want: ReasonUnschedulable,
		},
		"S14/70 unschedulable by annotation": {
			phase: v1.MigrationScheduling, after: 10 * time.Second, want: ReasonUnschedulable,
			setup: func(w *world) {
				unschedulablePod(w)
				w.migration.Annotations = map[string]string{v1.MigrationUnschedulablePodTimeoutSecondsAnnotation: "10"}
			},
		},
		"S14/70 not yet unschedulable by annotation": {
			phase: v1.MigrationScheduling, after: 8 * time.Second, kept: true, want: ReasonUnschedulable,
			setup: func(w *world) {
				unschedulablePod(w)
				w.migration.Annotations = map[string]string{v1.MigrationUnschedulablePodTimeoutSecondsAnnotation: "11"}
			},
		},
		"S14/71 target Pod late by annotation": {
			phase: v1.MigrationScheduling, after: 10 * time.Second, want: ReasonTargetPodTimeout,
			setup: func(w *world) {
				w.migration.Annotations = map[string]string{v1.MigrationPendingPodTimeoutSecondsAnnotation: "10"}
			},
		},
		"S14/71 target Pod not yet late by annotation": {
			phase: v1.MigrationScheduling, after: 8 * time.Second, kept: true, want: ReasonWaitingForTargetPod,
			setup: func(w *world) {
				w.migration.Annotations = map[string]string{v1.MigrationPendingPodTimeoutSecondsAnnotation: "11"}
			},
		},
		"S14/124 unschedulable, with a plugged volume": {
			phase: v1.MigrationScheduling, after: 300 * time.Second, want: ReasonUnschedulable,
			setup: func(w *world) {
				unschedulablePod(w)
				w.plug("disk", v1.VolumeReady)
			},
		},
		"S14/70 annotation that is no number": {
			phase: v1.MigrationScheduling, after: 299 * time.Second, kept: true, want: ReasonUnschedulable,
			setup: func(w *world) {
				unschedulablePod(w)
				w.migration.Annotations = map[string]string{v1.MigrationUnschedulablePodTimeoutSecondsAnnotation: "abc"}
			},
		},
		"S14/71 target Pod not ready":   {phase: v1.MigrationScheduling, after: 900 * time.Second, want: ReasonTargetPodTimeout},
		"S14/71 target Pod almost late": {phase: v1.MigrationScheduling, after: 890 * time.Second, kept: true, want: ReasonWaitingForTargetPod},
		"target node not prepared":      {phase: v1.MigrationPreparingTarget, after: 5 * time.Minute, want: ReasonPrepareTimeout},
		"source node does not begin":    {phase: v1.MigrationTargetReady, after: 5 * time.Minute, want: ReasonBeginTimeout},
		"move beyond its budget":        {phase: v1.MigrationRunning, after: 24 * time.Hour, kept: true, want: ReasonAborting},
		"move without budget":           {phase: v1.MigrationRunning, after: 240 * time.Hour, config: never, kept: true, want: ReasonMoving},
		"post-copy cannot come back":    {phase: v1.MigrationRunning, after: 24 * time.Hour, kept: true, want: ReasonMoving, setup: func(w *world) { w.vmi.Status.MigrationState.Mode = v1.MigrationPostCopy }},
		"phase Scheduled has its own":   {phase: v1.MigrationScheduled, setup: func(w *world) { w.config.Limits.Inbound = 0; w.restart(); w.podBecomesReady(targetNode) }, after: 25 * time.Hour, want: ReasonHandOffTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			if tc.config.Timeouts != (Timeouts{}) {
				w.config = tc.config.WithDefaults()
			}
			w.until(tc.phase)
			if tc.setup != nil {
				tc.setup(w)
			}
			if plan := w.pass(); !plan.Deadline.IsZero() && plan.Deadline.Before(w.now) {
				t.Fatalf("deadline %s is over before its time", plan.Deadline)
			}
			w.now = start.Add(tc.after)
			w.passes()
			if w.reason() != tc.want {
				t.Errorf("reason is %q, want %q", w.reason(), tc.want)
			}
			if tc.kept {
				if w.migration.IsFinal() {
					t.Errorf("phase is %q, want the migration unfinished", w.migration.Status.Phase)
				}
				return
			}
			w.mustBeAt(sourceNode)
		})
	}
}

func unschedulablePod(w *world) {
	w.pods["dst"].Status.Conditions = []corev1.PodCondition{{
		Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: "0/2 nodes are available",
	}}
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
			w.until(v1.MigrationScheduling)
			w.podBecomesReady(targetNode)
			stored := w.migration.Status.DeepCopy()
			w.until(v1.MigrationPreparingTarget) // the VMI says so
			w.migration.Status, w.now = *stored, start.Add(time.Minute)
			s := w.snapshot()
			s.Entered = tc.entered
			p := Decide(s, w.now)
			last := p.Status.PhaseTransitionTimestamps[len(p.Status.PhaseTransitionTimestamps)-1]
			if last.Phase != v1.MigrationPreparingTarget || !last.PhaseTransitionTimestamp.Equal(&metav1.Time{Time: start.Add(tc.want)}) {
				t.Errorf("entered %+v, want %s after the start", last, tc.want)
			}
			if want := start.Add(tc.want + w.config.Timeouts.Prepare); !p.Deadline.Equal(want) {
				t.Errorf("deadline %v, want %v", p.Deadline, want)
			}
		})
	}
}
