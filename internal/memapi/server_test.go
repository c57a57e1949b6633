// SPDX-License-Identifier: Apache-2.0

package memapi_test

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/internal/memapi"
)

// scene is a server with a client.
type scene struct {
	t      *testing.T
	server *memapi.Server
	access *memapi.Access
	client.WithWatch
}

func newScene(t *testing.T) *scene {
	t.Helper()
	core := corev1.SchemeGroupVersion
	s := &scene{t: t, server: memapi.NewServer([]memapi.Kind{
		{GroupVersionKind: core.WithKind("Pod"), Plural: "pods", Status: true, Graceful: true, Typed: corev1.Pod{}},
		{GroupVersionKind: core.WithKind("Node"), Plural: "nodes", Cluster: true},
		{GroupVersionKind: core.WithKind("ConfigMap"), Plural: "configmaps"},
	}, nil)}
	s.access = s.server.Access("tester")
	scheme := runtime.NewScheme()
	s.must(clientgoscheme.AddToScheme(scheme))
	var err error
	s.WithWatch, err = client.NewWithWatch(s.access.Config(), client.Options{Scheme: scheme})
	s.must(err)
	return s
}

func (s *scene) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *scene) pod(name string) *corev1.Pod {
	s.t.Helper()
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, Labels: map[string]string{"app": name}}}
	p.Spec.Containers = []corev1.Container{{Name: "one", Image: "a"}, {Name: "two", Image: "b"}}
	s.must(s.Create(s.t.Context(), p))
	return p
}

func TestWrites(t *testing.T) {
	for name, tt := range map[string]struct {
		do   func(*scene, *corev1.Pod) error
		want func(error) bool
		is   func(*corev1.Pod) bool
	}{
		"an update at the version that is there": {
			func(s *scene, p *corev1.Pod) error { p.Labels["x"] = "y"; return s.Update(s.t.Context(), p) },
			nil, func(p *corev1.Pod) bool { return p.Labels["x"] == "y" }},
		"an update at an older version": {
			func(s *scene, p *corev1.Pod) error {
				old := p.DeepCopy()
				p.Labels["x"] = "y"
				s.must(s.Update(s.t.Context(), p))
				return s.Update(s.t.Context(), old)
			}, apierrors.IsConflict, func(p *corev1.Pod) bool { return p.Labels["x"] == "y" }},
		"a status that is written with the rest": {
			func(s *scene, p *corev1.Pod) error { p.Status.Phase = "Running"; return s.Update(s.t.Context(), p) },
			nil, func(p *corev1.Pod) bool { return p.Status.Phase == "" }},
		"a status that is written apart": {
			func(s *scene, p *corev1.Pod) error {
				p.Status.Phase, p.Labels["x"] = "Running", "y"
				return s.Status().Update(s.t.Context(), p)
			}, nil, func(p *corev1.Pod) bool { return p.Status.Phase == "Running" }},
		"a strategic patch merges by name": {
			func(s *scene, p *corev1.Pod) error {
				return s.Patch(s.t.Context(), p, client.RawPatch(types.StrategicMergePatchType, []byte(`{"spec":{"containers":[{"name":"two","image":"c"}]}}`)))
			}, nil, func(p *corev1.Pod) bool { return len(p.Spec.Containers) == 2 && p.Spec.Containers[1].Image == "c" }},
		"a merge patch replaces": {
			func(s *scene, p *corev1.Pod) error {
				return s.Patch(s.t.Context(), p, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"app":null}}}`)))
			}, nil, func(p *corev1.Pod) bool { return len(p.Labels) == 0 }},
		"a patch at an older version": {
			func(s *scene, p *corev1.Pod) error {
				return s.Patch(s.t.Context(), p, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"resourceVersion":"1000","labels":{"x":"y"}}}`)))
			}, apierrors.IsConflict, func(p *corev1.Pod) bool { return p.Labels["x"] == "" }},
		"a JSON patch whose test fails": {
			func(s *scene, p *corev1.Pod) error {
				return s.Patch(s.t.Context(), p, client.RawPatch(types.JSONPatchType, []byte(`[{"op":"test","path":"/metadata/labels/app","value":"other"}]`)))
			}, apierrors.IsInvalid, func(p *corev1.Pod) bool { return true }},
		"a second one of the name": {
			func(s *scene, p *corev1.Pod) error {
				return s.Create(s.t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: p.Name}})
			}, apierrors.IsAlreadyExists, func(p *corev1.Pod) bool { return p.Labels["app"] == "a" }},
		"a deletion of another one": {
			func(s *scene, p *corev1.Pod) error {
				uid := types.UID("other")
				return s.Delete(s.t.Context(), p, client.Preconditions{UID: &uid})
			}, apierrors.IsConflict, func(p *corev1.Pod) bool { return p.DeletionTimestamp == nil }},
		"a deletion of a Pod on a node takes its time": {
			func(s *scene, p *corev1.Pod) error {
				p.Spec.NodeName = "n"
				s.must(s.Update(s.t.Context(), p))
				return s.Delete(s.t.Context(), p)
			}, nil, func(p *corev1.Pod) bool { return p.DeletionTimestamp != nil }},
		"so it does with a finalizer": {
			func(s *scene, p *corev1.Pod) error {
				p.Finalizers = []string{"example.test/f"}
				s.must(s.Update(s.t.Context(), p))
				return s.Delete(s.t.Context(), p)
			}, nil, func(p *corev1.Pod) bool { return p.DeletionTimestamp != nil }},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			p := s.pod("a")
			err := tt.do(s, p.DeepCopy())
			if tt.want == nil && err != nil || tt.want != nil && !tt.want(err) {
				t.Errorf("the answer is %v", err)
			}
			got := &corev1.Pod{}
			s.must(s.Get(t.Context(), client.ObjectKeyFromObject(p), got))
			if !tt.is(got) {
				t.Errorf("it is %+v", got)
			}
		})
	}
}

func TestDeletions(t *testing.T) {
	s, ctx := newScene(t), t.Context()
	gone := func(o client.Object) {
		t.Helper()
		if err := s.Get(ctx, client.ObjectKeyFromObject(o), o); !apierrors.IsNotFound(err) {
			t.Errorf("%s is still there: %v", o.GetName(), err)
		}
	}
	free := s.pod("free")
	s.must(s.Delete(ctx, free))
	gone(free)
	bound := s.pod("bound")
	bound.Spec.NodeName = "n"
	s.must(s.Update(ctx, bound))
	s.must(s.Delete(ctx, bound))
	s.must(s.Delete(ctx, bound, client.GracePeriodSeconds(0)))
	gone(bound)
	held := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "held", Finalizers: []string{"example.test/f"}}}
	s.must(s.Create(ctx, held))
	s.must(s.Delete(ctx, held))
	s.must(s.Patch(ctx, held, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))))
	gone(held)
	if n := s.server.Count(); n != 0 {
		t.Errorf("%d objects are left", n)
	}
}

// next reads the next event of a watch.
func next(t *testing.T, w watch.Interface) (watch.EventType, string) {
	t.Helper()
	e, open := <-w.ResultChan()
	if !open {
		return "closed", ""
	}
	o, _ := e.Object.(client.Object)
	if o == nil {
		return e.Type, ""
	}
	return e.Type, o.GetName()
}

func TestWatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, ctx := newScene(t), t.Context()
		w, err := s.Watch(ctx, &corev1.PodList{}, client.InNamespace("ns"), client.MatchingLabels{"app": "a"})
		s.must(err)
		p := s.pod("a")
		s.pod("b")
		p.Labels["x"] = "y"
		s.must(s.Update(ctx, p))
		p.Labels["app"] = "other"
		s.must(s.Update(ctx, p))
		for _, want := range []watch.EventType{watch.Added, watch.Modified, watch.Deleted} {
			if got, name := next(t, w); got != want || name != "a" {
				t.Errorf("got %s of %q, want %s of a", got, name, want)
			}
		}
		s.access.BreakWatches()
		if got, _ := next(t, w); got != "closed" {
			t.Errorf("a broken watch emits %s", got)
		}
		w.Stop()
		synctest.Wait()
		if n := s.server.Watches(); n != 0 {
			t.Errorf("%d watches are left", n)
		}
	})
}

func TestWatch_Compaction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, ctx := newScene(t), t.Context()
		p := s.pod("a")
		from := func(version string) error {
			w, err := s.Watch(ctx, &corev1.PodList{}, &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: version}})
			if err == nil {
				w.Stop()
				synctest.Wait()
			}
			return err
		}
		s.pod("b")
		s.must(from(p.ResourceVersion))
		s.server.Compact()
		if err := from(p.ResourceVersion); !apierrors.IsResourceExpired(err) {
			t.Errorf("a watch from before: %v, want that it has expired", err)
		}
		s.must(from(s.pod("c").ResourceVersion))
	})
}

func TestFaults(t *testing.T) {
	for name, tt := range map[string]struct {
		fate          memapi.Fate
		wrong, stored bool
	}{
		"none":                         {memapi.Fate{}, false, true},
		"a delay":                      {memapi.Fate{After: time.Hour}, false, true},
		"a refusal":                    {memapi.Fate{Refuse: http.StatusForbidden}, true, false},
		"a request that is lost":       {memapi.Fate{Lose: true}, true, false},
		"one that comes late":          {memapi.Fate{Lose: true, Late: time.Hour}, true, true},
		"an answer that is lost":       {memapi.Fate{LoseAnswer: true}, true, true},
		"a refusal after a long delay": {memapi.Fate{After: time.Hour, Refuse: http.StatusConflict}, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newScene(t)
				s.access.SetFaults(&memapi.Faults{Request: func(verb, _ string) memapi.Fate {
					if verb != "create" {
						return memapi.Fate{}
					}
					return tt.fate
				}})
				p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"}}
				if err := s.Create(t.Context(), p); (err != nil) != tt.wrong {
					t.Errorf("the answer is %v", err)
				}
				time.Sleep(2 * time.Hour)
				if stored := s.server.Count() == 1; stored != tt.stored {
					t.Errorf("stored: %v, want %v", stored, tt.stored)
				}
			})
		})
	}
}

func TestClient_Disconnected(t *testing.T) {
	s := newScene(t)
	s.access.Cut(true)
	if err := s.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}); err == nil {
		t.Error("it reaches the server")
	}
	s.access.Cut(false)
	s.must(s.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Get(ctx, client.ObjectKey{Name: "n"}, &corev1.Node{}); !errors.Is(err, context.Canceled) {
		t.Errorf("a request that was given up is %v", err)
	}
	if err := s.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: "s"}, &corev1.Secret{}); err == nil {
		t.Error("a kind is served that is not there")
	}
}
