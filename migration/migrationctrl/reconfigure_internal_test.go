// SPDX-License-Identifier: Apache-2.0

package migrationctrl

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/util/workqueue"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/virtloom/virtloom/migration"
	"github.com/virtloom/virtloom/migration/queue"
)

// woken starts to record the keys that the gate wakes, and returns a function that returns those
// since its last call.
func woken(t *testing.T, s *scene) func() []string {
	t.Helper()
	q := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
	t.Cleanup(q.ShutDown)
	if err := s.r.gate.Source().Start(t.Context(), q); err != nil {
		t.Fatal(err)
	}
	return func() []string {
		var names []string
		for q.Len() > 0 {
			key, _ := q.Get()
			q.Done(key)
			names = append(names, key.Name)
		}
		slices.Sort(names)
		return names
	}
}

func TestReconfigure_RunningController(t *testing.T) {
	gone := standing("ns", "gone", v1.MigrationSucceeded, "")
	kv := &v1.KubeVirt{}
	kv.Namespace, kv.Name = "kubevirt", "kubevirt"
	three := uint32(3)
	kv.Spec.Configuration.MigrationConfiguration = &v1.MigrationConfiguration{ParallelMigrationsPerCluster: &three}
	s := newScene(t, interceptor.Funcs{}, kv, standing("ns", "a", v1.MigrationPending, ""), standing("other", "b", v1.MigrationRunning, ""), gone)
	s.r.Config = migration.Config{Limits: queue.Limits{Inbound: 1}, Cooldown: time.Minute}
	names := woken(t, s)

	next := migration.Config{Limits: queue.Limits{Inbound: 4, Lent: -1, Bandwidth: 100}, Cooldown: time.Hour, AwaitNodes: time.Second}
	if err := s.r.Reconfigure(t.Context(), next, queue.Options{Unfair: true}); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]string{"a", "b"}, names()); d != "" {
		t.Errorf("looked at again: -want +got\n%s", d)
	}
	if c := s.r.config(kv); c.Cooldown != time.Hour || c.AwaitNodes != time.Second || c.Limits.Cluster != 3 {
		t.Errorf("configuration %+v", c)
	}
	want := queue.Limits{Cluster: 3, Outbound: 2, Inbound: 4, Lent: -1, Bandwidth: 100}
	if d := cmp.Diff(want, s.r.Admission.Usage().Limits); d != "" {
		t.Errorf("limits: -want +got\n%s", d)
	}
	// Later changes of the KubeVirt object take precedence over the new configuration.
	five := uint32(5)
	kv.Spec.Configuration.MigrationConfiguration.ParallelMigrationsPerCluster = &five
	if err := s.Update(t.Context(), kv); err != nil {
		t.Fatal(err)
	}
	watcher{s.r}.ofKubeVirt(t.Context(), kv)
	want.Cluster = 5
	if d := cmp.Diff(want, s.r.Admission.Usage().Limits); d != "" {
		t.Errorf("limits: -want +got\n%s", d)
	}
}

func TestReconfigure_ListError(t *testing.T) {
	fails := errors.New("not now")
	var of client.ObjectList = &v1.KubeVirtList{}
	s := newScene(t, interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, o ...client.ListOption) error {
		if cmp.Equal(of, list) {
			return fails
		}
		return c.List(ctx, list, o...)
	}})
	if err := s.r.Reconfigure(t.Context(), migration.Config{}, queue.Options{}); !errors.Is(err, fails) {
		t.Errorf("error %v", err)
	}
	of = &v1.VirtualMachineInstanceMigrationList{}
	if err := s.r.Reconfigure(t.Context(), migration.Config{}, queue.Options{}); !errors.Is(err, fails) {
		t.Errorf("error %v", err)
	}
}

// TestReconfigure_RaceFree is for the race detector; the last limits set are those that stay.
func TestReconfigure_RaceFree(t *testing.T) {
	s := newScene(t, interceptor.Funcs{}, standing("ns", "a", v1.MigrationPending, ""))
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 50 {
				watcher{s.r}.ofKubeVirt(t.Context(), nil)
				watcher{s.r}.ofNode(t.Context(), nil)
			}
		})
	}
	for i := range 50 {
		c := migration.Config{Limits: queue.Limits{Inbound: i + 1}}
		if err := s.r.Reconfigure(t.Context(), c, queue.Options{AgeAfter: time.Duration(i+1) * time.Second}); err != nil {
			t.Error(err)
		}
	}
	all.Wait()
	if l := s.r.Admission.Usage().Limits; l.Inbound != 50 {
		t.Errorf("limits are %+v", l)
	}
}
