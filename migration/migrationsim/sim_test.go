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
	"kubevirt.io/api/migrations/v1alpha1"

	"github.com/virtloom/virtloom/migration"
	"github.com/virtloom/virtloom/migration/migrationsim"
	"github.com/virtloom/virtloom/migration/queue"
)

func key(name string) types.NamespacedName { return types.NamespacedName{Namespace: "ns", Name: name} }

// small is a cluster of three nodes.
func small(o migrationsim.Options) *migrationsim.Sim {
	s := migrationsim.NewSim(o)
	for _, n := range []string{"a", "b", "c"} {
		s.AddNode(migrationsim.NewNode(n, "16", "64Gi"))
	}
	return s
}

func add(t *testing.T, s *migrationsim.Sim, g migrationsim.Guest) {
	t.Helper()
	if err := s.AddGuest(g); err != nil {
		t.Fatal(err)
	}
}

func settle(t *testing.T, s *migrationsim.Sim) migrationsim.Result {
	t.Helper()
	if err := s.RunAll(s.Now().Add(48 * time.Hour)); err != nil {
		t.Fatal(err)
	}
	return s.Result()
}

// postCopy is a policy that allows post-copy at 64 MiB a second.
func postCopy() []v1alpha1.MigrationPolicy {
	yes, rate := true, resource.MustParse("64Mi")
	return []v1alpha1.MigrationPolicy{{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: v1alpha1.MigrationPolicySpec{
		Selectors: &v1alpha1.Selectors{}, AllowPostCopy: &yes, BandwidthPerMigration: &rate,
	}}}
}

// courses are what becomes of one migration of a VMI of 4 GiB on node a.
var courses = map[string]struct {
	options migrationsim.Options
	arrange func(*migrationsim.Sim, *migrationsim.Guest)
	then    func(*migrationsim.Sim, types.NamespacedName)
	phase   v1.VirtualMachineInstanceMigrationPhase
	reason  migration.Reason
	target  string
	// took bounds the time from its creation to its end, in seconds.
	took [2]float64
}{
	"4 GiB at 1 Gbit/s take 35 s": {phase: v1.MigrationSucceeded, target: "b", took: [2]float64{37, 40}},
	"a guest that writes takes longer": {
		arrange: func(_ *migrationsim.Sim, g *migrationsim.Guest) { g.Dirty = 0.5e9 / 8 },
		phase:   v1.MigrationSucceeded, target: "b", took: [2]float64{70, 75},
	},
	"one that writes too fast is given up": {
		arrange: func(_ *migrationsim.Sim, g *migrationsim.Guest) { g.Dirty = 2e9 / 8 },
		phase:   v1.MigrationFailed, reason: migration.ReasonNodeReported, took: [2]float64{600, 610},
	},
	"or moved by post-copy, as its policy allows, at the policy's rate": {
		options: migrationsim.Options{Policies: postCopy()},
		arrange: func(_ *migrationsim.Sim, g *migrationsim.Guest) { g.Dirty = 2e9 / 8 },
		phase:   v1.MigrationSucceeded, target: "b", took: [2]float64{600 + 64, 600 + 75},
	},
	"a full node is not chosen": {
		arrange: func(s *migrationsim.Sim, _ *migrationsim.Guest) {
			s.AddPod(migrationsim.NewGuest(key("x"), "b", "1", "62Gi").Pod)
		},
		phase: v1.MigrationSucceeded, target: "c", took: [2]float64{37, 40},
	},
	"no node has room": {
		arrange: func(s *migrationsim.Sim, _ *migrationsim.Guest) {
			for _, n := range []string{"b", "c"} {
				s.AddPod(migrationsim.NewGuest(key("x"+n), n, "1", "62Gi").Pod)
			}
		},
		phase: v1.MigrationFailed, reason: migration.ReasonUnschedulable, took: [2]float64{299, 301},
	},
	"no node has room until one is uncordoned": {
		arrange: func(s *migrationsim.Sim, _ *migrationsim.Guest) {
			for _, n := range []string{"b", "c"} {
				if err := s.Cordon(n); err != nil {
					panic(err)
				}
			}
			s.At(s.Now().Add(time.Minute), func() {
				if err := s.Uncordon("c"); err != nil {
					panic(err)
				}
			})
		},
		phase: v1.MigrationSucceeded, target: "c", took: [2]float64{95, 100},
	},
	"no node can ever match": {
		arrange: func(_ *migrationsim.Sim, g *migrationsim.Guest) { g.Pod.Spec.NodeSelector["gpu"] = "yes" },
		phase:   v1.MigrationFailed, reason: migration.ReasonNoNode, took: [2]float64{0, 1},
	},
	"the guest is not migratable": {
		arrange: func(_ *migrationsim.Sim, g *migrationsim.Guest) {
			c := &g.VMI.Status.Conditions[0]
			c.Status, c.Reason = corev1.ConditionFalse, v1.VirtualMachineInstanceReasonDisksNotMigratable
		},
		phase: v1.MigrationFailed, reason: migration.ReasonNotMigratable, took: [2]float64{0, 1},
	},
	"cancelled while it moves": {
		then: func(s *migrationsim.Sim, m types.NamespacedName) {
			s.At(s.Now().Add(10*time.Second), func() { s.Cancel(m) })
		},
		phase: v1.MigrationFailed, reason: migration.ReasonNodeReported, took: [2]float64{10, 11},
	},
	"cancelled when all of its memory was sent": {
		options: migrationsim.Options{Latency: migrationsim.Latency{TakeOver: 10 * time.Second}},
		then: func(s *migrationsim.Sim, m types.NamespacedName) {
			s.At(s.Now().Add(41*time.Second), func() { s.Cancel(m) })
		},
		phase: v1.MigrationSucceeded, target: "b", took: [2]float64{55, 65},
	},
	"cancelled before it begins": {
		then: func(s *migrationsim.Sim, m types.NamespacedName) {
			s.At(s.Now().Add(time.Second), func() { s.Cancel(m) })
		},
		phase: v1.MigrationFailed, reason: migration.ReasonAborted, took: [2]float64{1, 2},
	},
	"a plugged volume goes along": {
		arrange: func(_ *migrationsim.Sim, g *migrationsim.Guest) {
			plug(g)
		},
		phase: v1.MigrationSucceeded, target: "b", took: [2]float64{39, 43},
	},
}

// plug gives the VMI a hotplugged volume.
func plug(g *migrationsim.Guest) {
	g.VMI.Spec.Volumes = []v1.Volume{{Name: "data", VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{
		PersistentVolumeClaimVolumeSource: corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
	}}}}
	g.VMI.Status.VolumeStatus = []v1.VolumeStatus{{Name: "data", Phase: v1.VolumeReady, HotplugVolume: &v1.HotplugVolumeStatus{}}}
}

// What brings a hotplugged volume to a node takes a place there, and releases no more than that: VMIs migrate
// back and forth between nodes with places for one target Pod with its volume.
func TestHotpluggedVolume_CountsAtTarget(t *testing.T) {
	s := migrationsim.NewSim(migrationsim.Options{})
	for _, n := range []string{"a", "b"} {
		node := migrationsim.NewNode(n, "16", "64Gi")
		node.Status.Allocatable[corev1.ResourcePods] = resource.MustParse("2")
		s.AddNode(node)
	}
	g := migrationsim.NewGuest(key("guest"), "a", "1", "1Gi")
	plug(&g)
	add(t, s, g)
	for i, at := range []string{"b", "a", "b"} {
		m, err := s.Migrate(key("guest"))
		if err != nil {
			t.Fatal(err)
		}
		if got := settle(t, s).Migrations[i]; got.Target != at || got.Phase != v1.MigrationSucceeded {
			t.Fatalf("%s: %s: %s: %s, to %q", m, got.Phase, got.Reason, got.Message, got.Target)
		}
		if err := s.Run(s.Now().Add(time.Minute)); err != nil { // what is left behind goes
			t.Fatal(err)
		}
	}
	visitor := migrationsim.NewGuest(key("visitor"), "a", "1", "1Gi")
	add(t, s, visitor)
	f, err := s.Fit(key("visitor"))
	if err != nil || len(f.Candidates) > 0 {
		t.Errorf("node b, on which VMI and volume take both places, could take another Pod: %s, error %v", f.Text(), err)
	}
}

func TestOneMigration(t *testing.T) {
	for name, tc := range courses {
		t.Run(name, func(t *testing.T) {
			s := small(tc.options)
			g := migrationsim.NewGuest(key("guest"), "a", "2", "4Gi")
			if tc.arrange != nil {
				tc.arrange(s, &g)
			}
			add(t, s, g)
			m, err := s.Migrate(key("guest"))
			if err != nil {
				t.Fatal(err)
			}
			if tc.then != nil {
				tc.then(s, m)
			}
			r := settle(t, s)
			got := r.Migrations[0]
			if got.Phase != tc.phase || tc.reason != "" && got.Reason != tc.reason || tc.target != "" && got.Target != tc.target {
				t.Errorf("%s: %s: %s, to %q", got.Phase, got.Reason, got.Message, got.Target)
			}
			if took := r.Makespan.Seconds(); took < tc.took[0] || took > tc.took[1] {
				t.Errorf("took %.1f s, want %v", took, tc.took)
			}
			at := "a"
			if tc.phase == v1.MigrationSucceeded {
				at = tc.target
			}
			if diff := cmp.Diff([]types.NamespacedName{key("guest")}, s.Guests(at)); diff != "" {
				t.Errorf("VMIs on %s (-want +got):\n%s", at, diff)
			}
		})
	}
}

func TestTransfers_ShareLinks(t *testing.T) {
	took := map[int]float64{}
	for _, guests := range []int{1, 2} {
		s := small(migrationsim.Options{Link: 1e9 / 8, Config: migration.Config{Limits: queue.Limits{Outbound: 2, Inbound: 2}}})
		for i := range guests {
			add(t, s, migrationsim.NewGuest(key(fmt.Sprint(i)), "a", "2", "8Gi"))
		}
		bound := s.Bound(s.Guests("a")...)
		if err := s.Drain("a"); err != nil {
			t.Fatal(err)
		}
		took[guests] = settle(t, s).Makespan.Seconds()
		if took[guests] < bound.Total.Seconds() || took[guests] > 1.05*bound.Total.Seconds() {
			t.Errorf("%d VMIs took %.1f s; bound %s", guests, took[guests], bound)
		}
	}
	if took[2] < 1.9*took[1]-10 {
		t.Errorf("one took %.1f s, two %.1f s", took[1], took[2])
	}
}

func TestSim_EqualSeeds(t *testing.T) {
	run := func(seed uint64) migrationsim.Result {
		o := large
		o.Seed = seed
		p := newPlant(t, 10, 200, o)
		p.drain(p.nodes[:2])
		return p.Result()
	}
	first := run(1)
	if diff := cmp.Diff(first, run(1), cmpopts.IgnoreUnexported(migrationsim.Migration{})); diff != "" {
		t.Errorf("the same seed took another course:\n%s", diff)
	}
	if cmp.Equal(first, run(2), cmpopts.IgnoreUnexported(migrationsim.Migration{})) {
		t.Error("another seed took the same course")
	}
}

// Within a namespace and a source node, a VMI of higher priority never waits behind one of lower
// priority that came later.
func TestQueue_PriorityWithoutStarvation(t *testing.T) {
	s := small(migrationsim.Options{Config: migration.Config{Limits: queue.Limits{Cluster: 2, Outbound: 1, Inbound: 2, Lent: -1}}, Queue: queue.Options{AgeAfter: -1}})
	priorities := []*v1.MigrationPriority{nil, ptr(v1.PrioritySystemMaintenance), ptr(v1.PriorityUserTriggered), ptr(v1.PrioritySystemCritical)}
	for i := range 24 {
		name := types.NamespacedName{Namespace: fmt.Sprintf("ns-%d", i%3), Name: fmt.Sprintf("guest-%d", i)}
		add(t, s, migrationsim.NewGuest(name, []string{"a", "b"}[i%2], "1", "2Gi"))
		m := &v1.VirtualMachineInstanceMigration{
			ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: "m-" + name.Name},
			Spec:       v1.VirtualMachineInstanceMigrationSpec{VMIName: name.Name, Priority: priorities[i%4]},
		}
		if err := s.AddMigration(m, nil); err != nil {
			t.Fatal(err)
		}
	}
	r := settle(t, s)
	moved := map[string]int{}
	for _, m := range r.Migrations {
		if m.Phase != v1.MigrationSucceeded {
			t.Errorf("%s: %s: %s", m.Name, m.Phase, m.Message)
		}
		moved[m.Namespace]++
		for _, o := range r.Migrations {
			if m.Source == o.Source && m.Priority > o.Priority && o.Admitted.Before(m.Admitted) {
				t.Errorf("%s of priority %d was admitted at %s, %s of priority %d before, at %s", m.Name, m.Priority, m.Admitted, o.Name, o.Priority, o.Admitted)
			}
		}
	}
	if diff := cmp.Diff(map[string]int{"ns-0": 8, "ns-1": 8, "ns-2": 8}, moved); diff != "" {
		t.Errorf("migrations by namespace (-want +got):\n%s", diff)
	}
	if want := (migrationsim.Peak{Cluster: 2, Outbound: 1, Inbound: 2, Pods: 2}); r.Peak.Outbound != want.Outbound || r.Peak.Cluster > want.Cluster || r.Peak.Pods > want.Pods {
		t.Errorf("peak is %+v", r.Peak)
	}
}

func ptr[T any](v T) *T { return &v }

func TestUndrain_CancelsMigrations(t *testing.T) {
	s := small(migrationsim.Options{Config: migration.Config{Limits: queue.Limits{Outbound: 1}}})
	for i := range 5 {
		add(t, s, migrationsim.NewGuest(key(fmt.Sprint(i)), "a", "1", "4Gi"))
	}
	stays := migrationsim.NewGuest(key("stays"), "a", "1", "4Gi")
	stays.VMI.Spec.EvictionStrategy = ptr(v1.EvictionStrategyNone)
	add(t, s, stays)
	if err := s.Drain("a"); err != nil {
		t.Fatal(err)
	}
	s.At(s.Now().Add(time.Minute), func() {
		if err := s.Undrain("a"); err != nil {
			t.Error(err)
		}
	})
	settle(t, s)
	// Two have migrated, or were about to; the others stay.
	if n := len(s.Guests("a")); n != 4 {
		t.Errorf("%d VMIs are on the node", n)
	}
}

func TestSim_InvalidArguments(t *testing.T) {
	s := small(migrationsim.Options{})
	for want, err := range map[string]error{
		`node "nowhere"`: s.AddGuest(migrationsim.NewGuest(key("g"), "nowhere", "1", "1Gi")),
		`VMI "none"`:     func() error { _, err := s.Migrate(key("none")); return err }(),
		`node "gone"`:    s.Drain("gone"),
		`node "missing"`: s.Undrain("missing"),
		"VMI ns/lost":    func() error { _, err := s.Evict(key("lost"), false); return err }(),
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not name %s", err, want)
		}
	}
}

// A simulation may begin in the middle: with waiting migrations and one that is running.
func TestSim_StartsWithMigrationsUnderWay(t *testing.T) {
	before := small(migrationsim.Options{})
	before.AddNode(migrationsim.NewNode("d", "16", "64Gi"))
	var guests []migrationsim.Guest
	for i := range 4 {
		g := migrationsim.NewGuest(key(fmt.Sprint(i)), "a", "1", "8Gi")
		guests = append(guests, g)
		add(t, before, g)
		if _, err := before.Migrate(key(fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
	if err := before.Run(before.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	after := small(migrationsim.Options{Start: before.Now()})
	after.AddNode(migrationsim.NewNode("d", "16", "64Gi"))
	for _, g := range guests {
		add(t, after, g)
	}
	for _, m := range before.Migrations() {
		if err := after.AddMigration(m, before.TargetPod(m)); err != nil {
			t.Fatal(err)
		}
	}
	for _, m := range settle(t, after).Migrations {
		if m.Phase != v1.MigrationSucceeded {
			t.Errorf("%s: %s: %s: %s", m.Name, m.Phase, m.Reason, m.Message)
		}
	}
	if left := after.Guests("a"); len(left) > 0 {
		t.Errorf("%v are left", left)
	}
}
