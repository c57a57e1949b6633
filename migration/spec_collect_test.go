// SPDX-License-Identifier: Apache-2.0

package migration_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"
)

func TestS14_100And101FinishedMigrationsAreCollected(t *testing.T) {
	finished := func(n int, ph v1.VirtualMachineInstanceMigrationPhase, age time.Duration) (all []*v1.VirtualMachineInstanceMigration) {
		for i := range n {
			o := newMigration(fmt.Sprintf("%s-%d", strings.ToLower(string(ph)), i), "")
			o.Status.Phase = ph
			o.CreationTimestamp = metav1.NewTime(start.Add(time.Duration(i)*time.Second - age))
			all = append(all, o)
		}
		return all
	}
	for name, tc := range map[string]struct {
		others []*v1.VirtualMachineInstanceMigration
		end    bool
		want   []string // of those that are left
	}{
		"S14/100 many of each": {
			others: slices.Concat(finished(10, v1.MigrationFailed, 3*time.Hour), finished(10, v1.MigrationSucceeded, 2*time.Hour)), end: true,
			want: []string{"succeeded-6", "succeeded-7", "succeeded-8", "succeeded-9"},
		},
		"S14/100 it has not ended": {others: finished(10, v1.MigrationFailed, time.Hour), want: []string{
			"failed-0", "failed-1", "failed-2", "failed-3", "failed-4", "failed-5", "failed-6", "failed-7", "failed-8", "failed-9",
		}},
		"S14/101 the oldest go": {others: finished(7, v1.MigrationSucceeded, time.Hour), end: true, want: []string{
			"succeeded-3", "succeeded-4", "succeeded-5", "succeeded-6",
		}},
		"S14/100 the unfinished stay": {others: slices.Concat(finished(7, v1.MigrationSucceeded, time.Hour), finished(10, v1.MigrationPending, -time.Hour)), end: true, want: slices.Concat(
			[]string{"pending-0", "pending-1", "pending-2", "pending-3", "pending-4", "pending-5", "pending-6", "pending-7", "pending-8", "pending-9"},
			[]string{"succeeded-3", "succeeded-4", "succeeded-5", "succeeded-6"},
		)},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.Others = tc.others
			w.Until(v1.MigrationRunning)
			if tc.end {
				w.TargetTakesOver()
			}
			w.Passes()
			var left []string
			for _, o := range w.Others {
				left = append(left, o.Name)
			}
			slices.Sort(left)
			if !slices.Equal(left, tc.want) {
				t.Errorf("left are %v, want %v", left, tc.want)
			}
		})
	}
}
