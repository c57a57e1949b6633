// SPDX-License-Identifier: Apache-2.0

package expectationsctrl_test

import (
	"context"
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

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

type scene struct {
	*expectations.Tracker
	client client.Client
	writes client.Client
	now    time.Time
	woken  []expectations.Owner
}

// newScene has a server with the Pod "there" and a recording client whose cache is the given reader.
func newScene(t *testing.T, faults interceptor.Funcs, cache client.Reader) *scene {
	t.Helper()
	s := &scene{now: time.Unix(1000, 0)}
	tracker, err := expectations.New(expectations.Options{
		Now: func() time.Time { return s.now }, TTL: time.Minute,
		Wake: func(o expectations.Owner) { s.woken = append(s.woken, o) },
	})
	if err != nil {
		t.Fatal(err)
	}
	s.Tracker = tracker
	s.client = fake.NewClientBuilder().WithObjects(pod("there")).WithStatusSubresource(&corev1.Pod{}).WithInterceptorFuncs(faults).Build()
	s.writes = expectationsctrl.NewRecordingClient(s.client, tracker, cache).For(owner)
	return s
}

func (s *scene) live(t *testing.T, name string) *corev1.Pod {
	t.Helper()
	p := &corev1.Pod{}
	if err := s.client.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: name}, p); err != nil {
		t.Fatal(err)
	}
	return p
}

func TestWritesAreExpectedUntilTheirEvent(t *testing.T) {
	for name, tc := range map[string]struct {
		write func(context.Context, client.Client, *corev1.Pod) error
		verb  expectations.Verb
		event func(t *testing.T, s *scene)
	}{
		"create": {func(ctx context.Context, c client.Client, _ *corev1.Pod) error { return c.Create(ctx, pod("new")) },
			expectations.Create, func(t *testing.T, s *scene) { s.Observe(podKind, s.live(t, "new"), expectations.Added) }},
		"update": {func(ctx context.Context, c client.Client, p *corev1.Pod) error {
			p.Labels = map[string]string{"a": "b"}
			return c.Update(ctx, p)
		}, expectations.Update, observeLive},
		"patch": {func(ctx context.Context, c client.Client, p *corev1.Pod) error {
			base := p.DeepCopy()
			p.Labels = map[string]string{"a": "b"}
			return c.Patch(ctx, p, client.MergeFrom(base))
		}, expectations.Update, observeLive},
		"status update": {func(ctx context.Context, c client.Client, p *corev1.Pod) error {
			p.Status.Phase = corev1.PodRunning
			return c.Status().Update(ctx, p)
		}, expectations.Update, observeLive},
		"status patch": {func(ctx context.Context, c client.Client, p *corev1.Pod) error {
			base := p.DeepCopy()
			p.Status.Phase = corev1.PodRunning
			return c.Status().Patch(ctx, p, client.MergeFrom(base))
		}, expectations.Update, observeLive},
		"apply": {func(ctx context.Context, c client.Client, _ *corev1.Pod) error {
			return c.Apply(ctx, applycorev1.Pod("there", "ns").WithLabels(map[string]string{"a": "b"}), client.FieldOwner("me"))
		}, expectations.Update, observeLive},
		"delete": {func(ctx context.Context, c client.Client, p *corev1.Pod) error { return c.Delete(ctx, p) },
			expectations.Delete, func(_ *testing.T, s *scene) { s.Observe(podKind, pod("there"), expectations.Deleted) }},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t, interceptor.Funcs{}, nil)
			before := s.live(t, "there")
			if err := tc.write(t.Context(), s.writes, before.DeepCopy()); err != nil {
				t.Fatal(err)
			}
			v := s.Check(owner)
			if v.State != expectations.Waiting || len(v.Pending) != 1 || v.Pending[0].Verb != tc.verb {
				t.Fatalf("got %s %v, want one %s", v.State, v.Pending, tc.verb)
			}
			s.Observe(podKind, before, expectations.Updated) // what the cache had before is no evidence
			if s.Check(owner).Satisfied() {
				t.Error("an event older than the write settled it")
			}
			tc.event(t, s)
			if v := s.Check(owner); !v.Satisfied() {
				t.Errorf("still waits for %v", v.Pending)
			}
		})
	}
}

func observeLive(t *testing.T, s *scene) {
	t.Helper()
	s.Observe(podKind, s.live(t, "there"), expectations.Updated)
}

func TestWritesAreNotedBeforeTheyAreSent(t *testing.T) {
	var s *scene
	noted := 0
	s = newScene(t, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.CreateOption) error {
			noted = s.Outstanding()
			return c.Create(ctx, obj, opts...)
		},
	}, nil)
	if err := s.writes.Create(t.Context(), pod("new")); err != nil {
		t.Fatal(err)
	}
	if noted != 1 {
		t.Errorf("%d writes were noted when the request was sent, want 1", noted)
	}
}

func TestOutcomeOfAFailedCreateDecides(t *testing.T) {
	gr := schema.GroupResource{Resource: "pods"}
	for name, tc := range map[string]struct {
		err  error
		want expectations.State
	}{
		"refused":             {apierrors.NewForbidden(gr, "new", errors.New("no")), expectations.Satisfied},
		"unknown":             {context.DeadlineExceeded, expectations.Waiting},
		"server failed":       {apierrors.NewInternalError(errors.New("x")), expectations.Waiting},
		"it is there already": {apierrors.NewAlreadyExists(gr, "new"), expectations.Waiting},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t, interceptor.Funcs{
				Create: func(context.Context, client.WithWatch, client.Object, ...client.CreateOption) error { return tc.err },
			}, nil)
			if err := s.writes.Create(t.Context(), pod("new")); !errors.Is(err, tc.err) {
				t.Fatalf("got %v, want the server's error", err)
			}
			if got := s.Check(owner).State; got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
		})
	}
}

func TestWritesWithoutAnEventAreLookedUpInTheCache(t *testing.T) {
	caught := fake.NewClientBuilder().WithObjects(pod("there")).Build()
	for name, write := range map[string]func(context.Context, client.Client) error{
		"creation of what is there": func(ctx context.Context, c client.Client) error {
			return client.IgnoreAlreadyExists(c.Create(ctx, pod("there")))
		},
		"patch of nothing, from an unknown version": func(ctx context.Context, c client.Client) error {
			return c.Patch(ctx, pod("there"), client.RawPatch(types.MergePatchType, []byte(`{}`)))
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t, interceptor.Funcs{
				// An API server answers a patch of nothing with the object as it is.
				Patch: func(ctx context.Context, c client.WithWatch, obj client.Object, _ client.Patch, _ ...client.PatchOption) error {
					return c.Get(ctx, client.ObjectKeyFromObject(obj), obj)
				},
			}, caught)
			if err := write(t.Context(), s.writes); err != nil {
				t.Fatal(err)
			}
			if v := s.Check(owner); !v.Satisfied() {
				t.Errorf("waits for %v, for which no event will come", v.Pending)
			}
		})
	}
	t.Run("a cache that misses the object proves nothing", func(t *testing.T) {
		s := newScene(t, interceptor.Funcs{}, fake.NewClientBuilder().Build())
		if err := s.writes.Create(t.Context(), pod("there")); !apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
		if s.Check(owner).Satisfied() {
			t.Error("a cache miss settled a creation")
		}
	})
}

func TestUntrackableWritesAreRefused(t *testing.T) {
	s := newScene(t, interceptor.Funcs{}, nil)
	ctx := t.Context()
	for name, err := range map[string]error{
		"generated name":   s.writes.Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", GenerateName: "x-"}}),
		"deletion by name": s.writes.Delete(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "there"}}),
		"collection":       s.writes.DeleteAllOf(ctx, &corev1.Pod{}, client.InNamespace("ns")),
	} {
		if !errors.Is(err, expectationsctrl.ErrUntracked) {
			t.Errorf("%s: got %v, want ErrUntracked", name, err)
		}
	}
	if s.Outstanding() != 0 {
		t.Errorf("%d writes outstanding", s.Outstanding())
	}
	s.live(t, "there")
}

func TestDeleteHitsTheObjectItMeans(t *testing.T) {
	s := newScene(t, interceptor.Funcs{
		Delete: func(_ context.Context, _ client.WithWatch, obj client.Object, opts ...client.DeleteOption) error {
			p := (&client.DeleteOptions{}).ApplyOptions(opts).Preconditions
			if p == nil || p.UID == nil || *p.UID != obj.GetUID() {
				t.Errorf("sent with preconditions %v", p)
			}
			return nil
		},
	}, nil)
	if err := s.writes.Delete(t.Context(), pod("there"), client.GracePeriodSeconds(3)); err != nil {
		t.Fatal(err)
	}
}

func TestDryRunsAreNotExpected(t *testing.T) {
	s := newScene(t, interceptor.Funcs{}, nil)
	ctx, p := t.Context(), s.live(t, "there")
	for _, err := range []error{
		s.writes.Create(ctx, pod("new"), client.DryRunAll),
		s.writes.Update(ctx, p.DeepCopy(), client.DryRunAll),
		s.writes.Delete(ctx, p.DeepCopy(), client.DryRunAll),
	} {
		if err != nil {
			t.Error(err)
		}
	}
	if s.Outstanding() != 0 {
		t.Errorf("%d writes outstanding", s.Outstanding())
	}
}
