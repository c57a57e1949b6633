// SPDX-License-Identifier: Apache-2.0

package migrationctrl_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	v1 "kubevirt.io/api/core/v1"
	"kubevirt.io/api/migrations/v1alpha1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/migration"
	"github.com/virtloom/virtloom/migration/evacuation"
	"github.com/virtloom/virtloom/migration/migrationctrl"
	"github.com/virtloom/virtloom/migration/migrationsim"
	"github.com/virtloom/virtloom/template"
)

// fields is a cache that has no indexes.
type fields struct{}

// IndexField implements client.FieldIndexer.
func (fields) IndexField(context.Context, client.Object, string, client.IndexerFunc) error {
	return nil
}

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// land is what a drain is planned for: three nodes and what a test adds.
type land struct {
	objects   []client.Object
	configure func(*migrationctrl.Reconciler)
}

func newLand(nodes ...string) *land {
	l := &land{configure: func(*migrationctrl.Reconciler) {}}
	ns := &corev1.Namespace{}
	ns.Name, ns.Labels = "ns", map[string]string{"team": "shop"}
	l.objects = append(l.objects, ns)
	for _, n := range nodes {
		node := migrationsim.NewNode(n, "16", "64Gi")
		for _, r := range []corev1.ResourceName{corev1.ResourceEphemeralStorage, "devices.kubevirt.io/kvm", "devices.kubevirt.io/tun", "devices.kubevirt.io/vhost-net"} {
			node.Status.Allocatable[r] = resource.MustParse("100Gi")
		}
		l.objects = append(l.objects, node)
	}
	return l
}

// guest adds a VMI on node a, changed by edit.
func (l *land) guest(t *testing.T, name string, edit func(*migrationsim.Guest)) {
	g := migrationsim.NewGuest(types.NamespacedName{Namespace: "ns", Name: name}, "a", "1", "1Gi")
	g.VMI.UID = types.UID("vmi-" + name)
	pod, err := template.Default().Launcher(template.Input{VMI: g.VMI, Config: template.Config{LauncherImage: image}})
	if err != nil {
		t.Fatal(err)
	}
	pod.Namespace, pod.Name, pod.UID, pod.Spec.NodeName, pod.Status.Phase = "ns", name, types.UID("pod-"+name), "a", corev1.PodRunning
	g.Pod, g.VMI.Status.SelinuxContext = pod, "none"
	if edit != nil {
		edit(&g)
	}
	l.objects = append(l.objects, g.VMI)
	if g.Pod != nil {
		l.objects = append(l.objects, g.Pod)
	}
}

// observer looks at the land.
func (l *land) observer(t *testing.T) *migrationctrl.Reconciler {
	t.Helper()
	s, err := newScheme()
	if err != nil {
		t.Fatal(err)
	}
	c := fake.NewClientBuilder().WithScheme(s).WithObjects(l.objects...).Build()
	r := &migrationctrl.Reconciler{
		Client: c, APIReader: c, LauncherImage: image,
		Clock: clocktesting.NewFakePassiveClock(start),
	}
	l.configure(r)
	if err := r.Observe(t.Context(), fields{}); err != nil {
		t.Fatal(err)
	}
	return r
}

// plan plans the drain of node a.
func (l *land) plan(t *testing.T) *migrationctrl.DrainPlan {
	t.Helper()
	p, err := l.observer(t).PlanDrain(t.Context(), "a", migrationctrl.Assumptions{Rate: 1 << 30})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// leads puts a lease on the VMI.
func leads(t *testing.T, lease handoff.Lease) func(*migrationsim.Guest) {
	return func(g *migrationsim.Guest) {
		if err := handoff.Put(g.VMI, lease); err != nil {
			t.Fatal(err)
		}
	}
}

// reported is a plan's report about a VMI that stays.
type reported struct {
	reason  migration.Reason
	message string
}

func stays(p *migrationctrl.DrainPlan) map[string]reported {
	out := map[string]reported{}
	for _, s := range p.Stays {
		out[s.VMI] = reported{s.Reason, s.Message}
	}
	return out
}

func TestDrainPlan_UnknownOutcome(t *testing.T) {
	l := newLand("a", "b", "c")
	l.guest(t, "goes", nil)
	l.guest(t, "to-gone", leads(t, handoff.Lease{State: handoff.Moving, Epoch: 2, Holder: "a", Target: "gone", Tag: "m"}))
	l.guest(t, "abroad", leads(t, handoff.Lease{State: handoff.Prepared, Epoch: 2, Holder: "a", Target: handoff.Elsewhere, Tag: "m"}))
	l.guest(t, "starts", func(g *migrationsim.Guest) { g.VMI.Status.Phase = v1.Scheduled })
	l.guest(t, "no-pod", func(g *migrationsim.Guest) { g.Pod = nil })
	l.guest(t, "damaged", func(g *migrationsim.Guest) { g.VMI.Annotations = map[string]string{handoff.Annotation: "{"} })
	p := l.plan(t)
	if p.VMIs != 6 || len(p.Moves) != 1 || p.Moves[0].VMI != "goes" {
		t.Errorf("of %d VMIs these leave: %+v", p.VMIs, p.Moves)
	}
	got := stays(p)
	if got["damaged"].reason != migration.ReasonLeaseUnreadable {
		t.Errorf("of a damaged lease it says %+v", got["damaged"])
	}
	delete(got, "damaged")
	want := map[string]reported{
		"to-gone": {migration.ReasonMoving, `the VMI is being migrated to node "gone", which does not exist`},
		"abroad":  {migration.ReasonMoving, "the VMI is being migrated to another cluster or namespace"},
		"starts":  {evacuation.ReasonNotRunning, `the VMI is in phase "Scheduled"`},
		"no-pod":  {migration.ReasonWaitingForSourcePod, "the Pod in which the VMI runs is unknown"},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(reported{})); diff != "" {
		t.Errorf("stays (-want +got):\n%s", diff)
	}
}

// Blockers of a live migration block a planned one too.
var inTheWay = map[string]struct {
	arrange func(*testing.T, *land)
	// want is of the VMI; without a reason it leaves.
	want reported
}{
	"a Pod that failures have left behind": {
		arrange: func(t *testing.T, l *land) {
			l.guest(t, "guest", func(g *migrationsim.Guest) {
				stray := g.Pod.DeepCopy()
				stray.Name, stray.UID, stray.Spec.NodeName = "stray", "stray", "b"
				l.objects = append(l.objects, stray)
			})
		},
		want: reported{evacuation.ReasonActivePods, "the VMI has more than one active Pod: guest, stray"},
	},
	"a Pod that has ended": {
		arrange: func(t *testing.T, l *land) {
			l.guest(t, "guest", func(g *migrationsim.Guest) {
				ended := g.Pod.DeepCopy()
				ended.Name, ended.UID, ended.Spec.NodeName, ended.Status.Phase = "ended", "ended", "b", corev1.PodFailed
				l.objects = append(l.objects, ended)
			})
		},
	},
	"a quota that is used up": {
		arrange: func(t *testing.T, l *land) {
			l.guest(t, "guest", nil)
			l.objects = append(l.objects, pods(2, 2))
		},
		want: reported{migration.ReasonQuota, "the target Pod needs 1 of pods out of 2 in ResourceQuota pods"},
	},
	"a quota with room for one Pod": {
		arrange: func(t *testing.T, l *land) {
			l.guest(t, "guest", nil)
			l.objects = append(l.objects, pods(1, 2))
		},
	},
	"a policy that is refused": {
		arrange: func(t *testing.T, l *land) {
			l.guest(t, "guest", nil)
			l.objects = append(l.objects, policy("-5Mi"))
		},
		want: reported{migration.ReasonPolicyInvalid, "spec.bandwidthPerMigration"},
	},
	"a policy": {
		arrange: func(t *testing.T, l *land) {
			l.guest(t, "guest", nil)
			l.objects = append(l.objects, policy("500Mi"))
		},
	},
	"a backup": {
		arrange: func(t *testing.T, l *land) { l.guest(t, "guest", backup) },
		want:    reported{migration.ReasonBackup, `backup "nightly" of the VMI is in progress`},
	},
	"a backup that may be aborted": {
		arrange: func(t *testing.T, l *land) {
			l.guest(t, "guest", backup)
			l.configure = func(r *migrationctrl.Reconciler) { r.Backups = &migrationctrl.VirtAPI{} }
		},
	},
	"a Pod on its way out": {
		arrange: func(t *testing.T, l *land) {
			l.guest(t, "guest", func(g *migrationsim.Guest) {
				going, soon := g.Pod.DeepCopy(), metav1.NewTime(start.Add(30*time.Second))
				going.Name, going.UID, going.Spec.NodeName = "going", "going", "b"
				going.DeletionTimestamp, going.Finalizers = &soon, []string{"test.virtloom.dev/kept"}
				l.objects = append(l.objects, going)
			})
		},
	},
}

// policy applies to every VMI of the namespace.
func policy(bandwidth string) *v1alpha1.MigrationPolicy {
	q := resource.MustParse(bandwidth)
	p := &v1alpha1.MigrationPolicy{ObjectMeta: metav1.ObjectMeta{Name: "slow"}}
	p.Spec.Selectors = &v1alpha1.Selectors{NamespaceSelector: v1alpha1.LabelSelector{"team": "shop"}}
	p.Spec.BandwidthPerMigration = &q
	return p
}

// backup puts a backup of the VMI in progress.
func backup(g *migrationsim.Guest) {
	g.VMI.Status.ChangedBlockTracking = &v1.ChangedBlockTrackingStatus{
		BackupStatus: &v1.VirtualMachineInstanceBackupStatus{BackupName: "nightly"},
	}
}

// pods is a quota of Pods.
func pods(used, limit int64) *corev1.ResourceQuota {
	q := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pods"}}
	q.Status.Hard = corev1.ResourceList{corev1.ResourcePods: *resource.NewQuantity(limit, resource.DecimalSI)}
	q.Status.Used = corev1.ResourceList{corev1.ResourcePods: *resource.NewQuantity(used, resource.DecimalSI)}
	return q
}

func TestDrainPlan_Blockers(t *testing.T) {
	for name, tc := range inTheWay {
		t.Run(name, func(t *testing.T) {
			l := newLand("a", "b", "c")
			tc.arrange(t, l)
			p := l.plan(t)
			got := stays(p)["guest"]
			if got.reason != tc.want.reason || !strings.Contains(got.message, tc.want.message) {
				t.Errorf("stays for %q: %s; want %+v", got.reason, got.message, tc.want)
			}
			if leaves := len(p.Moves) == 1; leaves != (tc.want == reported{}) {
				t.Errorf("leaves: %+v", p.Moves)
			}
		})
	}
}

func TestObserver_ReadOnly(t *testing.T) {
	l := newLand("a")
	l.configure = func(r *migrationctrl.Reconciler) { r.Backups = &migrationctrl.VirtAPI{} }
	r := l.observer(t)
	c := r.Client
	node := migrationsim.NewNode("a", "1", "1Gi")
	patch := client.MergeFrom(node.DeepCopy())
	for name, err := range map[string]error{
		"create":             c.Create(t.Context(), migrationsim.NewNode("b", "1", "1Gi")),
		"delete":             c.Delete(t.Context(), node),
		"update":             c.Update(t.Context(), node),
		"patch":              c.Patch(t.Context(), node, patch),
		"abort a backup":     r.Backups.AbortBackup(t.Context(), &v1.VirtualMachineInstance{}, "nightly"),
		"apply":              c.Apply(t.Context(), nil),
		"delete all":         c.DeleteAllOf(t.Context(), node),
		"update status":      c.Status().Update(t.Context(), node),
		"patch status":       c.Status().Patch(t.Context(), node, patch),
		"create status":      c.Status().Create(t.Context(), node, node),
		"apply status":       c.Status().Apply(t.Context(), nil),
		"update subresource": c.SubResource("scale").Update(t.Context(), node),
	} {
		if !errors.Is(err, migrationctrl.ErrReadOnly) {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

// Operators read the text before they drain a node.
func TestDrainPlan_Text(t *testing.T) {
	l := newLand("a", "b", "c", "d", "e", "f")
	for i := range 3 {
		l.guest(t, fmt.Sprintf("goes-%d", i), nil)
	}
	l.guest(t, "none", func(g *migrationsim.Guest) {
		none := v1.EvictionStrategyNone
		g.VMI.Spec.EvictionStrategy = &none
	})
	l.guest(t, "picky", func(g *migrationsim.Guest) { g.VMI.Spec.NodeSelector = map[string]string{"gpu": "yes"} })
	l.guest(t, "abroad", leads(t, handoff.Lease{State: handoff.Moving, Epoch: 2, Holder: "a", Target: handoff.Elsewhere, Tag: "m"}))
	var out strings.Builder
	if err := l.plan(t).Write(&out); err != nil {
		t.Fatal(err)
	}
	const file = "testdata/drain.txt"
	if *update {
		if err := os.WriteFile(file, []byte(out.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), out.String()); diff != "" {
		t.Errorf("the text (-want +got; -update rewrites it):\n%s", diff)
	}
}

// Migrations that have ended are no attempts at this drain.
func TestDrainPlan_IgnoresHistory(t *testing.T) {
	l := newLand("a", "b")
	l.guest(t, "guest", nil)
	for name, phase := range map[string]v1.VirtualMachineInstanceMigrationPhase{"one": v1.MigrationSucceeded, "two": v1.MigrationFailed} {
		at := metav1.NewTime(start.Add(-time.Hour))
		m := &v1.VirtualMachineInstanceMigration{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name), CreationTimestamp: at}}
		m.Spec.VMIName, m.Status.Phase = "guest", phase
		m.Status.PhaseTransitionTimestamps = []v1.VirtualMachineInstanceMigrationPhaseTransitionTimestamp{{Phase: phase, PhaseTransitionTimestamp: at}}
		l.objects = append(l.objects, m)
	}
	if p := l.plan(t); len(p.Moves) != 1 || p.Moves[0].Attempts != 1 || p.Moves[0].Starts > 1 {
		t.Errorf("moves are %+v", p.Moves)
	}
}

// A message may contain users' text, with lines and columns of its own.
func TestDrainPlan_OneLinePerVMI(t *testing.T) {
	p := &migrationctrl.DrainPlan{Node: "a", VMIs: 1, Stays: []migrationctrl.DrainStay{{
		Namespace: "ns", VMI: "guest", Reason: migration.ReasonNotMigratable, Message: "no:\n\tSTAYS\tREASON\n", Nodes: "0 of 1 nodes",
	}}}
	var out strings.Builder
	if err := p.Write(&out); err != nil {
		t.Fatal(err)
	}
	if want := "ns/guest  NotLiveMigratable  no: STAYS REASON; now 0 of 1 nodes\n"; !strings.HasSuffix(out.String(), "WHY\n"+want) {
		t.Errorf("written is\n%s\nwant at the end\n%s", out.String(), want)
	}
}

// Text of users neither moves the cursor nor begins a line or a column.
func TestDrainPlan_EscapesControlCharacters(t *testing.T) {
	const evil = "a\x1b[2J\t\u202eb\n"
	p := &migrationctrl.DrainPlan{
		Node: evil, VMIs: 2, Bound: evil,
		Moves: []migrationctrl.DrainMove{{Namespace: evil, VMI: evil, Target: evil, Candidates: []string{evil}}},
		Stays: []migrationctrl.DrainStay{{Namespace: evil, VMI: evil, Reason: evil, Message: evil, Nodes: evil}},
	}
	var out strings.Builder
	if err := p.Write(&out); err != nil {
		t.Fatal(err)
	}
	if text := out.String(); strings.ContainsAny(text, "\x1b\t\u202e") || strings.Count(text, "\n") != 8 {
		t.Errorf("written is %q", text)
	}
}

var update = flag.Bool("update", false, "rewrite the golden file")
