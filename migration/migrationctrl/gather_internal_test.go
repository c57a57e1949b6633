// SPDX-License-Identifier: Apache-2.0

package migrationctrl

import (
	"context"
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/virtloom/virtloom/migration"
)

// TestGather_TargetPodAheadOfCache has a cache of Pods that is behind that of migrations: a target
// Pod that it lacks is no lost one.
func TestGather_TargetPodAheadOfCache(t *testing.T) {
	vmi := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "guest", UID: "uid-1"}}
	pod := func(owner *v1.VirtualMachineInstance) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: "virt-launcher-guest", Labels: map[string]string{v1.AppLabel: "virt-launcher", v1.MigrationJobLabel: "migration-1"},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(owner, v1.VirtualMachineInstanceGroupVersionKind)},
		}}
	}
	other := vmi.DeepCopy()
	other.UID = "uid-0"
	for name, tt := range map[string]struct {
		phase  v1.VirtualMachineInstanceMigrationPhase
		cached []*corev1.Pod
		live   []client.Object
		err    error
		found  bool
		reads  int
	}{
		"the cache has it":          {phase: v1.MigrationScheduling, cached: []*corev1.Pod{pod(vmi)}, found: true},
		"the cache is behind":       {phase: v1.MigrationScheduling, live: []client.Object{pod(vmi)}, found: true, reads: 1},
		"it is gone":                {phase: v1.MigrationTargetReady, reads: 1},
		"it is another VMI's":       {phase: v1.MigrationRunning, live: []client.Object{pod(other)}, reads: 1},
		"it is not due yet":         {phase: v1.MigrationPending, live: []client.Object{pod(vmi)}},
		"it is not needed any more": {phase: v1.MigrationSucceeded, live: []client.Object{pod(vmi)}},
		"it cannot be read":         {phase: v1.MigrationScheduled, err: errors.New("not now"), reads: 1},
	} {
		t.Run(name, func(t *testing.T) {
			reads := 0
			api := interceptor.NewClient(fake.NewClientBuilder().WithObjects(tt.live...).Build(), interceptor.Funcs{
				List: func(ctx context.Context, c client.WithWatch, l client.ObjectList, o ...client.ListOption) error {
					if reads++; tt.err != nil {
						return tt.err
					}
					return c.List(ctx, l, o...)
				},
			})
			m := &v1.VirtualMachineInstanceMigration{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "m", UID: "migration-1"}}
			m.Status.Phase = tt.phase
			pods, err := gatherer{&Reconciler{APIReader: api}}.withTarget(t.Context(), &migration.Snapshot{Migration: m, VMI: vmi}, tt.cached)
			if !errors.Is(err, tt.err) || reads != tt.reads || (migration.TargetPod(pods, m.UID) != nil) != tt.found {
				t.Errorf("Pods %v, error %v, %d reads; want a target Pod: %t, error %v, %d reads", pods, err, reads, tt.found, tt.err, tt.reads)
			}
		})
	}
}
