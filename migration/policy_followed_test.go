// SPDX-License-Identifier: Apache-2.0

package migration_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"
	"kubevirt.io/api/migrations/v1alpha1"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/migration"
)

func TestMigration_FollowsPolicy(t *testing.T) {
	slow, fast := rate("4Mi"), rate("64Mi")
	converge := &v1alpha1.MigrationPolicySpec{AllowAutoConverge: new(true)}
	stock := func(w *world) { delete(w.VMI.Annotations, handoff.Annotation) }
	for name, tc := range map[string]struct {
		at     v1.VirtualMachineInstanceMigrationPhase
		from   *v1alpha1.MigrationPolicySpec
		to     *v1alpha1.MigrationPolicySpec
		edit   func(*world)
		change string
	}{
		"bandwidth, while the target prepares":    {at: v1.MigrationPreparingTarget, from: slow, to: fast, change: "4Mi → 64Mi"},
		"bandwidth, when the target is ready":     {at: v1.MigrationTargetReady, from: slow, to: fast, change: "4Mi → 64Mi"},
		"bandwidth, while it moves":               {at: v1.MigrationRunning, from: slow, to: fast, change: "4Mi → 64Mi"},
		"the policy is gone":                      {at: v1.MigrationRunning, from: slow, change: "4Mi → 0"},
		"nothing has changed":                     {at: v1.MigrationRunning, from: slow, to: slow},
		"auto-converge, when the target is ready": {at: v1.MigrationTargetReady, to: converge, change: "allowAutoConverge false → true"},
		"auto-converge, while it moves":           {at: v1.MigrationRunning, to: converge},
		"a bad policy":                            {at: v1.MigrationRunning, from: slow, to: rate("-1")},
		"no options were resolved":                {at: v1.MigrationRunning, from: slow, to: fast, edit: func(w *world) { w.VMI.Status.MigrationState.VMIMConfigurationOptions = nil }},
		"it is being aborted":                     {at: v1.MigrationRunning, from: slow, to: fast, edit: func(w *world) { w.VMI.Status.MigrationState.AbortRequested = true }},
		"stock nodes, before it begins":           {at: v1.MigrationPreparingTarget, from: slow, to: fast, change: "4Mi → 64Mi", edit: stock},
		"stock nodes, while it moves":             {at: v1.MigrationRunning, from: slow, to: fast, edit: stock},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.under(tc.from)
			w.Until(tc.at)
			if tc.edit != nil {
				tc.edit(w)
			}
			w.under(tc.to)
			before := w.VMI.DeepCopy()
			s := w.Snapshot()
			plan := migration.Decide(s, w.Now)
			if diff := cmp.Diff(before, w.VMI); diff != "" {
				t.Errorf("the snapshot was changed:\n%s", diff)
			}
			if tc.change == "" {
				if len(plan.Actions) > 0 {
					t.Errorf("actions %+v", plan.Actions)
				}
				return
			}
			if len(plan.Actions) != 1 || plan.Actions[0].Verb != migration.ChangeVMI {
				t.Fatalf("actions %+v", plan.Actions)
			}
			a := plan.Actions[0]
			if a.Event == nil || !a.Event.OnVMI || a.Event.Warning || a.Event.Reason != migration.EventOptionsChanged || !strings.Contains(a.Event.Message, tc.change) {
				t.Errorf("event %+v, want %q", a.Event, tc.change)
			}
			w.Apply(a)
			want := before.Status.MigrationState
			want.VMIMConfigurationOptions, want.MigrationPolicyName = w.VMI.Status.MigrationState.VMIMConfigurationOptions, w.InForce.Match.Name()
			before.Status.MigrationState = want
			if diff := cmp.Diff(before, w.VMI); diff != "" {
				t.Errorf("more than the options has changed:\n%s", diff)
			}
			if again := migration.Decide(w.Snapshot(), w.Now); len(again.Actions) > 0 {
				t.Errorf("it changes again: %+v", again.Actions)
			}
		})
	}
}

func TestCanceledMigration_KeepsOptions(t *testing.T) {
	w := newWorld(t)
	w.under(rate("4Mi"))
	w.Until(v1.MigrationRunning)
	w.under(rate("64Mi"))
	w.Migration.DeletionTimestamp = &metav1.Time{Time: w.Now}
	w.Passes()
	ms := w.VMI.Status.MigrationState
	if got := ms.VMIMConfigurationOptions.BandwidthPerMigration.String(); !ms.AbortRequested || got != "4Mi" {
		t.Errorf("aborted %t, bandwidth %s", ms.AbortRequested, got)
	}
}

func TestRunningBound_FollowsOptions(t *testing.T) {
	w := newWorld(t)
	short, long := &v1alpha1.MigrationPolicySpec{CompletionTimeoutPerGiB: new(int64(1))}, &v1alpha1.MigrationPolicySpec{CompletionTimeoutPerGiB: new(int64(1000))}
	w.under(short)
	w.Until(v1.MigrationRunning)
	before := w.Passes().Deadline
	w.under(long)
	if after := w.Passes().Deadline; after.Sub(before).Seconds() != 2*999 {
		t.Errorf("the deadline was %s, and is %s", before, after)
	}
}
