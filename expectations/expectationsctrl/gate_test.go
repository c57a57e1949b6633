// SPDX-License-Identifier: Apache-2.0

package expectationsctrl_test

import (
	"context"
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/virtloom/virtloom/expectations"
	"github.com/virtloom/virtloom/expectations/expectationsctrl"
)

var (
	podKind = schema.GroupKind{Kind: "Pod"}
	owner   = expectations.Owner{Key: types.NamespacedName{Namespace: "ns", Name: "vm"}, UID: "o1"}
)

func pod(name string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-" + name)}}
}

// cluster stands for a manager: a server, and a cache that shows the objects the test puts into it.
type cluster struct {
	server client.Client
	cache  shown
}

func (c cluster) GetClient() client.Client    { return c.server }
func (c cluster) GetAPIReader() client.Reader { return c.server }
func (c cluster) GetCache() cache.Cache       { return c.cache }

// shown is the part of a cache that a Gate uses, with Pods by name.
type shown struct {
	cache.Cache
	pods map[string]*corev1.Pod
}

func (s shown) Get(_ context.Context, key client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
	p, ok := s.pods[key.Name]
	if !ok {
		return apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, key.Name)
	}
	p.DeepCopyInto(obj.(*corev1.Pod))
	return nil
}

// setup is the configuration of a scene.
type setup struct {
	faults   interceptor.Funcs // of the server
	hidden   func(schema.GroupKind, metav1.Object) bool
	observer expectations.Observer
}

type scene struct {
	cluster
	gate    *expectationsctrl.Gate
	tracker *expectations.Tracker
	writes  client.Client
	clock   *clocktesting.FakePassiveClock
	queue   *queue
}

// newScene has a server with the Pod "there" and an empty cache that Pods are known to arrive in.
func newScene(t *testing.T, with setup) *scene {
	t.Helper()
	s := &scene{clock: clocktesting.NewFakePassiveClock(time.Unix(1000, 0)), queue: newQueue(t)}
	s.server = fake.NewClientBuilder().WithRESTMapper(mapper()).WithObjects(pod("there")).
		WithStatusSubresource(&corev1.Pod{}).WithInterceptorFuncs(with.faults).Build()
	s.cache.pods = map[string]*corev1.Pod{}
	var err error
	s.gate, err = expectationsctrl.NewGate(s, expectationsctrl.Options{Clock: s.clock, TTL: time.Minute, Hidden: with.hidden, Observer: with.observer})
	if err != nil {
		t.Fatal(err)
	}
	s.tracker, s.writes = s.gate.Tracker(), s.gate.For(owner)
	if err := s.gate.Source().Start(t.Context(), s.queue); err != nil {
		t.Fatal(err)
	}
	s.gate.Observing().Create(event.CreateEvent{Object: pod("other")})
	return s
}

func mapper() meta.RESTMapper {
	m := meta.NewDefaultRESTMapper([]schema.GroupVersion{corev1.SchemeGroupVersion})
	m.Add(corev1.SchemeGroupVersion.WithKind("Pod"), meta.RESTScopeNamespace)
	return m
}

func (s *scene) live(t *testing.T, name string) *corev1.Pod {
	t.Helper()
	p := &corev1.Pod{}
	if err := s.server.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: name}, p); err != nil {
		t.Fatal(err)
	}
	return p
}

// catchUp updates a Pod in the cache to the server's state, without an event.
func (s *scene) catchUp(t *testing.T, name string) {
	t.Helper()
	s.cache.pods[name] = s.live(t, name)
}

func there() expectations.Ref {
	return expectations.Ref{Kind: podKind, Namespace: "ns", Name: "there"}
}

func TestCheck_ReadsLiveAfterTTL(t *testing.T) {
	broken := errors.New("connection lost")
	for name, tc := range map[string]struct {
		expect func(t *testing.T, s *scene)
		read   error
		want   expectations.State
		err    error
	}{
		"creation that happened, which the cache has yet to show": {func(_ *testing.T, s *scene) {
			s.tracker.ExpectCreate(owner, there())
		}, nil, expectations.Waiting, nil},
		"creation that happened, which the cache shows": {func(t *testing.T, s *scene) {
			s.tracker.ExpectCreate(owner, there())
			s.catchUp(t, "there")
		}, nil, expectations.Satisfied, nil},
		"creation that did not": {func(_ *testing.T, s *scene) {
			r := there()
			r.Name = "never"
			s.tracker.ExpectCreate(owner, r)
		}, nil, expectations.Satisfied, nil},
		"update that is reached": {func(t *testing.T, s *scene) {
			s.tracker.ExpectUpdate(owner, there(), "", s.live(t, "there").ResourceVersion)
		}, nil, expectations.Satisfied, nil},
		"update that is not reached": {func(_ *testing.T, s *scene) {
			s.tracker.ExpectUpdate(owner, there(), "", "999999")
		}, nil, expectations.Waiting, nil},
		"update that cannot be compared": {func(_ *testing.T, s *scene) {
			s.tracker.ExpectUpdate(owner, there(), "", "x7")
		}, nil, expectations.Expired, expectationsctrl.ErrUnresolved},
		"update that cannot be compared, by a cache that is current": {func(t *testing.T, s *scene) {
			s.tracker.ExpectUpdate(owner, there(), "", "x7")
			s.catchUp(t, "there")
		}, nil, expectations.Satisfied, nil},
		"server that cannot be read": {func(_ *testing.T, s *scene) { s.tracker.ExpectCreate(owner, there()) }, broken, expectations.Expired, broken},
		"kind that is not served": {func(_ *testing.T, s *scene) {
			r := there()
			r.Kind.Kind = "Unknown"
			s.tracker.ExpectCreate(owner, r)
		}, nil, expectations.Expired, &meta.NoKindMatchError{}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t, setup{faults: interceptor.Funcs{
				Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
					if tc.read != nil {
						return tc.read
					}
					return c.Get(ctx, key, obj, opts...)
				},
			}})
			tc.expect(t, s)
			if v, err := s.gate.Check(t.Context(), owner); err != nil || v.State != expectations.Waiting {
				t.Fatalf("got %s, %v before the deadline; want no live read", v.State, err)
			}
			s.clock.SetTime(s.clock.Now().Add(time.Minute))
			v, err := s.gate.Check(t.Context(), owner)
			if v.State != tc.want {
				t.Errorf("got %s, want %s", v.State, tc.want)
			}
			if (tc.err == nil) != (err == nil) || (tc.err != nil && !errors.Is(err, tc.err) && !meta.IsNoMatchError(err)) {
				t.Errorf("got error %v, want %v", err, tc.err)
			}
		})
	}
}

func TestSource_EnqueuesOwners(t *testing.T) {
	gate, err := expectationsctrl.NewGate(cluster{server: fake.NewClientBuilder().Build()}, expectationsctrl.Options{})
	if err != nil {
		t.Fatal(err)
	}
	q := newQueue(t)
	gate.Wake(owner.Key)
	if err := gate.Source().Start(t.Context(), q); err != nil {
		t.Fatal(err)
	}
	want := reconcile.Request{NamespacedName: owner.Key}
	if got, _ := q.Get(); got != want {
		t.Errorf("got %v for an owner woken before the start, want %v", got, want)
	}
	q.Done(want)
	ref := there()
	gate.Tracker().ExpectCreate(owner, ref)
	gate.Observing().Create(event.CreateEvent{Object: pod("there")})
	if got, _ := q.Get(); got != want {
		t.Errorf("got %v when the write became visible, want %v", got, want)
	}
}

func TestForget_DropsWrites(t *testing.T) {
	s := newScene(t, setup{})
	s.tracker.ExpectCreate(owner, there())
	s.gate.Forget(owner.Key)
	if v, err := s.gate.Check(t.Context(), owner); err != nil || !v.Satisfied() {
		t.Errorf("got %s %v, %v", v.State, v.Pending, err)
	}
}
