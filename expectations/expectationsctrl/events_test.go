// SPDX-License-Identifier: Apache-2.0

package expectationsctrl_test

import (
	"context"
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/virtloom/virtloom/expectations"
	"github.com/virtloom/virtloom/expectations/expectationsctrl"
)

func newQueue(t *testing.T) workqueue.TypedRateLimitingInterface[reconcile.Request] {
	t.Helper()
	q := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
	t.Cleanup(q.ShutDown)
	return q
}

func TestHandlerAndPredicateObserve(t *testing.T) {
	ctx, q := t.Context(), newQueue(t)
	newer := pod("there")
	newer.ResourceVersion = "2000"
	ref := expectations.Ref{Kind: podKind, Namespace: "ns", Name: "there"}
	passed := 0
	next := handler.Funcs{
		CreateFunc: func(context.Context, event.CreateEvent, workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			passed++
		},
		UpdateFunc: func(context.Context, event.UpdateEvent, workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			passed++
		},
		DeleteFunc: func(context.Context, event.DeleteEvent, workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			passed++
		},
		GenericFunc: func(context.Context, event.GenericEvent, workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			passed++
		},
	}
	for name, tc := range map[string]struct {
		expect  func(*scene)
		handle  func(handler.EventHandler)
		predict func(*scene) bool
		want    expectations.State
	}{
		"create": {func(s *scene) { s.ExpectCreate(owner, ref) },
			func(h handler.EventHandler) { h.Create(ctx, event.CreateEvent{Object: newer}, q) },
			func(s *scene) bool {
				return expectationsctrl.ObservePredicate(s.Tracker, podKind).Create(event.CreateEvent{Object: newer})
			}, expectations.Satisfied},
		"update": {func(s *scene) { s.ExpectUpdate(owner, ref, "", "2000") },
			func(h handler.EventHandler) {
				h.Update(ctx, event.UpdateEvent{ObjectOld: pod("there"), ObjectNew: newer}, q)
			},
			func(s *scene) bool {
				return expectationsctrl.ObservePredicate(s.Tracker, podKind).Update(event.UpdateEvent{ObjectOld: pod("there"), ObjectNew: newer})
			}, expectations.Satisfied},
		"delete": {func(s *scene) { s.ExpectDelete(owner, ref, newer.UID, "") },
			func(h handler.EventHandler) { h.Delete(ctx, event.DeleteEvent{Object: newer}, q) },
			func(s *scene) bool {
				return expectationsctrl.ObservePredicate(s.Tracker, podKind).Delete(event.DeleteEvent{Object: newer})
			}, expectations.Satisfied},
		"tombstone": {func(s *scene) { s.ExpectDelete(owner, ref, newer.UID, "") },
			func(h handler.EventHandler) {
				h.Delete(ctx, event.DeleteEvent{Object: newer, DeleteStateUnknown: true}, q)
			},
			func(s *scene) bool {
				return expectationsctrl.ObservePredicate(s.Tracker, podKind).Delete(event.DeleteEvent{Object: newer, DeleteStateUnknown: true})
			}, expectations.Expired},
		"generic": {func(s *scene) { s.ExpectCreate(owner, ref) },
			func(h handler.EventHandler) { h.Generic(ctx, event.GenericEvent{Object: newer}, q) },
			func(s *scene) bool {
				return expectationsctrl.ObservePredicate(s.Tracker, podKind).Generic(event.GenericEvent{Object: newer})
			}, expectations.Waiting},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t, interceptor.Funcs{}, nil)
			tc.expect(s)
			passed = 0
			tc.handle(expectationsctrl.Observing(s.Tracker, podKind, next))
			if got := s.Check(owner).State; got != tc.want || passed != 1 {
				t.Errorf("handler: got %s and passed %d events on; want %s and 1", got, passed, tc.want)
			}
			s = newScene(t, interceptor.Funcs{}, nil)
			tc.expect(s)
			if !tc.predict(s) {
				t.Error("the predicate drops the event")
			}
			if got := s.Check(owner).State; got != tc.want {
				t.Errorf("predicate: got %s, want %s", got, tc.want)
			}
		})
	}
}

func TestWakerEnqueuesTheOwner(t *testing.T) {
	w, q := expectationsctrl.NewWaker(), newQueue(t)
	w.Wake(owner)
	if err := w.Start(t.Context(), q); err != nil {
		t.Fatal(err)
	}
	got, _ := q.Get()
	if got.NamespacedName != owner.Key {
		t.Errorf("got %v for an owner woken before the start, want %v", got, owner.Key)
	}
	q.Done(got)
	w.Wake(owner)
	if got, _ = q.Get(); got.NamespacedName != owner.Key {
		t.Errorf("got %v, want %v", got, owner.Key)
	}
}

func mapper() meta.RESTMapper {
	m := meta.NewDefaultRESTMapper([]schema.GroupVersion{corev1.SchemeGroupVersion})
	m.Add(corev1.SchemeGroupVersion.WithKind("Pod"), meta.RESTScopeNamespace)
	return m
}

func TestResolverAsksTheServer(t *testing.T) {
	broken := errors.New("connection lost")
	for name, tc := range map[string]struct {
		expect func(t *testing.T, s *scene)
		read   error
		want   expectations.State
		err    error
	}{
		"creation that happened, which the cache has yet to show": {func(_ *testing.T, s *scene) { s.ExpectCreate(owner, there()) }, nil, expectations.Waiting, nil},
		"creation that did not":                                   {func(_ *testing.T, s *scene) { r := there(); r.Name = "never"; s.ExpectCreate(owner, r) }, nil, expectations.Satisfied, nil},
		"update that is reached":                                  {func(t *testing.T, s *scene) { s.ExpectUpdate(owner, there(), "", s.live(t, "there").ResourceVersion) }, nil, expectations.Satisfied, nil},
		"update that is not reached":                              {func(_ *testing.T, s *scene) { s.ExpectUpdate(owner, there(), "", "999999") }, nil, expectations.Waiting, nil},
		"update that cannot be compared":                          {func(_ *testing.T, s *scene) { s.ExpectUpdate(owner, there(), "", "x7") }, nil, expectations.Expired, expectationsctrl.ErrUnresolved},
		"server that cannot be read":                              {func(_ *testing.T, s *scene) { s.ExpectCreate(owner, there()) }, broken, expectations.Expired, broken},
		"kind that is not served": {func(_ *testing.T, s *scene) {
			r := there()
			r.Kind.Kind = "Unknown"
			s.ExpectCreate(owner, r)
		}, nil, expectations.Expired, &meta.NoKindMatchError{}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t, interceptor.Funcs{
				Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
					if tc.read != nil {
						return tc.read
					}
					return c.Get(ctx, key, obj, opts...)
				},
			}, nil)
			r := &expectationsctrl.Resolver{Tracker: s.Tracker, Reader: s.client, Mapper: mapper()}
			tc.expect(t, s)
			if v, err := r.Check(t.Context(), owner); err != nil || v.State != expectations.Waiting {
				t.Fatalf("got %s, %v before the deadline; want no live read", v.State, err)
			}
			s.now = s.now.Add(time.Minute)
			v, err := r.Check(t.Context(), owner)
			if v.State != tc.want {
				t.Errorf("got %s, want %s", v.State, tc.want)
			}
			if (tc.err == nil) != (err == nil) || (tc.err != nil && !errors.Is(err, tc.err) && !meta.IsNoMatchError(err)) {
				t.Errorf("got error %v, want %v", err, tc.err)
			}
		})
	}
}

func there() expectations.Ref {
	return expectations.Ref{Kind: podKind, Namespace: "ns", Name: "there"}
}
