// SPDX-License-Identifier: Apache-2.0

package migrationsim_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/migration"
	"github.com/virtloom/virtloom/migration/migrationsim"
	"github.com/virtloom/virtloom/migration/queue"
)

// A drain does not end with the first failure: the evacuation tries again after its back-off.
func TestEvacuation_Retry(t *testing.T) {
	s := migrationsim.NewSim(migrationsim.Options{})
	s.AddNode(migrationsim.NewNode("a", "16", "64Gi"))
	s.AddNode(migrationsim.NewNode("b", "2", "8Gi"))
	add(t, s, migrationsim.NewGuest(key("guest"), "a", "2", "6Gi"))
	s.AddPod(migrationsim.NewGuest(key("filler"), "b", "2", "6Gi").Pod)
	if err := s.Drain("a"); err != nil {
		t.Fatal(err)
	}
	begin := s.Now()
	s.At(begin.Add(10*time.Minute), func() { s.AddNode(migrationsim.NewNode("c", "16", "64Gi")) })
	all := settle(t, s).Migrations
	if left := s.Guests("a"); len(left) > 0 {
		t.Fatalf("%v are left; migrations %+v", left, all)
	}
	if len(all) != 2 || all[0].Reason != migration.ReasonUnschedulable || all[1].Phase != v1.MigrationSucceeded {
		t.Fatalf("migrations %+v", all)
	}
	if wait := all[1].Admitted.Sub(all[0].Ended); wait < 20*time.Second || wait > 22*time.Second {
		t.Errorf("the second attempt began %s after the first had failed, want its back-off of 20 s", wait)
	}
	if s.Now().After(begin.Add(time.Hour)) {
		t.Errorf("the drain ended %s after its beginning only", s.Now().Sub(begin))
	}
}

// A back-off that ended before the simulation begins delays no migration.
func TestBackoff_EndsAfterDelay(t *testing.T) {
	s := small(migrationsim.Options{})
	add(t, s, migrationsim.NewGuest(key("guest"), "a", "1", "1Gi"))
	at := func(d time.Duration) metav1.Time { return metav1.NewTime(s.Now().Add(d)) }
	failed := &v1.VirtualMachineInstanceMigration{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: "failed", CreationTimestamp: at(-2 * time.Hour),
			Annotations: map[string]string{v1.EvacuationMigrationAnnotation: "a"},
		},
		Spec: v1.VirtualMachineInstanceMigrationSpec{VMIName: "guest"},
		Status: v1.VirtualMachineInstanceMigrationStatus{
			Phase: v1.MigrationFailed,
			PhaseTransitionTimestamps: []v1.VirtualMachineInstanceMigrationPhaseTransitionTimestamp{
				{Phase: v1.MigrationFailed, PhaseTransitionTimestamp: at(-time.Hour)},
			},
		},
	}
	if err := s.AddMigration(failed, nil); err != nil {
		t.Fatal(err)
	}
	if err := s.Drain("a"); err != nil {
		t.Fatal(err)
	}
	if r := settle(t, s); len(s.Guests("a")) > 0 || r.Makespan > 2*time.Hour+time.Minute {
		t.Errorf("left on the node: %v, after %s", s.Guests("a"), r.Makespan)
	}
}

// addMoving adds a VMI whose migration is under way.
func addMoving(t *testing.T, s *migrationsim.Sim, name string, lease handoff.Lease) {
	t.Helper()
	g := migrationsim.NewGuest(key(name), "a", "1", "1Gi")
	now := metav1.NewTime(s.Now())
	g.VMI.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{
		MigrationUID: lease.Tag, StartTimestamp: &now, SourceNode: "a", TargetNode: lease.Target,
	}
	if err := handoff.Put(g.VMI, lease); err != nil {
		t.Fatal(err)
	}
	add(t, s, g)
	m := &v1.VirtualMachineInstanceMigration{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: string(lease.Tag), UID: lease.Tag, CreationTimestamp: now,
			Labels: map[string]string{v1.MigrationSelectorLabel: name}, Finalizers: []string{v1.VirtualMachineInstanceMigrationFinalizer},
		},
		Spec:   v1.VirtualMachineInstanceMigrationSpec{VMIName: name},
		Status: v1.VirtualMachineInstanceMigrationStatus{Phase: v1.MigrationRunning},
	}
	target := g.Pod.DeepCopy()
	target.Name, target.UID, target.Spec.NodeName = "target-"+name, "target-"+lease.Tag, lease.Target
	target.Labels[v1.MigrationJobLabel] = string(lease.Tag)
	if err := s.AddMigration(m, target); err != nil {
		t.Fatal(err)
	}
}

// Migrations that share links and end at the same moment end in a fixed order.
func TestTransfers_EndInOrder(t *testing.T) {
	run := func() migrationsim.Result {
		s := small(migrationsim.Options{Link: 1e9 / 8, Config: migration.Config{Limits: queue.Limits{Outbound: 5, Inbound: 5}}})
		for i := range 5 {
			uid := types.UID(fmt.Sprintf("m-%d", i))
			addMoving(t, s, fmt.Sprint(i), handoff.Lease{State: handoff.Moving, Epoch: 2, Holder: "a", Target: "b", Tag: uid})
		}
		return settle(t, s)
	}
	first := run()
	for range 5 {
		if diff := cmp.Diff(first, run(), cmpopts.IgnoreUnexported(migrationsim.Migration{})); diff != "" {
			t.Fatalf("the same took another course:\n%s", diff)
		}
	}
}

// A simulation may begin with a VMI that migrates to a missing target.
func TestMissingTarget_RollsBack(t *testing.T) {
	for name, lease := range map[string]handoff.Lease{
		"to a node that is gone": {State: handoff.Moving, Epoch: 2, Holder: "a", Target: "gone", Tag: "m"},
		"to another cluster":     {State: handoff.Moving, Epoch: 2, Holder: "a", Target: handoff.Elsewhere, Tag: "m"},
	} {
		for link, o := range map[string]migrationsim.Options{"": {}, ", over links that are shared": {Link: 1e8}} {
			t.Run(name+link, func(t *testing.T) {
				s := small(o)
				addMoving(t, s, "guest", lease)
				got := settle(t, s).Migrations[0]
				if got.Phase != v1.MigrationFailed || len(s.Guests("a")) != 1 {
					t.Errorf("%s: %s: %s; on the node are %v", got.Phase, got.Reason, got.Message, s.Guests("a"))
				}
				if !strings.Contains(got.Message, lease.Target) {
					t.Errorf("the failure does not name %q: %s", lease.Target, got.Message)
				}
			})
		}
	}
}

// An evacuation that waits is canceled when the VMI has left the node by another migration.
func TestEvacuation_SkipsDepartedVMI(t *testing.T) {
	s := small(migrationsim.Options{})
	add(t, s, migrationsim.NewGuest(key("guest"), "a", "1", "1Gi"))
	if _, err := s.Migrate(key("guest")); err != nil {
		t.Fatal(err)
	}
	s.At(s.Now().Add(time.Second), func() {
		err := s.AddMigration(&v1.VirtualMachineInstanceMigration{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "evacuation", Annotations: map[string]string{v1.EvacuationMigrationAnnotation: "a"}},
			Spec:       v1.VirtualMachineInstanceMigrationSpec{VMIName: "guest"},
		}, nil)
		if err != nil {
			t.Error(err)
		}
	})
	all := settle(t, s).Migrations
	if all[0].Phase != v1.MigrationSucceeded || len(s.Guests(all[0].Target)) != 1 {
		t.Errorf("the VMI did not leave by its migration, or not for good: %+v", all)
	}
	if m := all[1]; m.Phase != v1.MigrationFailed || m.Reason != migration.ReasonAborted || !m.Begun.IsZero() {
		t.Errorf("the evacuation: %s: %s: %s, begun %s", m.Phase, m.Reason, m.Message, m.Begun)
	}
}

// A Pod left behind by failures holds the VMI's migrations back, one that is being deleted only as
// long as it exists.
func TestStrayPod_BlocksMigration(t *testing.T) {
	for name, going := range map[string]bool{"that stays": false, "that goes": true} {
		t.Run(name, func(t *testing.T) {
			s := small(migrationsim.Options{})
			g := migrationsim.NewGuest(key("guest"), "a", "1", "1Gi")
			stray := g.Pod.DeepCopy()
			stray.Name, stray.UID, stray.Spec.NodeName = "stray", "stray", "b"
			g.Others = []*corev1.Pod{stray}
			if going {
				soon := metav1.NewTime(s.Now().Add(time.Minute))
				stray.DeletionTimestamp = &soon
			}
			add(t, s, g)
			if _, err := s.Migrate(key("guest")); err != nil {
				t.Fatal(err)
			}
			if err := s.RunAll(s.Now().Add(time.Hour)); err != nil {
				t.Fatal(err)
			}
			m := s.Result().Migrations[0]
			if going != (m.Phase == v1.MigrationSucceeded) || !going && m.Reason != migration.ReasonWaitingForPod {
				t.Errorf("%s: %s: %s", m.Phase, m.Reason, m.Message)
			}
		})
	}
}

// A quota with room for one more Pod lets VMIs leave one after the other.
func TestQuota_SharedByTurns(t *testing.T) {
	q := corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "cpus"}}
	q.Status.Hard = corev1.ResourceList{"requests.cpu": resource.MustParse("5")}
	q.Status.Used = corev1.ResourceList{"requests.cpu": resource.MustParse("4")}
	s := small(migrationsim.Options{Quotas: []corev1.ResourceQuota{q}})
	for i := range 4 {
		add(t, s, migrationsim.NewGuest(key(fmt.Sprint(i)), "a", "1", "1Gi"))
	}
	begin := s.Now()
	if err := s.Drain("a"); err != nil {
		t.Fatal(err)
	}
	r := settle(t, s)
	if len(s.Guests("a")) > 0 || r.Peak.Pods != 1 {
		t.Errorf("%v are left, up to %d target Pods at a time", s.Guests("a"), r.Peak.Pods)
	}
	if took := r.End.Sub(begin); took > 3*time.Minute {
		t.Errorf("took %s: what a Pod gave back was not noticed", took)
	}
	if used := q.Status.Used["requests.cpu"]; used.Value() != 4 {
		t.Errorf("the quota that was passed was changed: %s are used", used.String())
	}
}
