// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/migration"
	"github.com/virtloom/virtloom/migration/internal/migrationworld"
)

// The explanation of a deadline says what happens then.
func TestDeadline_ExplainsConsequence(t *testing.T) {
	asked := func(w *world) {
		w.VMI.Status.Conditions = []v1.VirtualMachineInstanceCondition{{
			Type: v1.VirtualMachineInstanceMigrationRequired, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(migrationworld.Start.Add(-time.Hour)),
		}}
	}
	deleted := func(w *world) { w.Migration.DeletionTimestamp = &metav1.Time{Time: w.Now} }
	for name, tc := range map[string]struct {
		phase v1.VirtualMachineInstanceMigrationPhase
		given func(*world)
		want  string // empty for no deadline
	}{
		"moving":                    {v1.MigrationRunning, func(*world) {}, "ends with MoveTimeout"},
		"in post-copy":              {v1.MigrationRunning, func(w *world) { w.VMI.Status.MigrationState.Mode = v1.MigrationPostCopy }, ""},
		"asked to abort":            {v1.MigrationRunning, deleted, ""},
		"arrived and not completed": {v1.MigrationRunning, func(w *world) { w.Step(handoff.Event{Kind: handoff.TakeOver, Node: migrationworld.TargetNode}) }, ""},
		"a live update is open": {v1.MigrationRunning, func(w *world) {
			asked(w)
			w.TargetTakesOver()
		}, "ends as Succeeded"},
		"no node takes the Pod": {v1.MigrationScheduling, func(w *world) { w.MarkUnschedulable("0/2 nodes are available") }, "ends with TargetPodUnschedulable"},
		"no node takes the Pod, which has even less time": {v1.MigrationScheduling, func(w *world) {
			w.MarkUnschedulable("0/2 nodes are available")
			w.Migration.Annotations = map[string]string{v1.MigrationPendingPodTimeoutSecondsAnnotation: "10"}
		}, "ends with TargetPodTimeout"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.Until(tc.phase)
			tc.given(w)
			w.Passes()
			e := w.explained()
			if e.Phase != tc.phase || (e.Deadline != nil) != (tc.want != "") || !strings.Contains(e.String(), tc.want) {
				t.Errorf("want %q:\n%s", tc.want, e)
			}
			if c := migration.Condition(w.Migration.Status, migration.ConditionWaiting); strings.Contains(c.Message, " has until ") != (tc.want != "") {
				t.Errorf("the condition says %q", c.Message)
			}
		})
	}
}
