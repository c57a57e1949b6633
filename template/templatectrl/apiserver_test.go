// SPDX-License-Identifier: Apache-2.0

package templatectrl_test

import (
	"context"
	"maps"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/virtloom/virtloom/internal/rig"
	"github.com/virtloom/virtloom/internal/rig/rigtest"
	"github.com/virtloom/virtloom/template/templatectrl"
)

// requests records a process's requests to the API server.
type requests struct {
	mu sync.Mutex
	// watched are the resources with a cache, read those that are read one at a time, and how.
	watched, read map[string]bool
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// wrap is for rest.Config.Wrap.
func (r *requests) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(req *http.Request) (*http.Response, error) {
		r.note(req)
		return next.RoundTrip(req)
	})
}

func (r *requests) note(req *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case req.URL.Query().Has("watch"):
		r.watched[path.Base(req.URL.Path)] = true
	case strings.Contains(req.URL.Path, "/namespaces/ns/"):
		kind := path.Base(path.Dir(req.URL.Path))
		if strings.Contains(req.Header.Get("Accept"), "as=PartialObjectMetadata") {
			kind += " by metadata"
		}
		r.read[kind] = true
	}
}

// manager runs a manager whose requests are recorded.
func manager(t *testing.T, r *rig.Rig, seen *requests) ctrl.Manager {
	t.Helper()
	scheme, err := newScheme()
	if err != nil {
		t.Fatal(err)
	}
	cfg := r.Config(rig.UserController)
	cfg.Wrap(seen.wrap)
	mgr, err := ctrl.NewManager(cfg, ctrl.Options{Scheme: scheme, Logger: logr.Discard(), Metrics: server.Options{BindAddress: "0"}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return mgr
}

func TestGatherer_CachesNoConfigMaps(t *testing.T) {
	r := rigtest.New(t)
	seen := &requests{watched: map[string]bool{}, read: map[string]bool{}}
	mgr := manager(t, r, seen)
	admin, err := client.New(r.Config(rig.UserAdmin), client.Options{Scheme: mgr.GetScheme()})
	if err != nil {
		t.Fatal(err)
	}
	claim := func(name string, labels map[string]string) *corev1.PersistentVolumeClaim {
		c := pvc("ns", name, labels)
		c.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
		c.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
		return c
	}
	for _, o := range []client.Object{
		namespace("ns", map[string]string{"team": "a"}), configMap("ns", "hook"), claim("disk", nil),
		claim("state", map[string]string{templatectrl.PersistentStateLabel: "guest"}),
		&corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "quota"}},
		&v1.KubeVirt{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "kubevirt"}},
	} {
		if err := admin.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	vmi := guest(volume("a", claimed("disk")), volume("b", claimed("missing")), networks("blue"),
		hooks(`[{"configMap":{"name":"hook"}},{"configMap":{"name":"missing"}}]`))
	g := &templatectrl.Gatherer{Client: mgr.GetClient(), Live: mgr.GetAPIReader()}
	f, err := g.Facts(t.Context(), vmi, gateOff, nil) // without a definition of networks in the cluster
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(summary{claims: []string{"disk", "state"}, configMaps: []string{"hook"}, quotas: []string{"quota"}}, summarize(f), cmp.AllowUnexported(summary{})); diff != "" {
		t.Errorf("facts (-want +got):\n%s", diff)
	}
	if f.NamespaceLabels["team"] != "a" {
		t.Errorf("labels %v", f.NamespaceLabels)
	}
	if kv, err := g.KubeVirt(t.Context()); err != nil || kv == nil || kv.Name != "kubevirt" {
		t.Errorf("KubeVirt %v, error %v", kv, err)
	}
	if node, err := g.SourceNode(t.Context(), &corev1.Pod{Spec: corev1.PodSpec{NodeName: "nowhere"}}); err != nil || node != nil {
		t.Errorf("Node %v, error %v; want none", node, err)
	}
	seen.mu.Lock()
	defer seen.mu.Unlock()
	if diff := cmp.Diff([]string{"kubevirts", "namespaces", "nodes", "persistentvolumeclaims", "resourcequotas"}, slices.Sorted(maps.Keys(seen.watched))); diff != "" {
		t.Errorf("caches (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"configmaps by metadata"}, slices.Sorted(maps.Keys(seen.read))); diff != "" {
		t.Errorf("live reads (-want +got):\n%s", diff)
	}
}
