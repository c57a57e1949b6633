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
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/migration"
)

// specRow is a number of section 14 of the specification: given, when, then. A VMI
// without a lease is one of a stock virt-controller, whose protocol the rows describe.
type specRow struct {
	// from is the phase that the migration is brought to first.
	from v1.VirtualMachineInstanceMigrationPhase
	// given changes the world.
	given func(*world)
	// want is the phase in which the migration comes to rest; empty is Unset.
	want v1.VirtualMachineInstanceMigrationPhase
	// then looks at what else there is; nil for nothing.
	then func(*world) error
}

func condition(t v1.VirtualMachineInstanceConditionType, s corev1.ConditionStatus) func(*world) {
	return func(w *world) {
		w.VMI.Status.Conditions = append(w.VMI.Status.Conditions, v1.VirtualMachineInstanceCondition{Type: t, Status: s})
	}
}

func unleased(w *world) { delete(w.VMI.Annotations, handoff.Annotation) }

// completed lets the nodes finish the migration.
func completed(w *world) { w.TargetTakesOver() }

// each does one after the other.
func each(steps ...func(*world)) func(*world) {
	return func(w *world) {
		for _, s := range steps {
			s(w)
		}
	}
}

func moveState(edit func(*v1.VirtualMachineInstanceMigrationState)) func(*world) {
	return func(w *world) {
		if w.VMI.Status.MigrationState == nil {
			w.VMI.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{MigrationUID: ourUID}
		}
		edit(w.VMI.Status.MigrationState)
	}
}

func hasEvent(reason string, warning bool) func(*world) error {
	return func(w *world) error {
		if !slices.ContainsFunc(w.Events, func(e migration.Event) bool { return e.Reason == reason && e.Warning == warning }) {
			return fmt.Errorf("no event %s among %+v", reason, w.Events)
		}
		return nil
	}
}

func both(checks ...func(*world) error) func(*world) error {
	return func(w *world) error {
		for _, c := range checks {
			if err := c(w); err != nil {
				return err
			}
		}
		return nil
	}
}

func noTarget(w *world) error {
	if w.Pods["dst"] != nil {
		return fmt.Errorf("there is a target Pod")
	}
	return nil
}

func guestStays(w *world) error {
	if l := w.Lease(); l.State != handoff.Owned || l.Holder != sourceNode {
		return fmt.Errorf("the lease is %+v", l)
	}
	return nil
}

var phaseRows = map[string]specRow{
	"S14/13 nothing known yet": {want: v1.MigrationScheduling},
	"S14/14 another owns the guest": {
		given: func(w *world) {
			o := newMigration("other", "other-uid")
			o.Status.Phase = v1.MigrationRunning
			w.Others, w.VMI.Status.MigrationState = []*v1.VirtualMachineInstanceMigration{o}, &v1.VirtualMachineInstanceMigrationState{MigrationUID: "other-uid"}
		},
		want: v1.MigrationFailed, then: both(hasEvent("FailedMigration", true), noTarget),
	},
	"S14/17 capacity is free": {want: v1.MigrationScheduling, then: func(w *world) error {
		if len(w.Pods) != 2 || w.Pods["dst"].Labels[v1.MigrationJobLabel] != string(ourUID) {
			return fmt.Errorf("Pods are %v", w.Pods)
		}
		return nil
	}},
	"S14/19 the target Pod is Pending": {from: v1.MigrationScheduling, want: v1.MigrationScheduling},
	"S14/23 the target Pod is ready": {
		from: v1.MigrationScheduling, want: v1.MigrationScheduled,
		given: func(w *world) { w.Config.Limits.Inbound = 0; w.Restart(); w.PodBecomesReady(targetNode) },
	},
	"S14/25 the hand-off": {from: v1.MigrationScheduling, given: func(w *world) { w.PodBecomesReady(targetNode) }, want: v1.MigrationPreparingTarget,
		then: func(w *world) error {
			ms := w.VMI.Status.MigrationState
			if ms.TargetNode != targetNode || ms.TargetPod != "dst" || ms.SourceNode != sourceNode || ms.MigrationUID != ourUID || ms.VMIMConfigurationOptions == nil {
				return fmt.Errorf("the state is %+v", ms)
			}
			if l := w.VMI.Labels[v1.MigrationTargetNodeNameLabel]; l != targetNode {
				return fmt.Errorf("the label is %q", l)
			}
			return nil
		}},
	"S14/26 an older migration left its state": {
		from: v1.MigrationScheduling,
		given: each(func(w *world) {
			w.VMI.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{MigrationUID: "old", Completed: true}
		}, func(w *world) { w.PodBecomesReady(targetNode) }),
		want: v1.MigrationPreparingTarget,
		then: func(w *world) error {
			if uid := w.VMI.Status.MigrationState.MigrationUID; uid != ourUID {
				return fmt.Errorf("the state is of %s", uid)
			}
			return nil
		},
	},
	"S14/28 the state names the target node": {from: v1.MigrationPreparingTarget, want: v1.MigrationPreparingTarget},
	"S14/29 the state names its address": {
		from: v1.MigrationPreparingTarget, given: moveState(func(m *v1.VirtualMachineInstanceMigrationState) { m.TargetNodeAddress = "192.0.2.1" }),
		want: v1.MigrationTargetReady,
	},
	"S14/31 completed": {from: v1.MigrationRunning, given: completed, want: v1.MigrationSucceeded, then: hasEvent(migration.EventSucceeded, false)},
	"S14/32 completed, CPUs are being plugged": {
		from: v1.MigrationRunning, given: each(completed, condition(v1.VirtualMachineInstanceVCPUChange, corev1.ConditionTrue)), want: v1.MigrationRunning,
	},
	"S14/32 completed, memory is being plugged": {
		from: v1.MigrationRunning, given: each(completed, condition(v1.VirtualMachineInstanceMemoryChange, corev1.ConditionTrue)), want: v1.MigrationRunning,
	},
	"S14/34 completed, another one is required": {
		from: v1.MigrationRunning, given: each(completed, condition(v1.VirtualMachineInstanceMigrationRequired, corev1.ConditionTrue)), want: v1.MigrationRunning,
	},
	"S14/34 completed, another one is pending": {
		from: v1.MigrationRunning, given: each(completed, condition(v1.VirtualMachineInstanceMigrationRequired, corev1.ConditionFalse)), want: v1.MigrationSucceeded,
	},
	"S14/35 the end": {from: v1.MigrationRunning, given: completed, want: v1.MigrationSucceeded, then: func(w *world) error {
		if ms := w.Migration.Status.MigrationState; ms == nil || !ms.Completed || len(w.Migration.Finalizers) > 0 {
			return fmt.Errorf("state %+v, finalizers %v", ms, w.Migration.Finalizers)
		}
		return nil
	}},
	"S14/41 the target Pod dies in PreparingTarget": lostTarget(v1.MigrationPreparingTarget),
	"S14/41 the target Pod dies in TargetReady":     lostTarget(v1.MigrationTargetReady),
	"S14/43 failed, and it had begun": {
		from: v1.MigrationRunning, want: v1.MigrationFailed,
		given: each(func(w *world) {
			begun := metav1.NewTime(w.Now.Add(-30 * time.Second))
			w.VMI.Status.MigrationState.StartTimestamp = &begun
		}, func(w *world) { w.SourceReverts("the link broke") }),
		then: func(w *world) error {
			if ms := w.VMI.Status.MigrationState; !ms.Failed || !ms.StartTimestamp.Time.Equal(w.Now.Add(-30*time.Second)) {
				return fmt.Errorf("the state is %+v", ms)
			}
			return nil
		},
	},
	"S14/44 failed before the handoff": {
		from: v1.MigrationScheduling, given: each(unleased, func(w *world) { w.Pods["dst"].Status.Phase = corev1.PodFailed }), want: v1.MigrationFailed,
		then: both(noTarget, func(w *world) error {
			if w.VMI.Status.MigrationState != nil || len(w.Migration.Finalizers) > 0 {
				return fmt.Errorf("state %+v, finalizers %v", w.VMI.Status.MigrationState, w.Migration.Finalizers)
			}
			return nil
		}),
	},
	"S14/46 the state is cleared": {from: v1.MigrationRunning, given: each(unleased, func(w *world) { w.VMI.Status.MigrationState = nil }), want: v1.MigrationFailed},
	"S14/46 the state is another's": {
		from: v1.MigrationRunning, given: each(unleased, moveState(func(m *v1.VirtualMachineInstanceMigrationState) { m.MigrationUID = "other" })), want: v1.MigrationFailed,
	},
	"S14/47 deleted while it waits": {
		from: v1.MigrationPending, given: func(w *world) { w.Migration.DeletionTimestamp = &metav1.Time{Time: w.Now} }, want: v1.MigrationFailed,
		then: both(guestStays, func(w *world) error {
			if migration.Condition(w.Migration.Status, v1.VirtualMachineInstanceMigrationAbortRequested) == nil {
				return fmt.Errorf("conditions are %+v", w.Migration.Status.Conditions)
			}
			return nil
		}),
	},
	"S14/49 deleted while it moves": {
		from: v1.MigrationRunning, given: func(w *world) { w.Migration.DeletionTimestamp = &metav1.Time{Time: w.Now} }, want: v1.MigrationRunning,
		then: func(w *world) error {
			if !w.VMI.Status.MigrationState.AbortRequested {
				return fmt.Errorf("no abort is requested")
			}
			if w.Pass(); w.Acted > 0 {
				return fmt.Errorf("it is requested again")
			}
			return nil
		},
	},
	"S14/52 failed on a guest that an older one has moved": {
		from: v1.MigrationScheduling, want: v1.MigrationFailed,
		given: each(unleased, moveState(func(m *v1.VirtualMachineInstanceMigrationState) { m.MigrationUID, m.Completed = "old", true }), func(w *world) {
			w.Pods["dst"].Status.Phase = corev1.PodFailed
		}),
		then: both(noTarget, func(w *world) error {
			if ms := w.VMI.Status.MigrationState; ms.MigrationUID != "old" || ms.Failed || !w.Released {
				return fmt.Errorf("state %+v, released %v", ms, w.Released)
			}
			return nil
		}),
	},
	"S14/122 the target is the source": {
		from: v1.MigrationScheduling, given: func(w *world) { w.PodBecomesReady(sourceNode) }, want: v1.MigrationFailed,
		then: both(noTarget, guestStays, func(w *world) error {
			if w.Reason() != "TargetIsSource" {
				return fmt.Errorf("reason is %q", w.Reason())
			}
			return nil
		}),
	},
}

func init() {
	phaseRows["S14/50 the guest is gone while it waits"] = specRow{
		from: v1.MigrationPending, given: func(w *world) { w.VMI = nil }, want: v1.MigrationFailed, then: isCollected(true),
	}
	phaseRows["S14/50 the guest is gone after the end"] = specRow{
		from: v1.MigrationSucceeded, given: func(w *world) { w.VMI = nil }, want: v1.MigrationSucceeded, then: isCollected(true),
	}
	phaseRows["S14/50 there never was a guest"] = specRow{
		given: func(w *world) { w.VMI = nil }, want: v1.MigrationFailed, then: isCollected(false),
	}
	stray := func(edit func(*corev1.Pod)) func(*world) {
		return func(w *world) {
			p := w.NewPod("stray", "elsewhere", "migration-of-yore")
			p.Status.Phase = corev1.PodRunning
			edit(p)
			w.Pods["stray"] = p
		}
	}
	phaseRows["S14/61 another Pod of the guest"] = specRow{given: stray(func(*corev1.Pod) {}), want: v1.MigrationPending, then: both(noTarget, func(w *world) error {
		c := migration.Condition(w.Migration.Status, migration.ConditionWaiting)
		if w.Reason() != migration.ReasonWaitingForPod || !strings.Contains(c.Message, `"stray"`) {
			return fmt.Errorf("it says %+v", c)
		}
		if _, wanted := w.Snapshot().Claim(w.Now); wanted {
			return fmt.Errorf("it takes a slot")
		}
		return nil
	})}
	phaseRows["S14/62 another Pod that has ended"] = specRow{given: stray(func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }), want: v1.MigrationScheduling}
	phaseRows["S14/61 another Pod on its way out"] = specRow{given: stray(func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: start} }), want: v1.MigrationScheduling}
	phaseRows["S14/61 another Pod goes"] = specRow{given: each(stray(func(*corev1.Pod) {}), func(w *world) { w.Passes(); delete(w.Pods, "stray") }), want: v1.MigrationScheduling}
	phaseRows["S14/127 cancelled when the target Pod was just made"] = specRow{
		from: v1.MigrationPending, want: v1.MigrationFailed, then: both(noTarget, guestStays),
		given: func(w *world) {
			w.PodsUnseen = true
			for w.Pods["dst"] == nil {
				w.Pass()
			}
			w.Migration.DeletionTimestamp = &metav1.Time{Time: w.Now}
			w.Pass() // the cache does not show the Pod: nothing may be concluded
			w.PodsUnseen = false
		},
	}
	phaseRows["S14/128 status and finalizer"] = specRow{from: v1.MigrationRunning, given: completed, want: v1.MigrationSucceeded, then: func(w *world) error {
		if !w.Released || w.ReleasedBefore {
			return fmt.Errorf("released %v, before the status was stored %v", w.Released, w.ReleasedBefore)
		}
		return nil
	}}
}

func isCollected(want bool) func(*world) error {
	return func(w *world) error {
		w.Passes()
		if got := slices.Contains(w.Collected, "m"); got != want || !w.Released {
			return fmt.Errorf("the migration is deleted: %v, want %v; released %v", got, want, w.Released)
		}
		return nil
	}
}

// lostTarget: the controller rolls back the migration state on both nodes, and start and
// end are recorded.
func lostTarget(from v1.VirtualMachineInstanceMigrationPhase) specRow {
	return specRow{
		from: from, given: func(w *world) { w.Pods["dst"].Status.Phase = corev1.PodFailed }, want: v1.MigrationFailed,
		then: both(guestStays, hasEvent("FailedMigration", true), func(w *world) error {
			if n := len(slices.DeleteFunc(slices.Clone(w.Events), func(e migration.Event) bool { return !e.Warning })); n != 2 {
				return fmt.Errorf("%d warnings: %+v", n, w.Events)
			}
			if ms := w.VMI.Status.MigrationState; !ms.Failed || !ms.Completed || ms.StartTimestamp == nil || ms.EndTimestamp == nil {
				return fmt.Errorf("the state is %+v", ms)
			}
			return nil
		}),
	}
}

// Rows 38 and 40 are about several phases each.
func init() {
	for _, ph := range unfinished {
		phaseRows["S14/38 the guest has ended, in "+name(ph)] = specRow{
			from: ph, given: func(w *world) { w.VMI.Status.Phase = v1.Succeeded }, want: v1.MigrationFailed, then: noTarget,
		}
	}
	for _, ph := range unfinished {
		phaseRows["S14/40 the nodes say that it failed, in "+name(ph)] = specRow{
			from: ph, want: v1.MigrationFailed, then: noTarget,
			given: each(unleased, moveState(func(m *v1.VirtualMachineInstanceMigrationState) {
				m.Failed, m.Completed, m.FailureReason = true, true, "qemu says no"
			})),
		}
	}
}

func name(ph v1.VirtualMachineInstanceMigrationPhase) string {
	if ph == v1.MigrationPhaseUnset {
		return "Unset"
	}
	return string(ph)
}

func TestSpecification_Phases(t *testing.T) {
	for name, tc := range phaseRows {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.Until(tc.from)
			if tc.given != nil {
				tc.given(w)
			}
			w.Passes()
			if w.Migration.Status.Phase != tc.want {
				t.Fatalf("phase is %q (%s), want %q", w.Migration.Status.Phase, w.Reason(), tc.want)
			}
			if tc.then == nil {
				return
			}
			if err := tc.then(w); err != nil {
				t.Error(err)
			}
		})
	}
}
