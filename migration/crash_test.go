// SPDX-License-Identifier: Apache-2.0

package migration

import (
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"
)

// survive runs a pass and reports whether it crashed.
func (w *world) survive() (crashed bool) {
	defer func() {
		if p := recover(); p != nil {
			if _, ours := p.(crash); !ours {
				panic(p)
			}
			crashed = true
		}
	}()
	w.pass()
	return false
}

// play lets everybody act, the controller after each of the others, until the
// migration is at rest. The controller is restarted after a crash.
func (w *world) play(act func(*world)) {
	w.t.Helper()
	for range 30 {
		if w.survive() {
			w.restart()
		}
		act(w)
		w.podBecomesReady(targetNode)
		w.targetPrepares()
		if w.survive() {
			w.restart()
		}
		w.sourceBegins()
		if w.survive() {
			w.restart()
		}
		w.targetTakesOver()
	}
	w.crashAfter = 0
	w.passes()
}

func TestCrash_OutcomeUnchanged(t *testing.T) {
	calm := newWorld(t)
	calm.play(func(*world) {})
	for at := 1; at <= calm.writes; at++ {
		t.Run(fmt.Sprintf("after write %d", at), func(t *testing.T) {
			w := newWorld(t)
			w.crashAfter = at
			w.play(func(*world) {})
			if w.migration.Status.Phase != v1.MigrationSucceeded {
				t.Errorf("phase is %q (%s), want Succeeded", w.migration.Status.Phase, w.reason())
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
				w.until(ph)
				w.writes, w.crashAfter = 0, at
				w.migration.DeletionTimestamp = &metav1.Time{Time: w.now}
				w.play(func(w *world) {
					if ph == v1.MigrationRunning && w.vmi.Status.MigrationState.AbortRequested {
						w.sourceReverts("aborted by request")
					}
				})
				switch w.migration.Status.Phase {
				case v1.MigrationFailed:
					w.mustBeAt(sourceNode)
				case v1.MigrationSucceeded:
					w.mustBeAt(targetNode)
				default:
					t.Errorf("phase is %q, want an end", w.migration.Status.Phase)
				}
			})
		}
	}
}
