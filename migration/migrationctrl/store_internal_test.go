// SPDX-License-Identifier: Apache-2.0

package migrationctrl

import (
	"errors"
	"fmt"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/virtloom/virtloom/migration"
	"github.com/virtloom/virtloom/migration/placement"
	"github.com/virtloom/virtloom/template/render"
)

func TestRequeue_KeepsDeadlines(t *testing.T) {
	began := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	now := began.Add(time.Second)
	in := func(d time.Duration) migration.Plan {
		return migration.Plan{Deadline: now.Add(d), Status: v1.VirtualMachineInstanceMigrationStatus{Phase: v1.MigrationScheduling}}
	}
	failed := migration.Plan{Status: v1.VirtualMachineInstanceMigrationStatus{Phase: v1.MigrationFailed}}
	refusal := errors.New("no")
	for name, tc := range map[string]struct {
		plan     migration.Plan
		err      error
		failures int
		after    time.Duration
		retried  bool
	}{
		"to come":                              {plan: in(time.Minute), after: time.Minute + time.Millisecond},
		"came during the pass":                 {plan: in(-time.Second / 2), after: time.Millisecond},
		"had come when the pass began":         {plan: in(-time.Second)},
		"none":                                 {plan: in(-time.Hour)},
		"an error, and it is far":              {plan: in(time.Minute), err: refusal, retried: true},
		"an error after many, and it is near":  {plan: in(time.Minute), err: refusal, failures: 15, after: time.Minute + time.Millisecond},
		"an error after many, and it has come": {plan: in(-time.Second / 2), err: refusal, failures: 15, after: time.Millisecond},
		"an error after many, and none":        {plan: failed, err: refusal, failures: 40, retried: true},
		"a missing fact, and it is far":        {plan: in(time.Minute), err: render.ErrMissingFact, after: factRetry},
		"a missing fact, and it is near":       {plan: in(time.Second), err: render.ErrMissingFact, after: time.Second + time.Millisecond},
		"a quota, and it is near":              {plan: in(time.Second), err: placement.ErrQuota, after: time.Second + time.Millisecond},
		"a known quota":                        {plan: in(time.Minute), err: &placement.QuotaError{}, after: time.Minute + time.Millisecond},
		"not rendered, and has failed":         {plan: failed, err: migration.ErrRender},
		"not rendered, and goes on":            {plan: in(time.Minute), err: fmt.Errorf("attachment: %w", migration.ErrRender), retried: true},
		"a foreign Pod, and has failed":        {plan: failed, err: migration.ErrForeignPod},
	} {
		t.Run(name, func(t *testing.T) {
			r := &Reconciler{Clock: clocktesting.NewFakePassiveClock(now), failures: newFailures()}
			g := &gathered{key: types.NamespacedName{Namespace: "shop", Name: "move"}}
			g.began = began
			for range tc.failures {
				r.failures.When(reconcile.Request{NamespacedName: g.key})
			}
			got, err := storer{r}.result(t.Context(), g, tc.plan, tc.err)
			if got.RequeueAfter != tc.after || (err != nil) != tc.retried {
				t.Errorf("after %s, error %v; want after %s, retried %v", got.RequeueAfter, err, tc.after, tc.retried)
			}
		})
	}
}

func TestLostRace_RequeuesAtOnce(t *testing.T) {
	kind := schema.GroupResource{Resource: "virtualmachineinstances"}
	for name, err := range map[string]error{
		"conflict": apierrors.NewConflict(kind, "db", errors.New("another backup")), "not found": apierrors.NewNotFound(kind, "db"),
	} {
		for action, races := range map[migration.Verb]bool{
			migration.ChangeVMI: true, migration.Adopt: true, migration.ChangeClaim: true,
			migration.AbortBackup: false, migration.CreateClaim: false, migration.CreateTarget: false, migration.Collect: false,
		} {
			t.Run(name+" "+string(action), func(t *testing.T) {
				r := &Reconciler{Clock: clocktesting.NewFakePassiveClock(time.Time{}), failures: newFailures()}
				g := &gathered{}
				g.Failures = map[migration.Verb]error{action: err}
				got, left := storer{r}.result(t.Context(), g, migration.Plan{}, fmt.Errorf("refused: %w", err))
				if atOnce := got.RequeueAfter == conflictRetry && left == nil; atOnce != races || !races && left == nil {
					t.Errorf("after %s, error %v", got.RequeueAfter, left)
				}
			})
		}
	}
}

func TestDelayed_MatchesRateLimiter(t *testing.T) {
	r := newFailures()
	for i := range 40 {
		if want, got := r.When(reconcile.Request{}), delayed(i); got != want {
			t.Errorf("after %d failures a pass is delayed by %s, not by %s", i, want, got)
		}
	}
}
