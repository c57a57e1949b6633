// SPDX-License-Identifier: Apache-2.0

package nodectrl_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/memory"
	"github.com/virtloom/virtloom/domain/nodectrl"
)

// labelling is a labeller of node-a, whose hypervisor has one CPU model, and its cluster.
type labelling struct {
	*nodectrl.Labeller
	t       *testing.T
	hv      *memory.Hypervisor
	c       client.Client
	patches int
	// meanwhile runs between the read of the node and the write.
	meanwhile func()
	events    *events.FakeRecorder
}

func newLabelling(t *testing.T, node *corev1.Node, others ...client.Object) *labelling {
	t.Helper()
	scheme := runtime.NewScheme()
	must(t, errors.Join(corev1.AddToScheme(scheme), v1.AddToScheme(scheme)))
	l := &labelling{t: t, hv: memory.New("node-a"), events: events.NewFakeRecorder(10), meanwhile: func() {}}
	l.hv.SetCapabilities(facts("x86_64", "", models, "").Capabilities)
	node.Name = "node-a"
	l.c = fake.NewClientBuilder().WithScheme(scheme).WithObjects(node).WithObjects(others...).WithInterceptorFuncs(interceptor.Funcs{
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			l.patches++
			l.meanwhile()
			return c.Patch(ctx, o, p, opts...)
		},
	}).Build()
	l.Labeller = &nodectrl.Labeller{
		NodeName: "node-a", Client: l.c, Node: l.c, Capabilities: l.hv, Recorder: l.events, Every: time.Minute,
		RealtimeRuntime: filepath.Join(t.TempDir(), "runtime"), Random: func() float64 { return 1 },
	}
	return l
}

func (l *labelling) pass() error {
	l.t.Helper()
	result, err := l.Reconcile(l.t.Context(), reconcile.Request{})
	if want := 132 * time.Second; err == nil && result.RequeueAfter != want {
		l.t.Errorf("looks again after %s, want %s", result.RequeueAfter, want)
	}
	return err
}

func (l *labelling) labels() map[string]string {
	l.t.Helper()
	n := &corev1.Node{}
	must(l.t, l.c.Get(l.t.Context(), client.ObjectKey{Name: "node-a"}, n))
	return n.Labels
}

func labelled(labels map[string]string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: labels}}
}

func TestLabeller_KeepsOwnLabels(t *testing.T) {
	obsolete := &v1.KubeVirt{ObjectMeta: metav1.ObjectMeta{Namespace: "kubevirt", Name: "kubevirt"}}
	obsolete.Spec.Configuration.ObsoleteCPUModels = map[string]bool{"Penryn": true, "EPYC": true, "qemu64": true, "qemu64-v1": true}
	for name, tt := range map[string]struct {
		node   *corev1.Node
		others []client.Object
		edit   func(*labelling)
		has    map[string]string
		hasNot []string
	}{
		"a node without labels": {node: labelled(nil), has: map[string]string{v1.CPUModelLabel + "Penryn": "true"}, hasNot: []string{v1.RealtimeLabel}},
		"labels that do not hold any more": {
			node:   labelled(map[string]string{v1.CPUModelLabel + "Gone": "true", v1.SEVLabel: "", v1.HostModelCPULabel + "EPYC": "false", "mine": "kept", v1.NodeSchedulable: "true"}),
			has:    map[string]string{v1.CPUModelLabel + "Penryn": "true", v1.HostModelCPULabel + "EPYC": "true", "mine": "kept", v1.NodeSchedulable: "true"},
			hasNot: []string{v1.CPUModelLabel + "Gone", v1.SEVLabel},
		},
		"models that the cluster takes for obsolete": {
			node: labelled(map[string]string{v1.CPUModelLabel + "Penryn": "true"}), others: []client.Object{obsolete},
			has: map[string]string{v1.NodeHostModelIsObsoleteLabel: "true"}, hasNot: []string{v1.CPUModelLabel + "Penryn"},
		},
		"a node that shall be left alone": {
			node: &corev1.Node{ObjectMeta: metav1.ObjectMeta{
				Labels: map[string]string{v1.CPUModelLabel + "Gone": "true"}, Annotations: map[string]string{v1.LabellerSkipNodeAnnotation: ""},
			}},
			has: map[string]string{v1.CPUModelLabel + "Gone": "true"}, hasNot: []string{v1.CPUModelLabel + "Penryn"},
		},
		"a hypervisor that fails": {
			node: labelled(map[string]string{v1.CPUModelLabel + "Old": "true"}), edit: func(l *labelling) { l.hv.SetCapabilities(domain.Capabilities{}) },
			has: map[string]string{v1.CPUModelLabel + "Old": "true"},
		},
		"realtime": {
			node: labelled(nil), edit: func(l *labelling) { must(l.t, os.WriteFile(l.RealtimeRuntime, []byte("-1\n"), 0o600)) },
			has: map[string]string{v1.RealtimeLabel: ""},
		},
		"realtime tasks are limited": {
			node: labelled(map[string]string{v1.RealtimeLabel: ""}), edit: func(l *labelling) { must(l.t, os.WriteFile(l.RealtimeRuntime, []byte("950000\n"), 0o600)) },
			hasNot: []string{v1.RealtimeLabel},
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLabelling(t, tt.node, tt.others...)
			if tt.edit != nil {
				tt.edit(l)
			}
			must(t, l.pass())
			got := l.labels()
			for key, want := range tt.has {
				if value, found := got[key]; !found || value != want {
					t.Errorf("%s is %q (%t), want %q", key, value, found, want)
				}
			}
			for _, key := range tt.hasNot {
				if _, found := got[key]; found {
					t.Errorf("%s is still there", key)
				}
			}
			written := l.patches
			must(t, l.pass())
			if l.patches != written {
				t.Error("wrote what the node says already")
			}
			if diff := cmp.Diff(got, l.labels()); diff != "" {
				t.Errorf("the second pass changed (-first +second):\n%s", diff)
			}
		})
	}
}

func TestLabeller_KeepsForeignLabels(t *testing.T) {
	l := newLabelling(t, labelled(map[string]string{"zone": "a", "old": "yes", v1.CPUModelLabel + "Gone": "true"}))
	l.meanwhile = func() {
		n := &corev1.Node{}
		must(t, l.c.Get(t.Context(), client.ObjectKey{Name: "node-a"}, n))
		n.Labels["zone"], n.Labels["new"] = "b", "yes"
		delete(n.Labels, "old")
		must(t, l.c.Update(t.Context(), n))
	}
	must(t, l.pass())
	got := l.labels()
	if got["zone"] != "b" || got["new"] != "yes" || got["old"] != "" || got[v1.CPUModelLabel+"Penryn"] != "true" || got[v1.CPUModelLabel+"Gone"] != "" {
		t.Errorf("the labels are %v", got)
	}
}

func TestLabeller_ObsoleteHostModelEvent(t *testing.T) {
	kv := &v1.KubeVirt{ObjectMeta: metav1.ObjectMeta{Namespace: "kubevirt", Name: "kubevirt"}}
	kv.Spec.Configuration.ObsoleteCPUModels = map[string]bool{"EPYC": true}
	l := newLabelling(t, labelled(nil), kv)
	must(t, l.pass())
	must(t, l.pass())
	if n := len(l.events.Events); n != 1 {
		t.Fatalf("%d events, want 1", n)
	}
	if e := <-l.events.Events; !strings.Contains(e, "HostModelIsObsolete") {
		t.Errorf("the event is %s", e)
	}
}

func TestLabeller_Retries(t *testing.T) {
	l := newLabelling(t, labelled(map[string]string{v1.CPUModelLabel + "Old": "true"}))
	l.hv.Disconnect()
	if err := l.pass(); !errors.Is(err, domain.ErrDisconnected) {
		t.Errorf("without its hypervisor: %v", err)
	}
	if got := l.labels(); got[v1.CPUModelLabel+"Old"] != "true" {
		t.Errorf("a hypervisor that does not answer cost the node its labels: %v", got)
	}
	l.hv.Reconnect()
	must(t, l.pass())
	if got := l.labels(); got[v1.CPUModelLabel+"Old"] != "" || got[v1.CPUModelLabel+"Penryn"] != "true" {
		t.Errorf("the labels are %v", got)
	}
}

func TestLabeller_RequiredFields(t *testing.T) {
	err := (&nodectrl.Labeller{}).SetupWithManager(nil)
	if err == nil {
		t.Fatal("it was set up")
	}
	for _, field := range []string{"NodeName", "Client", "Node", "Capabilities"} {
		if !strings.Contains(err.Error(), field) {
			t.Errorf("%v does not name %s", err, field)
		}
	}
}
