// SPDX-License-Identifier: Apache-2.0

package migration

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
)

// The explanation of a deadline says what happens then.
func TestDeadline_ExplainsConsequence(t *testing.T) {
	asked := func(w *world) {
		w.vmi.Status.Conditions = []v1.VirtualMachineInstanceCondition{{
			Type: v1.VirtualMachineInstanceMigrationRequired, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(start.Add(-time.Hour)),
		}}
	}
	deleted := func(w *world) { w.migration.DeletionTimestamp = &metav1.Time{Time: w.now} }
	for name, tc := range map[string]struct {
		phase v1.VirtualMachineInstanceMigrationPhase
		given func(*world)
		want  string // empty for no deadline
	}{
		"moving":                    {v1.MigrationRunning, func(*world) {}, "ends with MoveTimeout"},
		"in post-copy":              {v1.MigrationRunning, func(w *world) { w.vmi.Status.MigrationState.Mode = v1.MigrationPostCopy }, ""},
		"asked to abort":            {v1.MigrationRunning, deleted, ""},
		"arrived and not completed": {v1.MigrationRunning, func(w *world) { w.step(handoff.Event{Kind: handoff.TakeOver, Node: targetNode}) }, ""},
		"a live update is open":     {v1.MigrationRunning, each(asked, completed), "ends as Succeeded"},
		"no node takes the Pod":     {v1.MigrationScheduling, unschedulablePod, "ends with TargetPodUnschedulable"},
		"no node takes the Pod, which has even less time": {v1.MigrationScheduling, func(w *world) {
			unschedulablePod(w)
			w.migration.Annotations = map[string]string{v1.MigrationPendingPodTimeoutSecondsAnnotation: "10"}
		}, "ends with TargetPodTimeout"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.until(tc.phase)
			tc.given(w)
			w.passes()
			e := w.explained()
			if e.Phase != tc.phase || (e.Deadline != nil) != (tc.want != "") || !strings.Contains(e.String(), tc.want) {
				t.Errorf("want %q:\n%s", tc.want, e)
			}
			if c := Condition(w.migration.Status, ConditionWaiting); strings.Contains(c.Message, " has until ") != (tc.want != "") {
				t.Errorf("the condition says %q", c.Message)
			}
		})
	}
	t.Run("a receiver waits for an answer", func(t *testing.T) {
		_, w := broughtTo(t, false, false, v1.MigrationTargetReady)
		deleted(w)
		w.passes()
		if e := w.explained(); e.Deadline == nil || !e.Deadline.Equal(w.now.Add(time.Hour)) || e.Overdue != ReasonAborted {
			t.Errorf("%s", e)
		}
	})
}
