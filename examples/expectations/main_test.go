// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"maps"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/virtloom/virtloom/expectations/expectationsctrl"
)

// lagging is a cluster whose cache shows Pods only when the test lets it.
type lagging struct {
	cache.Cache    // what of it is not below is not used
	server, cached client.Client
	shown          map[string]corev1.Pod
}

func (l *lagging) GetClient() client.Client    { return l.cached }
func (l *lagging) GetAPIReader() client.Reader { return l.server }
func (l *lagging) GetCache() cache.Cache       { return l }

// Get and List are the cache's.
func (l *lagging) Get(_ context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	pod, found := l.shown[key.Name]
	if !found {
		return apierrors.NewNotFound(corev1.Resource("pods"), key.Name)
	}
	pod.DeepCopyInto(into.(*corev1.Pod))
	return nil
}

func (l *lagging) List(_ context.Context, into client.ObjectList, _ ...client.ListOption) error {
	into.(*corev1.PodList).Items = slices.Collect(maps.Values(l.shown))
	return nil
}

func newLagging(t *testing.T, pool client.Object) *lagging {
	t.Helper()
	l := &lagging{shown: map[string]corev1.Pod{}}
	// A server gives each object a UID; the fake one does not.
	server := fake.NewClientBuilder().WithObjects(pool).WithInterceptorFuncs(interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			o.SetUID(types.UID("uid-" + o.GetName()))
			return c.Create(ctx, o, opts...)
		},
	}).Build()
	l.server = server
	l.cached = interceptor.NewClient(server, interceptor.Funcs{
		List: func(ctx context.Context, _ client.WithWatch, into client.ObjectList, opts ...client.ListOption) error {
			return l.List(ctx, into, opts...)
		},
	})
	return l
}

// stored are the Pods that the server has.
func (l *lagging) stored(t *testing.T) []corev1.Pod {
	t.Helper()
	var pods corev1.PodList
	if err := l.server.List(t.Context(), &pods); err != nil {
		t.Fatal(err)
	}
	return pods.Items
}

// catchUp updates the cache to the state of the server, and emits the watch events.
func (l *lagging) catchUp(t *testing.T, gate *expectationsctrl.Gate) {
	t.Helper()
	now := map[string]corev1.Pod{}
	for _, pod := range l.stored(t) {
		now[pod.Name] = pod
		if _, known := l.shown[pod.Name]; !known {
			gate.Observing().Create(event.CreateEvent{Object: pod.DeepCopy()})
		}
	}
	for name, pod := range l.shown {
		if _, there := now[name]; !there {
			gate.Observing().Delete(event.DeleteEvent{Object: pod.DeepCopy()})
		}
	}
	l.shown = now
}

func newPool(workers string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Namespace: "default", Name: "web", UID: "7f2c", Annotations: map[string]string{workersAnnotation: workers},
	}}
}

func TestPool_StaleCache(t *testing.T) {
	pool := newPool("3")
	l := newLagging(t, pool)
	gate, err := expectationsctrl.NewGate(l, expectationsctrl.Options{})
	if err != nil {
		t.Fatal(err)
	}
	p := &pools{Client: l.cached, gate: gate}
	passes := func(want int) {
		t.Helper()
		for range 5 {
			if _, err := p.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(pool)}); err != nil {
				t.Fatal(err)
			}
		}
		if got := len(l.stored(t)); got != want {
			t.Fatalf("there are %d Pods, want %d", got, want)
		}
	}
	passes(3)
	l.catchUp(t, gate)
	passes(3)

	pool.Annotations[workersAnnotation] = "1"
	if err := l.server.Update(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	passes(1)
	l.catchUp(t, gate)
	passes(1)
}

// Without the gate the same scale makes a Pod for each pass, which is what the example is about.
func TestPool_WithoutExpectations(t *testing.T) {
	pool := newPool("3")
	l := newLagging(t, pool)
	for range 2 {
		if err := scale(t.Context(), l.cached, pool, 3); err != nil {
			t.Fatal(err)
		}
	}
	if got := len(l.stored(t)); got != 6 {
		t.Fatalf("there are %d Pods; a cache that lags should have made it 6", got)
	}
}

func TestPool_OtherObjects(t *testing.T) {
	for name, workers := range map[string]string{"no number": "many", "less than none": "-1", "nothing": ""} {
		t.Run(name, func(t *testing.T) {
			l := newLagging(t, newPool(workers))
			gate, err := expectationsctrl.NewGate(l, expectationsctrl.Options{})
			if err != nil {
				t.Fatal(err)
			}
			p := &pools{Client: l.cached, gate: gate}
			if _, err := p.Reconcile(t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Namespace: "default", Name: "web"}}); err != nil {
				t.Fatal(err)
			}
			if got := l.stored(t); len(got) != 0 {
				t.Fatalf("Pods were made: %v", got)
			}
		})
	}
}
