// SPDX-License-Identifier: Apache-2.0

package diagnosis_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	v1 "kubevirt.io/api/core/v1"
	migrationsv1 "kubevirt.io/api/migrations/v1alpha1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/virtloom/virtloom/domain/nodectrl"
	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/migration"
	"github.com/virtloom/virtloom/migration/migrationctrl"
	"github.com/virtloom/virtloom/migration/queue"
	"github.com/virtloom/virtloom/refdaemon/cachestate"
	"github.com/virtloom/virtloom/refdaemon/diagnosis"
	"github.com/virtloom/virtloom/refdaemon/dump"
	"github.com/virtloom/virtloom/template"
	"github.com/virtloom/virtloom/vm/vmctrl"
	"github.com/virtloom/virtloom/vmi"
	"github.com/virtloom/virtloom/vmi/diagnose"
	"github.com/virtloom/virtloom/vmi/vmictrl"
)

var (
	rewrite = flag.Bool("update", false, "rewrite the golden files")
	now     = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
)

func newScheme(t *testing.T) *runtime.Scheme {
	t.Helper()
	s := runtime.NewScheme()
	if err := errors.Join(vmictrl.AddToScheme(s), vmctrl.AddToScheme(s), migrationsv1.AddToScheme(s)); err != nil {
		t.Fatal(err)
	}
	return s
}

// taken is a dump of a cluster with the objects.
func taken(t *testing.T, objects ...client.Object) *dump.Dump {
	t.Helper()
	s := newScheme(t)
	served := meta.NewDefaultRESTMapper(nil)
	for gvk := range s.AllKnownTypes() {
		served.Add(gvk, meta.RESTScopeNamespace)
	}
	c := fake.NewClientBuilder().WithScheme(s).WithRESTMapper(served).WithObjects(objects...).Build()
	d, err := dump.Take(t.Context(), dump.Cluster{Client: c, Now: now})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// clusterOf looks at a dump.
func clusterOf(t *testing.T, d *dump.Dump) *diagnosis.Cluster {
	t.Helper()
	clock := clocktesting.NewFakePassiveClock(now)
	guests := &vmictrl.Reconciler{Client: d.Client(), APIReader: d, LauncherImage: "launcher:1", Clock: clock}
	moves := &migrationctrl.Reconciler{
		Client: d.Client(), APIReader: d, LauncherImage: "launcher:1", Clock: clock,
		Admission: queue.NewAdmission(migration.Config{}.WithDefaults().Limits, queue.Options{}),
	}
	machines := &vmctrl.Reconciler{Client: d.Client(), APIReader: d, Clock: clock}
	if err := errors.Join(guests.Observe(t.Context(), d), moves.Observe(t.Context(), d), machines.Observe(t.Context(), d)); err != nil {
		t.Fatal(err)
	}
	return &diagnosis.Cluster{Machines: machines, VMIs: guests, Migrations: moves, Reader: d, Now: now, SilentAfter: vmi.DefaultSilentAfter}
}

func nodeObject(name string, change ...func(*corev1.Node)) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: name, Labels: map[string]string{v1.NodeSchedulable: "true", "kubernetes.io/arch": "amd64"},
		Annotations: map[string]string{v1.VirtHandlerHeartbeat: now.Add(-30 * time.Second).Format(time.RFC3339)},
	}}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	n.Status.Allocatable = corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("8"), corev1.ResourceMemory: resource.MustParse("16Gi"), corev1.ResourcePods: resource.MustParse("100"),
		"devices.kubevirt.io/kvm": resource.MustParse("1000"), "devices.kubevirt.io/tun": resource.MustParse("1000"), "devices.kubevirt.io/vhost-net": resource.MustParse("1000"),
		corev1.ResourceEphemeralStorage: resource.MustParse("100Gi"),
	}
	for _, c := range change {
		c(n)
	}
	return n
}

// guest is one that runs on node a, with its Pod.
func guest(t *testing.T, name string, change ...func(*v1.VirtualMachineInstance, *corev1.Pod)) []client.Object {
	t.Helper()
	memory := resource.MustParse("256Mi")
	g := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-" + name)}}
	g.Spec.Domain.Memory = &v1.Memory{Guest: &memory}
	g.Status.SelinuxContext = "none"
	pod, err := template.Default().Launcher(template.Input{VMI: g, Config: template.Config{LauncherImage: "launcher:1"}})
	if err != nil {
		t.Fatal(err)
	}
	pod.Namespace, pod.UID, pod.Spec.NodeName, pod.Status.Phase = "ns", types.UID("pod-"+name), "a", corev1.PodRunning
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "compute", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
	g.Status.Phase, g.Status.NodeName = v1.Running, "a"
	g.Status.Conditions = []v1.VirtualMachineInstanceCondition{{Type: v1.VirtualMachineInstanceIsMigratable, Status: corev1.ConditionTrue}}
	if err := handoff.Put(g, handoff.Lease{State: handoff.Owned, Epoch: 1, Holder: "a"}); err != nil {
		t.Fatal(err)
	}
	for _, c := range change {
		c(g, pod)
	}
	return []client.Object{g, pod}
}

func move(name, of string) *v1.VirtualMachineInstanceMigration {
	m := &v1.VirtualMachineInstanceMigration{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: name, UID: types.UID("uid-" + name), CreationTimestamp: metav1.NewTime(now.Add(-time.Minute)), Labels: map[string]string{v1.MigrationSelectorLabel: of},
		Finalizers: []string{v1.VirtualMachineInstanceMigrationFinalizer},
	}}
	m.Spec.VMIName = of
	return m
}

func silent(n *corev1.Node) {
	n.Annotations[v1.VirtHandlerHeartbeat] = now.Add(-time.Hour).Format(time.RFC3339)
}

func unplaced(g *v1.VirtualMachineInstance, p *corev1.Pod) {
	g.Status.Phase, g.Status.NodeName, g.Annotations = v1.Scheduling, "", nil
	delete(g.Labels, v1.NodeNameLabel)
	p.Spec.NodeName, p.Status = "", corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{
		{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: "0/2 nodes are available"}}}
	p.Spec.NodeSelector["gpu"] = "yes"
}

// diagnoses maps objects in a cluster to their diagnosis: kind and name, all kinds of findings, and expected texts.
var diagnoses = map[string]struct {
	objects func(t *testing.T) []client.Object
	what    [2]string
	want    []diagnose.FindingKind
	says    []string
}{
	"a guest at rest": {func(t *testing.T) []client.Object { return append(guest(t, "web"), nodeObject("a")) },
		[2]string{"vmi", "web"}, nil, []string{"Findings      none", "Controller    not asked"}},
	"a guest that no node takes": {func(t *testing.T) []client.Object {
		return append(guest(t, "web", unplaced), nodeObject("a"), nodeObject("b"))
	}, [2]string{"vmi", "web"}, []diagnose.FindingKind{diagnose.Unschedulable}, []string{"0/2 nodes are available", "gpu=yes", "remedy"}},
	"a guest with a migration that waits": {func(t *testing.T) []client.Object {
		return append(guest(t, "web", func(g *v1.VirtualMachineInstance, _ *corev1.Pod) { g.Status.Phase = v1.Scheduled }), nodeObject("a"), move("m", "web"), move("n", "other"))
	}, [2]string{"vmi", "web"}, []diagnose.FindingKind{diagnose.WaitingForNode}, []string{"Migration     m: Pending", "continues when"}},
	"a migration of a guest without a Pod": {func(t *testing.T) []client.Object {
		return append(guest(t, "web")[:1], nodeObject("a"), move("m", "web"))
	}, [2]string{"migration", "m"}, nil, []string{"Targets       unknown: the VMI has no Pod", "Controller    not asked"}},
	"a node at rest": {func(t *testing.T) []client.Object { return append(guest(t, "web"), nodeObject("a"), nodeObject("b")) },
		[2]string{"node", "a"}, nil, []string{"Node          a, ready", "(30s ago)", "Schedulable   yes", "Guests        1 Running", "Findings      none"}},
	"a silent node": {func(t *testing.T) []client.Object { return append(guest(t, "web"), nodeObject("a", silent)) },
		[2]string{"node", "a"}, []diagnose.FindingKind{diagnose.NodeSilent, diagnose.NodeSilent}, []string{"(1h0m0s ago): unresponsive", "VMI ns/web: "}},
	"a node without an agent": {func(*testing.T) []client.Object {
		return []client.Object{nodeObject("a", func(n *corev1.Node) { n.Annotations, n.Labels = nil, nil })}
	}, [2]string{"node", "a"}, []diagnose.FindingKind{diagnosis.NoAgent}, []string{"Heartbeat     none", "by its label", "Guests        none"}},
	"a node whose hypervisor is not ready": {func(*testing.T) []client.Object {
		return []client.Object{nodeObject("a", func(n *corev1.Node) { n.Labels[v1.NodeSchedulable] = "false" })}
	}, [2]string{"node", "a"}, []diagnose.FindingKind{diagnosis.NotSchedulable}, []string{"libvirt on the node"}},
	"a node that lacks devices": {func(*testing.T) []client.Object {
		return []client.Object{nodeObject("a", func(n *corev1.Node) {
			n.Labels[v1.NodeSchedulable] = "false"
			n.Annotations[nodectrl.ProblemsAnnotation] = `[{"code":"NoKVM","what":"no KVM","remedy":"a firmware"},{"code":"NoTun","what":"no tun","remedy":"modprobe tun"}]`
		})}
	}, [2]string{"node", "a"}, []diagnose.FindingKind{diagnosis.NodeUnfit, diagnosis.NodeUnfit}, []string{"no KVM", "a firmware", "no tun", "modprobe tun"}},
	"a node that cannot say what it lacks": {func(*testing.T) []client.Object {
		return []client.Object{nodeObject("a", func(n *corev1.Node) {
			n.Labels[v1.NodeSchedulable], n.Annotations[nodectrl.ProblemsAnnotation] = "false", "x"
		})}
	}, [2]string{"node", "a"}, []diagnose.FindingKind{diagnosis.NodeUnfit}, []string{"cannot be read"}},
	"a node that is not ready": {func(*testing.T) []client.Object {
		return []client.Object{nodeObject("a", func(n *corev1.Node) {
			n.Status.Conditions = []corev1.NodeCondition{
				{Type: corev1.NodeReady, Status: corev1.ConditionUnknown, Reason: "NodeStatusUnknown", Message: "kubelet stopped"},
				{Type: corev1.NodeDiskPressure, Status: corev1.ConditionTrue, Message: "full"},
			}
		})}
	}, [2]string{"node", "a"}, []diagnose.FindingKind{diagnosis.NodeNotReady, diagnosis.NodeNotReady}, []string{"Node          a, not ready", "DiskPressure: full"}},
	"a node that is drained": {func(t *testing.T) []client.Object {
		return append(guest(t, "web"), nodeObject("a", func(n *corev1.Node) { n.Spec.Unschedulable = true }))
	}, [2]string{"node", "a"}, []diagnose.FindingKind{diagnosis.Draining}, []string{"no, it is cordoned", "refdaemon plan drain a"}},
	"a node with another drain taint": {func(t *testing.T) []client.Object {
		key := "example.com/out"
		kv := &v1.KubeVirt{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "kv"}}
		kv.Spec.Configuration.MigrationConfiguration = &v1.MigrationConfiguration{NodeDrainTaintKey: &key}
		taint := corev1.Taint{Key: key, Effect: corev1.TaintEffectNoSchedule}
		return append(guest(t, "web"), kv, nodeObject("a", func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{taint} }))
	}, [2]string{"node", "a"}, []diagnose.FindingKind{diagnosis.Draining}, []string{"Taint         example.com/out:NoSchedule"}},
	"a node with slots taken": {func(t *testing.T) []client.Object {
		one := uint32(1)
		kv := &v1.KubeVirt{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "kv"}}
		kv.Spec.Configuration.MigrationConfiguration = &v1.MigrationConfiguration{ParallelOutboundMigrationsPerNode: &one}
		m := move("m", "web")
		m.Status.Phase = v1.MigrationScheduling
		objects := append(guest(t, "web"), guest(t, "other")...)
		target := objects[1].DeepCopyObject().(*corev1.Pod)
		target.Name, target.UID, target.Spec.NodeName, target.Labels[v1.MigrationJobLabel] = "target", "target", "b", "uid-m"
		return append(objects, target, kv, m, move("n", "other"), nodeObject("a"), nodeObject("b"))
	}, [2]string{"node", "a"}, []diagnose.FindingKind{diagnosis.SlotsTaken}, []string{"1 of 1 slots in use", "parallelOutboundMigrationsPerNode"}},
	"a node whose guests disagree": {func(t *testing.T) []client.Object {
		lost := guest(t, "lost")[:1]
		pod := guest(t, "orphan")[1]
		return append(append(lost, pod), nodeObject("a"))
	}, [2]string{"node", "a"}, []diagnose.FindingKind{diagnose.LauncherMissing, diagnosis.PodOfNobody}, []string{"VMI ns/lost: the launcher Pod is gone", "belongs to a VMI that does not exist (UID uid-orphan)"}},
	"a node that guests leave": {func(t *testing.T) []client.Object {
		deadline := metav1.NewTime(now.Add(time.Minute))
		return append(guest(t, "web", func(g *v1.VirtualMachineInstance, _ *corev1.Pod) {
			if err := handoff.Put(g, handoff.Lease{State: handoff.Preparing, Epoch: 2, Holder: "a", Target: "b", Tag: "uid-m", Deadline: &deadline}); err != nil {
				t.Fatal(err)
			}
		}), nodeObject("a"), nodeObject("b"), move("m", "web"))
	}, [2]string{"node", "a"}, nil, []string{"slots in use: ns/web"}},
	"words of others": {func(*testing.T) []client.Object {
		return []client.Object{nodeObject("a", func(n *corev1.Node) {
			n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionFalse, Message: "a\nFinding\x1b[2J"}}
		})}
	}, [2]string{"node", "a"}, []diagnose.FindingKind{diagnosis.NodeNotReady}, []string{"a Finding�[2J"}},
}

// writer is any diagnosis.
type writer interface{ Write(io.Writer) error }

func ask(ctx context.Context, c *diagnosis.Cluster, what [2]string) (writer, error) {
	key := types.NamespacedName{Namespace: "ns", Name: what[1]}
	switch what[0] {
	case "vmi":
		return c.VMI(ctx, key)
	case "migration":
		return c.Migration(ctx, key)
	}
	return c.Node(ctx, what[1])
}

func findings(of writer) []diagnose.FindingKind {
	var all []diagnose.Finding
	switch d := of.(type) {
	case *diagnosis.VMI:
		all = d.Findings
	case *diagnosis.Node:
		all = d.Findings
	}
	var found []diagnose.FindingKind
	for _, f := range all {
		found = append(found, f.Kind)
	}
	return found
}

// The diagnosis of a dump equals that of the cluster, word by word.
func TestDiagnoses(t *testing.T) {
	for name, tt := range diagnoses {
		t.Run(name, func(t *testing.T) {
			d := taken(t, append(tt.objects(t), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns"}})...)
			var file bytes.Buffer
			if err := errors.Join(d.Complete(t.Context()), d.Write(&file)); err != nil {
				t.Fatal(err)
			}
			read, err := dump.Read(&file, newScheme(t))
			if err != nil {
				t.Fatal(err)
			}
			var texts []string
			for _, d := range []*dump.Dump{d, read} {
				got, err := ask(t.Context(), clusterOf(t, d), tt.what)
				if err != nil {
					t.Fatal(err)
				}
				var text strings.Builder
				if err := got.Write(&text); err != nil {
					t.Fatal(err)
				}
				texts = append(texts, text.String())
				if kinds := findings(got); !slices.Equal(kinds, tt.want) {
					t.Errorf("found %v, want %v:\n%s", kinds, tt.want, text.String())
				}
			}
			if diff := cmp.Diff(texts[0], texts[1]); diff != "" {
				t.Errorf("of a file (-cluster +file):\n%s", diff)
			}
			for _, s := range tt.says {
				if !strings.Contains(texts[0], s) {
					t.Errorf("nothing says %q:\n%s", s, texts[0])
				}
			}
			if strings.Contains(texts[0], "\x1b") {
				t.Errorf("it moves the cursor: %q", texts[0])
			}
		})
	}
}

func TestDiagnoses_NotFound(t *testing.T) {
	c := clusterOf(t, taken(t, append(guest(t, "web"), nodeObject("a"))...))
	for name, tt := range map[string]struct {
		what [2]string
		says string
	}{
		"a guest":     {[2]string{"vmi", "wed"}, "there is no VirtualMachineInstance ns/wed: not found; specify an existing one in namespace ns: web"},
		"a migration": {[2]string{"migration", "m"}, "there is no VirtualMachineInstanceMigration ns/m: not found; there is none in namespace ns"},
		"a node":      {[2]string{"node", "b"}, "there is no Node b: not found; specify an existing one: a"},
	} {
		if _, err := ask(t.Context(), c, tt.what); !errors.Is(err, diagnosis.ErrUnknown) || !strings.HasPrefix(err.Error(), tt.says) {
			t.Errorf("%s: error %v, want %q", name, err, tt.says)
		}
	}
}

func TestDiagnoses_ControllerView(t *testing.T) {
	object := func(kind, name, version string) cachestate.Object {
		return cachestate.Object{Kind: kind, Name: name, ResourceVersion: version}
	}
	vmi7, pod7 := object("VirtualMachineInstance", "ns/web", "999"), object("Pod", "ns/virt-launcher-web-k66kn5t2a7", "999")
	for name, tt := range map[string]struct {
		sees cachestate.State
		err  error
		says []string
	}{
		"all":     {cachestate.State{Leads: true, Objects: []cachestate.Object{vmi7, pod7}}, nil, []string{"leads; its cache is up to date"}},
		"newer":   {cachestate.State{Leads: true, Objects: []cachestate.Object{object("VirtualMachineInstance", "ns/web", "1000"), pod7}}, nil, []string{"leads; its cache is up to date"}},
		"older":   {cachestate.State{Leads: true, Objects: []cachestate.Object{object("VirtualMachineInstance", "ns/web", "5"), pod7}}, nil, []string{"its cache lags: of VirtualMachineInstance ns/web it has version 5, stored is version 999", "failing watches"}},
		"no Pod":  {cachestate.State{Leads: true, Objects: []cachestate.Object{vmi7}}, nil, []string{"of Pod ns/virt-launcher-web-k66kn5t2a7 it does not have it, stored is version 999"}},
		"a write": {cachestate.State{Leads: true, Objects: []cachestate.Object{vmi7, pod7}, Pending: []cachestate.Write{{Text: "create of Pod ns/p", Since: now}}}, nil, []string{"waiting for its cache to observe: create of Pod ns/p, since 2026-01-02T03:04:05Z"}},
		"other settings": {cachestate.State{Leads: true, Objects: []cachestate.Object{vmi7, pod7}, Settings: map[string]string{"launcher-image": "theirs", "unheard-of": "x", "same": "s"}}, nil,
			[]string{`runs with --launcher-image="theirs", this diagnosis with "ours"`, "remedy: pass the controller's file to --config, or its value to --launcher-image"}},
		"not its turn":  {cachestate.State{Objects: []cachestate.Object{vmi7, pod7}}, nil, []string{"is not the leader; ask the leader"}},
		"nobody at all": {cachestate.State{}, errors.New("connection refused"), []string{"did not report its view: connection refused", "check that it runs"}},
	} {
		t.Run(name, func(t *testing.T) {
			c := clusterOf(t, taken(t, append(guest(t, "web"), nodeObject("a"))...))
			c.Settings = map[string]string{"launcher-image": "ours", "same": "s"}
			c.Ask = func(_ context.Context, q cachestate.Question) (*cachestate.State, error) {
				if q != (cachestate.Question{Kind: cachestate.VMI, NamespacedName: types.NamespacedName{Namespace: "ns", Name: "web"}}) {
					t.Errorf("asked about %v", q)
				}
				return &tt.sees, tt.err
			}
			g, err := c.VMI(t.Context(), types.NamespacedName{Namespace: "ns", Name: "web"})
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range tt.says {
				if !strings.Contains(g.String(), s) {
					t.Errorf("nothing says %q:\n%s", s, g)
				}
			}
		})
	}
}

// JSON is what programs read.
func TestDiagnoses_JSON(t *testing.T) {
	for file, name := range map[string]string{"guest": "a guest that no node takes", "node": "a node with slots taken"} {
		tt := diagnoses[name]
		got, err := ask(t.Context(), clusterOf(t, taken(t, append(tt.objects(t), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns"}})...)), tt.what)
		if err != nil {
			t.Fatal(err)
		}
		form, err := json.MarshalIndent(got, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join("testdata", file+".json")
		if *rewrite {
			if err := os.WriteFile(path, append(form, '\n'), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), string(form)+"\n"); diff != "" {
			t.Errorf("%s (-want +got; -update rewrites it):\n%s", path, diff)
		}
	}
}
