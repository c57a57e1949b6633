// SPDX-License-Identifier: Apache-2.0

package migration_test

import (
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/migration/internal/migrationworld"
)

// survive runs a pass and reports whether it crashed.
func (w *world) survive() (crashed bool) {
	defer func() {
		if p := recover(); p != nil {
			if _, ours := p.(migrationworld.Crash); !ours {
				panic(p)
			}
			crashed = true
		}
	}()
	w.Pass()
	return false
}

// play lets everybody act, the controller after each of the others, until the
// migration is at rest. The controller is restarted after a crash.
func (w *world) play(act func(*world)) {
	w.t.Helper()
	for range 30 {
		if w.survive() {
			w.Restart()
		}
		act(w)
		w.PodBecomesReady(targetNode)
		w.TargetPrepares()
		if w.survive() {
			w.Restart()
		}
		w.SourceBegins()
		if w.survive() {
			w.Restart()
		}
		w.TargetTakesOver()
	}
	w.CrashAfter = 0
	w.Passes()
}

func TestCrash_OutcomeUnchanged(t *testing.T) {
	calm := newWorld(t)
	calm.play(func(*world) {})
	for at := 1; at <= calm.Writes; at++ {
		t.Run(fmt.Sprintf("after write %d", at), func(t *testing.T) {
			w := newWorld(t)
			w.CrashAfter = at
			w.play(func(*world) {})
			if w.Migration.Status.Phase != v1.MigrationSucceeded {
				t.Errorf("phase is %q (%s), want Succeeded", w.Migration.Status.Phase, w.Reason())
			}
			w.mustBeAt(targetNode)
		})
	}
}

func TestCrash_AbortLeavesOneOwner(t *testing.T) {
	for _, ph := range unfinished {
		for at := 1; at <= 12; at++ {
			t.Run(fmt.Sprintf("from %s after write %d", ph, at), func(t *testing.T) {
				w := newWorld(t)
				w.Until(ph)
				w.Writes, w.CrashAfter = 0, at
				w.Migration.DeletionTimestamp = &metav1.Time{Time: w.Now}
				w.play(func(w *world) {
					if ph == v1.MigrationRunning && w.VMI.Status.MigrationState.AbortRequested {
						w.SourceReverts("aborted by request")
					}
				})
				switch w.Migration.Status.Phase {
				case v1.MigrationFailed:
					w.mustBeAt(sourceNode)
				case v1.MigrationSucceeded:
					w.mustBeAt(targetNode)
				default:
					t.Errorf("phase is %q, want an end", w.Migration.Status.Phase)
				}
			})
		}
	}
}
