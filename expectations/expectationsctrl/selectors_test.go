// SPDX-License-Identifier: Apache-2.0

package expectationsctrl_test

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/expectations"
	"github.com/virtloom/virtloom/expectations/expectationsctrl"
)

// selecting is a cache of one namespace, and of its Pods with the label seen=yes.
func selecting(namespace string) cache.Options {
	return cache.Options{
		DefaultNamespaces: map[string]cache.Config{namespace: {}},
		ByObject:          map[client.Object]cache.ByObject{&corev1.Pod{}: {Label: labels.SelectorFromSet(labels.Set{"seen": "yes"})}},
	}
}

func unlabelled(gk schema.GroupKind, o metav1.Object) bool {
	return gk == podKind && o.GetLabels()["seen"] != "yes"
}

func (s *stage) expect(t *testing.T, what string, want expectations.State) {
	t.Helper()
	if v, err := s.gate.Check(t.Context(), owner); err != nil || v.State != want {
		t.Errorf("%s: got %s %v, %v; want %s", what, v.State, v.Pending, err, want)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// outside has a controller that cannot see its own Pod.
func outside(t *testing.T, config *rest.Config) {
	direct := newClient(t, config)
	r := &onePod{labels: map[string]string{"of": "vm"}}
	r.start(t, config, selecting("blind"), "blind")
	cm := prepareNamespace(t, direct, "blind")
	eventually(t, "the pod is created", func(context.Context) (bool, error) { return livePods(t, direct, "blind") > 0, nil })
	poke(t, direct, cm, "early")
	eventually(t, "the controller waits", func(context.Context) (bool, error) { return r.count(expectations.Waiting) > 0, nil })
	if r.gate.Tracker().Outstanding() != 1 || livePods(t, direct, "blind") != 1 {
		t.Fatalf("%d writes outstanding, %d pods before the deadline", r.gate.Tracker().Outstanding(), livePods(t, direct, "blind"))
	}
	r.clock.SetTime(r.clock.Now().Add(time.Minute))
	v, err := r.gate.Check(t.Context(), expectationsctrl.OwnerOf(cm))
	if err != nil || !v.Satisfied() {
		t.Errorf("got %s %v, %v; want the live read to settle it", v.State, v.Pending, err)
	}
}

// unseen writes an object that the cache leaves out by a field selector, with every verb.
func unseen(t *testing.T, config *rest.Config) {
	s := newStage(t, config, "unseen", staging{sample: &corev1.Pod{}, cache: cache.Options{
		DefaultNamespaces: map[string]cache.Config{"unseen": {}},
		ByObject:          map[client.Object]cache.ByObject{&corev1.Pod{}: {Field: fields.OneTermEqualSelector("metadata.name", "chosen")}},
	}})
	c, p, ctx := s.gate.For(owner), idle("unseen", "pod"), t.Context()
	for _, step := range []struct {
		what  string
		write func() error
	}{
		{"create", func() error { return c.Create(ctx, p) }},
		{"create again", func() error { return client.IgnoreAlreadyExists(c.Create(ctx, idle("unseen", "pod"))) }},
		{"update", func() error { return c.Update(ctx, relabelled(p)) }},
		{"delete", func() error { return c.Delete(ctx, p) }},
	} {
		must(t, step.write())
		s.expect(t, step.what, expectations.Waiting)
		s.clock.SetTime(s.clock.Now().Add(expectations.DefaultTTL))
		s.expect(t, step.what+", after the TTL", expectations.Satisfied)
	}
}

// hidden writes objects that the gate knows the cache to leave out.
func hidden(t *testing.T, config *rest.Config) {
	s := newStage(t, config, "hidden", staging{sample: &corev1.Pod{}, cache: selecting("hidden"), hidden: unlabelled})
	c, p, ctx := s.gate.For(owner), idle("hidden", "pod"), t.Context()
	must(t, c.Create(ctx, p))
	s.expect(t, "create", expectations.Satisfied)
	must(t, client.IgnoreAlreadyExists(c.Create(ctx, idle("hidden", "pod"))))
	s.expect(t, "create again", expectations.Satisfied)
	must(t, c.Update(ctx, relabelled(p)))
	s.expect(t, "update", expectations.Satisfied)

	s.shut()
	must(t, c.Patch(ctx, p, merge(`{"metadata":{"labels":{"seen":"yes"}}}`)))
	s.expect(t, "move inside", expectations.Waiting)
	s.open()
	s.awaitWake(t)
	s.expect(t, "move inside, seen", expectations.Satisfied)

	s.shut()
	must(t, c.Patch(ctx, p, merge(`{"metadata":{"labels":{"seen":"no"}}}`)))
	s.expect(t, "move outside", expectations.Waiting)
	s.open()
	s.awaitWake(t)
	s.expect(t, "move outside, seen", expectations.Satisfied)

	must(t, c.Delete(ctx, p))
	s.expect(t, "delete", expectations.Satisfied)
}

// namespaces has caches of two namespaces, of which one lags behind the other, and none of a third.
func namespaces(t *testing.T, config *rest.Config) {
	var left valve
	s := newStage(t, config, "right", staging{sample: &corev1.Pod{}, cache: cache.Options{DefaultNamespaces: map[string]cache.Config{
		"left": {Transform: left.transform}, "right": {},
	}}})
	prepareNamespace(t, s.admin, "left")
	prepareNamespace(t, s.admin, "neither")
	c, ctx := s.gate.For(owner), t.Context()
	left.shut()
	must(t, c.Create(ctx, idle("left", "pod")))
	must(t, c.Create(ctx, idle("right", "pod")))
	later := idle("right", "later")
	must(t, s.admin.Create(ctx, later))
	s.shown(t, later)
	var v expectations.Verdict
	eventually(t, "the event of the other namespace is seen", func(context.Context) (_ bool, err error) {
		v, err = s.gate.Check(ctx, owner)
		return len(v.Pending) < 2, err
	})
	if len(v.Pending) != 1 || v.Pending[0].Namespace != "left" {
		t.Errorf("got %v; want to wait for the namespace that lags behind", v.Pending)
	}
	left.open()
	s.awaitWake(t)
	s.expect(t, "both seen", expectations.Satisfied)

	must(t, c.Create(ctx, idle("neither", "pod")))
	s.expect(t, "a namespace that is not cached", expectations.Waiting)
	s.clock.SetTime(s.clock.Now().Add(expectations.DefaultTTL))
	s.expect(t, "a namespace that is not cached, after the TTL", expectations.Satisfied)
}
