// SPDX-License-Identifier: Apache-2.0

package tracecontext_test

import (
	"context"
	"errors"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"go.opentelemetry.io/otel"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	v1 "kubevirt.io/api/core/v1"
	"kubevirt.io/api/migrations/v1alpha1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/virtloom/virtloom/domain/domainctrl"
	"github.com/virtloom/virtloom/domain/memory"
	"github.com/virtloom/virtloom/domain/transport"
	"github.com/virtloom/virtloom/domain/workspace"
	"github.com/virtloom/virtloom/internal/rig"
	"github.com/virtloom/virtloom/internal/rig/rigtest"
	"github.com/virtloom/virtloom/internal/tracecontext"
	"github.com/virtloom/virtloom/migration/migrationctrl"
	"github.com/virtloom/virtloom/vmi/vmictrl"
)

const (
	patience = 2 * time.Minute
	// share is the minimum share of an operation's time in spans below its root.
	share = 0.95
)

// world is a control plane with the controllers and the agents of all nodes.
type world struct {
	*rig.Rig
	client.Client
	t      *testing.T
	scheme *runtime.Scheme
	spans  *tracetest.InMemoryExporter
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{Rig: rigtest.Start(t, rig.Options{SimulatedNodes: 2}), t: t, scheme: runtime.NewScheme(), spans: tracetest.NewInMemoryExporter()}
	must(t, errors.Join(clientgoscheme.AddToScheme(w.scheme), vmictrl.AddToScheme(w.scheme), v1alpha1.AddToScheme(w.scheme)))
	var err error
	w.Client, err = client.New(w.Config(rig.UserAdmin), client.Options{Scheme: w.scheme})
	must(t, err)
	otel.SetTracerProvider(sdktrace.NewTracerProvider(sdktrace.WithSyncer(w.spans)))
	w.controllers()
	w.agents()
	return w
}

func (w *world) manager(user string) ctrl.Manager {
	skip := true
	mgr, err := ctrl.NewManager(w.Config(user), ctrl.Options{
		Scheme: w.scheme, Logger: logr.Discard(), Metrics: server.Options{BindAddress: "0"},
		Controller: config.Controller{SkipNameValidation: &skip},
	})
	must(w.t, err)
	return mgr
}

// run runs a manager until the test ends.
func (w *world) run(mgr ctrl.Manager) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	w.t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			w.t.Error(err)
		}
	})
}

func (w *world) controllers() {
	const image = "example.test/virt-launcher:1"
	mgr := w.manager(rig.UserController)
	must(w.t, (&vmictrl.Reconciler{
		Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), LauncherImage: image, Metrics: vmictrl.NewMetrics(),
	}).SetupWithManager(w.t.Context(), mgr))
	must(w.t, (&migrationctrl.Reconciler{
		Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), LauncherImage: image, Metrics: migrationctrl.NewMetrics(),
	}).SetupWithManager(w.t.Context(), mgr))
	w.run(mgr)
}

// agents runs one node agent per node; their domains are in memory.
func (w *world) agents() {
	var nodes corev1.NodeList
	must(w.t, w.List(w.t.Context(), &nodes))
	var all []*memory.Hypervisor
	for i, n := range nodes.Items {
		port := 1000 + i
		hv := memory.New(n.Name)
		for j, other := range all {
			uri := func(at int) string {
				return "qemu+tcp://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(1000+at)) + "/system"
			}
			hv.Connect(uri(j), other)
			other.Connect(uri(i), hv)
		}
		all = append(all, hv)
		user := rig.NodeUser(n.Name)
		mgr := w.manager(user)
		caches, err := domainctrl.NewCaches(w.Config(user), w.scheme, n.Name)
		must(w.t, err)
		must(w.t, (&domainctrl.Reconciler{
			NodeName: n.Name, Transport: transport.Direct{Address: "127.0.0.1", Port: port}, Hypervisor: hv,
			Workspace: &workspace.Workspace{Root: w.t.TempDir(), Bridge: "br0", AllowEmulation: func(context.Context) (bool, error) { return true, nil }},
			Client:    mgr.GetClient(), APIReader: mgr.GetAPIReader(), Caches: caches, DrainWithin: -1,
		}).SetupWithManager(mgr))
		w.run(mgr)
	}
}

// until waits for the condition, or for the root of a trace of that name.
func (w *world) until(what string, ok func() bool) {
	w.t.Helper()
	err := rigtest.Poll(w.t.Context(), patience, func(context.Context) (bool, error) { return ok(), nil })
	if err != nil {
		w.t.Fatalf("waiting for %s: %v; spans: %v", what, err, names(w.spans.GetSpans()))
	}
}

// ended reports whether the trace of the root of that name is complete: a pass ends after its writes, which may be after
// the root.
func (w *world) ended(name string) func() bool {
	return func() bool {
		if !slices.ContainsFunc(w.spans.GetSpans(), func(s tracetest.SpanStub) bool { return s.Name == name }) {
			return false
		}
		return len(orphans(w.ofRoot(name))) == 0
	}
}

// orphans returns the spans without a parent among the others.
func orphans(root tracetest.SpanStub, spans []tracetest.SpanStub) []string {
	ids := map[trace.SpanID]bool{root.SpanContext.SpanID(): true}
	for _, s := range spans {
		ids[s.SpanContext.SpanID()] = true
	}
	var out []string
	for _, s := range spans {
		if !ids[s.Parent.SpanID()] {
			out = append(out, s.Name)
		}
	}
	return out
}

// ofRoot returns the root of that name and all other spans of its trace.
func (w *world) ofRoot(name string) (tracetest.SpanStub, []tracetest.SpanStub) {
	w.t.Helper()
	all := w.spans.GetSpans()
	at := slices.IndexFunc(all, func(s tracetest.SpanStub) bool { return s.Name == name })
	root := all[at]
	var rest []tracetest.SpanStub
	for _, s := range all {
		if s.SpanContext.TraceID() == root.SpanContext.TraceID() && s.SpanContext.SpanID() != root.SpanContext.SpanID() {
			rest = append(rest, s)
		}
	}
	return root, rest
}

func names(spans []tracetest.SpanStub) []string {
	var out []string
	for _, s := range spans {
		out = append(out, s.Name)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// covered returns the share of the root's time covered by at least one span.
func covered(root tracetest.SpanStub, spans []tracetest.SpanStub) float64 {
	slices.SortFunc(spans, func(a, b tracetest.SpanStub) int { return a.StartTime.Compare(b.StartTime) })
	var sum time.Duration
	upTo := root.StartTime
	for _, s := range spans {
		from, to := s.StartTime, s.EndTime
		if from.Before(upTo) {
			from = upTo
		}
		if to.After(root.EndTime) {
			to = root.EndTime
		}
		if to.After(from) {
			sum, upTo = sum+to.Sub(from), to
		}
	}
	return sum.Seconds() / root.EndTime.Sub(root.StartTime).Seconds()
}

// expect fails unless the trace has the spans, is connected and covers the time.
func (w *world) expect(root tracetest.SpanStub, spans []tracetest.SpanStub, want ...string) {
	w.t.Helper()
	have := names(spans)
	for _, name := range want {
		if !slices.Contains(have, name) {
			w.t.Errorf("%s has no span %s, but %v", root.Name, name, have)
		}
	}
	if lost := orphans(root, spans); len(lost) > 0 {
		w.t.Errorf("%s of %s hang under nothing", lost, root.Name)
	}
	if got := covered(root, spans); got < share {
		w.t.Errorf("%.1f %% of %s is in spans, want %.0f %%", 100*got, root.Name, 100*share)
	}
	w.t.Logf("%s took %s, %d spans, %.2f %% of it in them: %s", root.Name, root.EndTime.Sub(root.StartTime), len(spans), 100*covered(root, spans), strings.Join(have, " "))
}

func (w *world) guest() *v1.VirtualMachineInstance {
	size, off := resource.MustParse("64Mi"), false
	g := &v1.VirtualMachineInstance{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "traced", Annotations: map[string]string{tracecontext.Annotation: valid}},
		Spec: v1.VirtualMachineInstanceSpec{Domain: v1.DomainSpec{
			Memory: &v1.Memory{Guest: &size}, Devices: v1.Devices{AutoattachGraphicsDevice: &off, AutoattachSerialConsole: &off, AutoattachPodInterface: &off},
		}},
	}
	must(w.t, w.Create(w.t.Context(), g))
	return g
}

func TestOperations_StartAndMigration(t *testing.T) {
	w := newWorld(t)
	g := w.guest()
	w.until("the start to be over", w.ended("vmi.Start"))
	root, spans := w.ofRoot("vmi.Start")
	w.expect(root, spans, "vmi.Reconcile", "vmi.CreateLauncher", "vmi.Store", "vmi.Wait", "node.Reconcile", "node.Store", "node.Apply", "hypervisor.Start")
	if root.SpanContext.TraceID().String() == traceID || len(root.Links) != 1 {
		t.Errorf("the owner's trace is taken over, or not linked to: %v", root.Links)
	}
	w.until("the guest to be movable", func() bool {
		must(t, w.Get(t.Context(), client.ObjectKeyFromObject(g), g))
		return slices.ContainsFunc(g.Status.Conditions, func(c v1.VirtualMachineInstanceCondition) bool {
			return c.Type == v1.VirtualMachineInstanceIsMigratable && c.Status == corev1.ConditionTrue
		})
	})
	must(t, w.Create(t.Context(), &v1.VirtualMachineInstanceMigration{
		ObjectMeta: metav1.ObjectMeta{Namespace: g.Namespace, Name: "traced"}, Spec: v1.VirtualMachineInstanceMigrationSpec{VMIName: g.Name},
	}))
	w.until("the migration to be over", w.ended("migration.Move"))
	root, spans = w.ofRoot("migration.Move")
	w.expect(root, spans, "migration.Reconcile", "migration.Adopt", "migration.CreateTarget", "migration.ChangeVMI", "migration.Store", "migration.Wait",
		"node.Reconcile", "node.LiveMigration", "hypervisor.Migrate")
	nodes := map[string]bool{}
	for _, s := range spans {
		for _, a := range s.Attributes {
			if a.Key == "node" {
				nodes[a.Value.AsString()] = true
			}
		}
	}
	if len(nodes) != 2 {
		t.Errorf("the trace of the migration has spans of the nodes %v, want both", nodes)
	}
}
