// SPDX-License-Identifier: Apache-2.0

package migration_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/migration"
	"github.com/virtloom/virtloom/migration/internal/migrationworld"
)

// past returns migrations that ended one after another before start, a minute apart, the last
// one at start: "f" failed, "s" succeeded, "d" failed and being deleted, "m" a user's failed.
func past(annotation, ends string) []*v1.VirtualMachineInstanceMigration {
	var out []*v1.VirtualMachineInstanceMigration
	for i, end := range ends {
		at := metav1.NewTime(start.Add(time.Duration(i-len(ends)+1) * time.Minute))
		m := newMigration(fmt.Sprintf("past-%02d", i), types.UID(fmt.Sprintf("past-%02d", i)))
		m.CreationTimestamp = metav1.NewTime(at.Add(-30 * time.Second))
		m.Status.Phase = v1.MigrationFailed
		if end != 'm' {
			m.Annotations = map[string]string{annotation: ""}
		}
		switch end {
		case 's':
			m.Status.Phase = v1.MigrationSucceeded
		case 'd':
			m.DeletionTimestamp = &at
		}
		m.Status.PhaseTransitionTimestamps = []v1.VirtualMachineInstanceMigrationPhaseTransitionTimestamp{{Phase: m.Status.Phase, PhaseTransitionTimestamp: at}}
		out = append(out, m)
	}
	slices.Reverse(out) // no order is promised
	return out
}

func TestBackoff(t *testing.T) {
	for name, tc := range map[string]struct {
		ends   string
		config migration.Backoff
		want   time.Duration
	}{
		"S14/79 one failure":         {ends: "f", want: 20 * time.Second},
		"S14/79 two failures":        {ends: "ff", want: 40 * time.Second},
		"S14/79 three failures":      {ends: "fff", want: 80 * time.Second},
		"S14/79 four failures":       {ends: "ffff", want: 160 * time.Second},
		"S14/79 five failures":       {ends: "fffff", want: 320 * time.Second},
		"no longer than the cap":     {ends: strings.Repeat("f", 60), want: 320 * time.Second},
		"a cap of one's own":         {ends: "fff", config: migration.Backoff{Max: time.Minute}, want: time.Minute},
		"a start of one's own":       {ends: "fff", config: migration.Backoff{First: time.Second}, want: 4 * time.Second},
		"a cap beyond all failures":  {ends: strings.Repeat("f", 70), config: migration.Backoff{First: time.Nanosecond, Max: math.MaxInt64}, want: math.MaxInt64},
		"turned off":                 {ends: "fff", config: migration.Backoff{First: -1}},
		"S14/80 success at last":     {ends: "fffs"},
		"S14/80 success between":     {ends: "ffsf", want: 20 * time.Second},
		"what is deleted is no end":  {ends: "ffd", want: 40*time.Second - time.Minute},
		"a user's failure is no end": {ends: "ffm", want: 40*time.Second - time.Minute},
		"none before":                {},
	} {
		for _, annotation := range []string{v1.EvacuationMigrationAnnotation, v1.WorkloadUpdateMigrationAnnotation} { // S14/82
			t.Run(name+" "+annotation, func(t *testing.T) {
				until, failures := tc.config.Until(past(annotation, tc.ends))
				if tc.want == 0 {
					if !until.IsZero() || failures != 0 {
						t.Errorf("until %s for %d failures, want none", until, failures)
					}
					return
				}
				if got := until.Sub(start); got != tc.want || failures == 0 {
					t.Errorf("delay is %s for %d failures, want %s", got, failures, tc.want)
				}
			})
		}
	}
}

// TestBackoff_LatestEndCounts has an evacuation wait while a user's migration passes it.
func TestBackoff_LatestEndCounts(t *testing.T) {
	for name, tc := range map[string]struct {
		user v1.VirtualMachineInstanceMigrationPhase
		// last says that the evacuation ends after the user's.
		last bool
		want time.Duration
	}{
		"a failure after the success":  {v1.MigrationSucceeded, true, 20 * time.Second},
		"a success after the failure":  {v1.MigrationSucceeded, false, 0},
		"a user's failure, either way": {v1.MigrationFailed, true, 20 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			ended := past(v1.EvacuationMigrationAnnotation, "fm")
			auto, user := ended[1], ended[0]
			user.Status.Phase = tc.user
			user.Status.PhaseTransitionTimestamps[0].Phase = tc.user
			at, before := metav1.NewTime(start), metav1.NewTime(start.Add(-time.Second))
			if !tc.last {
				at, before = before, at
			}
			auto.Status.PhaseTransitionTimestamps[0].PhaseTransitionTimestamp = at
			user.Status.PhaseTransitionTimestamps[0].PhaseTransitionTimestamp = before
			until, failures := migration.Backoff{}.Until(ended)
			if tc.want == 0 && failures != 0 || tc.want > 0 && !until.Equal(start.Add(tc.want)) {
				t.Errorf("until %s for %d failures, want %s", until.Sub(start), failures, tc.want)
			}
		})
	}
}

// automaticAfter is a world whose migration is an evacuation after failures.
func automaticAfter(t *testing.T, ends string) *world {
	w := newWorld(t)
	w.Migration.Annotations = map[string]string{v1.EvacuationMigrationAnnotation: sourceNode}
	w.Migration.CreationTimestamp = metav1.NewTime(start.Add(time.Second))
	w.Others = past(v1.EvacuationMigrationAnnotation, ends)
	return w
}

func TestS14_79AnAutomaticMigrationBacksOffAndStartsByItself(t *testing.T) {
	w := automaticAfter(t, "ff")
	w.Pass()
	plan := w.Passes()
	if w.Reason() != migration.ReasonBackoff || !plan.RequeueAt.Equal(start.Add(40*time.Second)) || w.Pods["dst"] != nil {
		t.Fatalf("reason %q, wake %s, target Pod %v", w.Reason(), plan.RequeueAt, w.Pods["dst"])
	}
	warnings := slices.DeleteFunc(slices.Clone(w.Events), func(e migration.Event) bool { return e.Reason != "MigrationBackoff" })
	if len(warnings) != 1 || !warnings[0].OnVMI || !warnings[0].Warning {
		t.Errorf("events are %+v, want one warning of the VMI", warnings)
	}
	w.Now = plan.RequeueAt.Add(-time.Millisecond)
	if w.Pass(); w.Pods["dst"] != nil {
		t.Fatal("it did not wait to the end")
	}
	w.Now = plan.RequeueAt
	if w.Passes(); w.Pods["dst"] == nil {
		t.Errorf("it waits on: %+v", w.Migration.Status.Conditions)
	}
}

func TestBackoff_Exceptions(t *testing.T) {
	for name, change := range map[string]func(*v1.VirtualMachineInstanceMigration){
		"a user's migration": func(m *v1.VirtualMachineInstanceMigration) { m.Annotations = nil },
		"KubeVirt's annotation": func(m *v1.VirtualMachineInstanceMigration) {
			m.Annotations[v1.FuncTestForceIgnoreMigrationBackoffAnnotation] = ""
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := automaticAfter(t, "ffff")
			change(w.Migration)
			if w.Passes(); w.Pods["dst"] == nil {
				t.Errorf("it waits: %+v", w.Migration.Status.Conditions)
			}
		})
	}
}

// rivals are a back-off evacuation and a user's migration of the same VMI, and what became of
// them.
type rivals struct {
	auto, user *v1.VirtualMachineInstanceMigration
	past       []*v1.VirtualMachineInstanceMigration
	pods       []types.UID
}

func (p rivals) seenBy(m, other *v1.VirtualMachineInstanceMigration) migration.Snapshot {
	s := migration.Snapshot{Migration: m, Others: append(slices.Clone(p.past), other), Config: migration.Config{}.WithDefaults()}
	s.Targets = slices.DeleteFunc(slices.Clone(p.pods), func(u types.UID) bool { return u == m.UID })
	if slices.Contains(p.pods, m.UID) {
		s.TargetPod = (&migrationworld.World{}).NewPod("dst", "", m.UID)
	}
	return s
}

func TestOlder_TotalOrder(t *testing.T) {
	phases := []v1.VirtualMachineInstanceMigrationPhase{v1.MigrationPhaseUnset, v1.MigrationPending, v1.MigrationScheduling, v1.MigrationRunning}
	for _, userAt := range []time.Duration{-10 * time.Second, 0, time.Second, 10 * time.Second, 39 * time.Second, 40 * time.Second, time.Hour} {
		for _, autoPhase := range phases {
			for _, userPhase := range phases {
				for pods := range 4 {
					p := rivals{auto: newMigration("auto", "auto"), user: newMigration("user", "user"), past: past(v1.EvacuationMigrationAnnotation, "ff")}
					p.auto.Annotations = map[string]string{v1.EvacuationMigrationAnnotation: sourceNode}
					p.user.CreationTimestamp = metav1.NewTime(start.Add(userAt))
					p.auto.Status.Phase, p.user.Status.Phase = autoPhase, userPhase
					for i, u := range []types.UID{"auto", "user"} {
						if pods&(1<<i) != 0 {
							p.pods = append(p.pods, u)
						}
					}
					autoWaits := p.seenBy(p.auto, p.user).Older() != nil
					userWaits := p.seenBy(p.user, p.auto).Older() != nil
					if autoWaits == userWaits {
						t.Errorf("user made at %s, phases %q and %q, Pods of %v: both wait is %v",
							userAt, autoPhase, userPhase, p.pods, autoWaits)
					}
				}
			}
		}
	}
}

func TestUserMigration_OvertakesBackoff(t *testing.T) {
	for name, tc := range map[string]struct {
		made  time.Duration
		phase v1.VirtualMachineInstanceMigrationPhase
		waits bool
	}{
		"made while the other backs off":        {10 * time.Second, v1.MigrationPending, false},
		"made after the end of the back-off":    {41 * time.Second, v1.MigrationPending, true},
		"made while the other backed off, late": {10 * time.Second, v1.MigrationScheduling, true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.Others = past(v1.EvacuationMigrationAnnotation, "ff")
			auto := newMigration("auto", "auto")
			auto.Annotations = map[string]string{v1.EvacuationMigrationAnnotation: sourceNode}
			auto.Status.Phase = tc.phase
			w.Others = append(w.Others, auto)
			w.Now = start.Add(tc.made)
			w.Migration.CreationTimestamp = metav1.NewTime(w.Now)
			w.Passes()
			if waits := w.Reason() == migration.ReasonWaitingForMigration; waits != tc.waits || (w.Pods["dst"] == nil) != tc.waits {
				t.Errorf("reason %q, target Pod %v; waiting is to be %v", w.Reason(), w.Pods["dst"], tc.waits)
			}
		})
	}
}
