// SPDX-License-Identifier: Apache-2.0

package domainctrl

import (
	"context"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	clocktesting "k8s.io/utils/clock/testing"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/plan"
)

// gathered returns the values of a VMI's series by their names.
func gathered(t *testing.T, r *Reconciler) map[string]float64 {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	if err := reg.Register(r.Metrics()); err != nil {
		t.Fatal(err)
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			if !maps.Equal(labels, map[string]string{"namespace": "ns", "name": "guest", "node": "node-a"}) {
				t.Errorf("%s has the labels %v", f.GetName(), labels)
			}
			out[f.GetName()] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	return out
}

func TestMetrics_DuringMigration(t *testing.T) {
	r := &Reconciler{NodeName: "node-a"}
	if got := gathered(t, r); len(got) > 0 {
		t.Errorf("before the controller is set up there is %v", got)
	}
	clock := clocktesting.NewFakePassiveClock(time.Now())
	r.migrations = newMigrations(clock, time.Minute)
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
	defer queue.ShutDown()
	if err := r.migrations.source().Start(t.Context(), queue); err != nil {
		t.Fatal(err)
	}
	key := types.NamespacedName{Namespace: "ns", Name: "guest"}
	seen := make(chan domain.Progress)
	err := r.migrations.begin(key, func(context.Context) (string, func()) {
		for p := range seen {
			r.migrations.report(key, p, v1.MigrationPreCopy)
			seen <- p
		}
		return "it was not meant", nil
	})
	if err != nil {
		t.Fatal(err)
	}
	report := func(p domain.Progress) {
		seen <- p
		<-seen
	}
	if got := gathered(t, r); len(got) > 0 {
		t.Errorf("before anything is seen there is %v", got)
	}
	report(domain.Progress{Total: 1})
	report(domain.Progress{
		Total: 10, Processed: 7, Remaining: 3, DirtyBytesPerSecond: 2, BytesPerSecond: 5, Downtime: 250 * time.Millisecond, Iteration: 4, Throttle: 30,
	})
	want := map[string]float64{
		"kubevirt_vmi_migration_data_bytes_total": 10, "kubevirt_vmi_migration_data_processed_bytes": 7,
		"kubevirt_vmi_migration_data_remaining_bytes": 3, "kubevirt_vmi_migration_dirty_memory_rate_bytes": 2,
		"kubevirt_vmi_migration_memory_transfer_rate_bytes": 5, "virtloom_vmi_migration_downtime_seconds": 0.25,
		"virtloom_vmi_migration_iterations": 4, "virtloom_vmi_migration_throttle_percent": 30,
	}
	if diff := cmp.Diff(want, gathered(t, r)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	close(seen)
	r.migrations.all.Wait()
	if got := gathered(t, r); len(got) > 0 {
		t.Errorf("after its end there is %v", slices.Sorted(maps.Keys(got)))
	}
}

func TestMigrations_ReportInterval(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(time.Now())
	m := newMigrations(clock, 5*time.Second)
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
	defer queue.ShutDown()
	if err := m.source().Start(t.Context(), queue); err != nil {
		t.Fatal(err)
	}
	key := types.NamespacedName{Namespace: "ns", Name: "guest"}
	if m.report(key, domain.Progress{}, ""); queue.Len() > 0 {
		t.Error("a migration that is not under way was reported")
	}
	end := make(chan struct{})
	if err := m.begin(key, func(context.Context) (string, func()) { <-end; return "", nil }); err != nil {
		t.Fatal(err)
	}
	for i, step := range []struct {
		after    time.Duration
		mode     v1.MigrationMode
		reported uint64 // which of the reports
	}{
		{0, v1.MigrationPreCopy, 0}, {4 * time.Second, v1.MigrationPreCopy, 0}, {time.Second, v1.MigrationPreCopy, 2},
		{time.Second, v1.MigrationPaused, 3}, {time.Second, v1.MigrationPaused, 3}, {4 * time.Second, v1.MigrationPaused, 5},
	} {
		clock.SetTime(clock.Now().Add(step.after))
		m.report(key, domain.Progress{Processed: uint64(i)}, step.mode)
		var s plan.Snapshot
		m.see(key, &s)
		if !s.Migrating || s.Shown == nil || s.Shown.Processed != step.reported || s.MigrationMode != step.mode {
			t.Errorf("after report %d it shows %+v, %s, want report %d", i, s.Shown, s.MigrationMode, step.reported)
		}
		if asked := queue.Len() > 0; asked != (step.reported == uint64(i)) {
			t.Errorf("after report %d a pass was asked for: %t", i, asked)
		}
		for queue.Len() > 0 {
			req, _ := queue.Get()
			queue.Done(req)
		}
	}
	close(end)
	m.end()
	var s plan.Snapshot
	if m.see(key, &s); s.Migrating || s.Shown != nil || s.MigrationEnded.IsZero() {
		t.Errorf("after its end: %+v", s)
	}
	if err := m.begin(key, func(context.Context) (string, func()) { return "", nil }); err == nil {
		t.Error("a move began when none shall any more")
	}
}
