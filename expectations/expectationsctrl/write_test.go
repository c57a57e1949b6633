// SPDX-License-Identifier: Apache-2.0

package expectationsctrl_test

import (
	"context"
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/virtloom/virtloom/expectations"
	"github.com/virtloom/virtloom/expectations/expectationsctrl"
)

func TestWrite_ExpectedUntilEvent(t *testing.T) {
	for name, tc := range map[string]struct {
		write func(context.Context, client.Client, *corev1.Pod) error
		verb  expectations.Verb
		event func(t *testing.T, s *scene)
	}{
		"create": {func(ctx context.Context, c client.Client, _ *corev1.Pod) error { return c.Create(ctx, pod("new")) },
			expectations.Create, func(t *testing.T, s *scene) { s.tracker.Observe(podKind, s.live(t, "new"), expectations.Added) }},
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
			expectations.Delete, func(_ *testing.T, s *scene) { s.tracker.Observe(podKind, pod("there"), expectations.Deleted) }},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t, setup{})
			before := s.live(t, "there")
			if err := tc.write(t.Context(), s.writes, before.DeepCopy()); err != nil {
				t.Fatal(err)
			}
			v := s.tracker.Check(owner)
			if v.State != expectations.Waiting || len(v.Pending) != 1 || v.Pending[0].Verb != tc.verb {
				t.Fatalf("got %s %v, want one %s", v.State, v.Pending, tc.verb)
			}
			s.tracker.Observe(podKind, before, expectations.Updated) // what the cache had before is no evidence
			if s.tracker.Check(owner).Satisfied() {
				t.Error("an event older than the write settled it")
			}
			tc.event(t, s)
			if v := s.tracker.Check(owner); !v.Satisfied() {
				t.Errorf("still waits for %v", v.Pending)
			}
		})
	}
}

func observeLive(t *testing.T, s *scene) {
	t.Helper()
	s.tracker.Observe(podKind, s.live(t, "there"), expectations.Updated)
}

func TestWrite_NotedBeforeSent(t *testing.T) {
	var s *scene
	noted := 0
	s = newScene(t, setup{faults: interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.CreateOption) error {
			noted = s.tracker.Outstanding()
			return c.Create(ctx, obj, opts...)
		},
	}})
	if err := s.writes.Create(t.Context(), pod("new")); err != nil {
		t.Fatal(err)
	}
	if noted != 1 {
		t.Errorf("%d writes were noted when the request was sent, want 1", noted)
	}
}

func TestCreate_FailureOutcome(t *testing.T) {
	gr := schema.GroupResource{Resource: "pods"}
	for name, tc := range map[string]struct {
		err  error
		want expectations.State
	}{
		"refused":       {apierrors.NewForbidden(gr, "new", errors.New("no")), expectations.Satisfied},
		"unknown":       {context.DeadlineExceeded, expectations.Waiting},
		"server failed": {apierrors.NewInternalError(errors.New("x")), expectations.Waiting},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t, setup{faults: interceptor.Funcs{
				Create: func(context.Context, client.WithWatch, client.Object, ...client.CreateOption) error { return tc.err },
			}})
			if err := s.writes.Create(t.Context(), pod("new")); !errors.Is(err, tc.err) {
				t.Fatalf("got %v, want the server's error", err)
			}
			if got := s.tracker.Check(owner).State; got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
		})
	}
}

// deletesOnce is a server that, unlike the fake, leaves an object alone that terminates already.
func deletesOnce(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.DeleteOption) error {
	p := &corev1.Pod{}
	if err := c.Get(ctx, client.ObjectKeyFromObject(obj), p); err != nil || p.DeletionTimestamp != nil {
		return err
	}
	return c.Delete(ctx, obj, opts...)
}

// patchesNothing is a server that, unlike the fake, answers a patch of nothing with the object as it is.
func patchesNothing(ctx context.Context, c client.WithWatch, obj client.Object, _ client.Patch, _ ...client.PatchOption) error {
	return c.Get(ctx, client.ObjectKeyFromObject(obj), obj)
}

func TestWrite_WithoutEventReadFromCache(t *testing.T) {
	patch := func(ctx context.Context, s *scene) error {
		return s.writes.Patch(ctx, pod("there"), client.RawPatch(types.MergePatchType, []byte(`{}`)))
	}
	create := func(ctx context.Context, s *scene) error {
		return client.IgnoreAlreadyExists(s.writes.Create(ctx, pod("there")))
	}
	remove := func(ctx context.Context, s *scene) error { return s.writes.Delete(ctx, pod("there")) }
	terminating := func(t *testing.T, s *scene) {
		p := s.live(t, "there")
		p.Finalizers = []string{"example.test/stay"}
		if err := errors.Join(s.server.Update(t.Context(), p), s.server.Delete(t.Context(), p)); err != nil {
			t.Fatal(err)
		}
		s.catchUp(t, "there")
	}
	for name, tc := range map[string]struct {
		cached func(t *testing.T, s *scene)
		write  func(context.Context, *scene) error
		want   expectations.State
	}{
		"patch of nothing, seen":      {func(t *testing.T, s *scene) { s.catchUp(t, "there") }, patch, expectations.Satisfied},
		"patch of nothing, not seen":  {func(*testing.T, *scene) {}, patch, expectations.Waiting},
		"creation of what is seen":    {func(t *testing.T, s *scene) { s.catchUp(t, "there") }, create, expectations.Satisfied},
		"creation of what is unseen":  {func(*testing.T, *scene) {}, create, expectations.Waiting},
		"deletion of what terminates": {terminating, remove, expectations.Satisfied},
		"deletion of what terminates, not to the full": {func(t *testing.T, s *scene) {
			terminating(t, s)
			age(t, s)
		}, remove, expectations.Waiting},
		"deletion of what was alive": {func(t *testing.T, s *scene) { s.catchUp(t, "there") }, remove, expectations.Waiting},
		"creation, a predecessor seen": {func(t *testing.T, s *scene) {
			s.catchUp(t, "there")
			s.cache.pods["there"].UID = "before"
			age(t, s)
		}, create, expectations.Waiting},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t, setup{faults: interceptor.Funcs{Patch: patchesNothing, Delete: deletesOnce}})
			tc.cached(t, s)
			if err := tc.write(t.Context(), s); err != nil {
				t.Fatal(err)
			}
			if v := s.tracker.Check(owner); v.State != tc.want {
				t.Errorf("got %s %v, want %s", v.State, v.Pending, tc.want)
			}
			if n := s.queue.Len(); n > 0 {
				t.Error("the owner is enqueued by its own write, which would repeat forever")
			}
		})
	}
}

// TestDelete_TerminatingObjectRemovedMeanwhile: the removal of a terminating object that is deleted once more arrives
// during the live read of its version. No event follows, so no write may stay outstanding.
func TestDelete_TerminatingObjectRemovedMeanwhile(t *testing.T) {
	for name, meanwhile := range map[string]func(s *scene, live *corev1.Pod){
		"its removal": func(s *scene, live *corev1.Pod) {
			delete(s.cache.pods, live.Name)
			s.gate.Observing().Delete(event.DeleteEvent{Object: live})
		},
		"its last version": func(s *scene, live *corev1.Pod) {
			s.cache.pods[live.Name] = live
			s.gate.Observing().Update(event.UpdateEvent{ObjectOld: live, ObjectNew: live})
		},
	} {
		t.Run(name, func(t *testing.T) {
			var s *scene
			s = newScene(t, setup{faults: interceptor.Funcs{
				Delete: deletesOnce,
				Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
					err := c.Get(ctx, key, obj, opts...)
					if _, stub := obj.(*metav1.PartialObjectMetadata); stub && err == nil {
						live := &corev1.Pod{}
						err = c.Get(ctx, key, live)
						meanwhile(s, live)
					}
					return err
				},
			}})
			p := s.live(t, "there")
			p.Finalizers = []string{"example.test/stay"}
			if err := errors.Join(s.server.Update(t.Context(), p), s.server.Delete(t.Context(), p)); err != nil {
				t.Fatal(err)
			}
			s.catchUp(t, "there")
			age(t, s)
			if err := s.writes.Delete(t.Context(), pod("there")); err != nil {
				t.Fatal(err)
			}
			if v := s.tracker.Check(owner); v.State != expectations.Satisfied {
				t.Errorf("got %s %v, want it satisfied", v.State, v.Pending)
			}
		})
	}
}

// age gives the Pod "there" a version newer than any that the cache has.
func age(t *testing.T, s *scene) {
	t.Helper()
	for range 3 {
		p := s.live(t, "there")
		p.Annotations = map[string]string{"version": p.ResourceVersion}
		if err := s.server.Update(t.Context(), p); err != nil {
			t.Fatal(err)
		}
	}
}

func TestCreate_AwaitsExistingObject(t *testing.T) {
	for name, tc := range map[string]struct {
		event func(t *testing.T, s *scene)
		want  expectations.State
	}{
		"it arrives": {func(t *testing.T, s *scene) { s.tracker.Observe(podKind, s.live(t, "there"), expectations.Added) }, expectations.Satisfied},
		"it goes":    {func(t *testing.T, s *scene) { s.tracker.Observe(podKind, s.live(t, "there"), expectations.Deleted) }, expectations.Satisfied},
		"a predecessor goes": {func(_ *testing.T, s *scene) {
			p := pod("there")
			p.UID, p.ResourceVersion = "before", "1"
			s.tracker.Observe(podKind, p, expectations.Deleted)
		}, expectations.Waiting},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t, setup{})
			age(t, s)
			if err := s.writes.Create(t.Context(), pod("there")); !apierrors.IsAlreadyExists(err) {
				t.Fatal(err)
			}
			tc.event(t, s)
			if v := s.tracker.Check(owner); v.State != tc.want {
				t.Errorf("got %s %v, want %s", v.State, v.Pending, tc.want)
			}
		})
	}
	t.Run("it is gone before it can be read", func(t *testing.T) {
		s := newScene(t, setup{faults: interceptor.Funcs{
			Create: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.CreateOption) error {
				err := c.Create(ctx, obj, opts...)
				return errors.Join(err, c.Delete(ctx, pod("there")))
			},
		}})
		if err := s.writes.Create(t.Context(), pod("there")); !apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
		if v := s.tracker.Check(owner); !v.Satisfied() {
			t.Errorf("waits for %v, which will not come", v.Pending)
		}
	})
	t.Run("it cannot be read", func(t *testing.T) {
		s := newScene(t, setup{faults: interceptor.Funcs{
			Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
				return context.DeadlineExceeded
			},
		}})
		if err := s.writes.Create(t.Context(), pod("there")); !apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
		if s.tracker.Check(owner).Satisfied() {
			t.Error("an error of the server settled a creation")
		}
	})
}

func TestWrite_OutsideCache(t *testing.T) {
	label := func(p *corev1.Pod) *corev1.Pod { p.Labels = map[string]string{"outside": "yes"}; return p }
	outside := func(gk schema.GroupKind, o metav1.Object) bool {
		return gk == podKind && o.GetLabels()["outside"] == "yes"
	}
	for name, tc := range map[string]struct {
		write func(context.Context, *testing.T, *scene) error
		want  expectations.State
	}{
		"creation": {func(ctx context.Context, _ *testing.T, s *scene) error {
			return s.writes.Create(ctx, label(pod("new")))
		}, expectations.Satisfied},
		"creation inside": {func(ctx context.Context, _ *testing.T, s *scene) error {
			return s.writes.Create(ctx, pod("new"))
		}, expectations.Waiting},
		"apply": {func(ctx context.Context, _ *testing.T, s *scene) error {
			return s.writes.Apply(ctx, applycorev1.Pod("new", "ns").WithLabels(map[string]string{"outside": "yes"}), client.FieldOwner("me"))
		}, expectations.Satisfied},
		"a move to the outside": {func(ctx context.Context, t *testing.T, s *scene) error {
			s.catchUp(t, "there")
			return s.writes.Update(ctx, label(s.live(t, "there")))
		}, expectations.Waiting},
		"deletion": {func(ctx context.Context, t *testing.T, s *scene) error {
			return s.writes.Delete(ctx, label(s.live(t, "there")))
		}, expectations.Satisfied},
		"deletion by UID alone": {func(ctx context.Context, _ *testing.T, s *scene) error {
			return s.writes.Delete(ctx, label(pod("there")))
		}, expectations.Waiting},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t, setup{hidden: outside})
			if err := tc.write(t.Context(), t, s); err != nil {
				t.Fatal(err)
			}
			if v := s.tracker.Check(owner); v.State != tc.want {
				t.Errorf("got %s %v, want %s", v.State, v.Pending, tc.want)
			}
		})
	}
}

func TestWrite_VersionBeyond64Bits(t *testing.T) {
	const before, written, after = "36893488147419103231", "36893488147419103232", "36893488147419103233"
	s := newScene(t, setup{faults: interceptor.Funcs{
		Patch: func(_ context.Context, _ client.WithWatch, obj client.Object, _ client.Patch, _ ...client.PatchOption) error {
			obj.SetResourceVersion(written)
			return nil
		},
	}})
	if err := s.writes.Patch(t.Context(), pod("there"), client.RawPatch(types.MergePatchType, []byte(`{}`))); err != nil {
		t.Fatal(err)
	}
	seen := pod("there")
	seen.ResourceVersion = before
	s.tracker.Observe(podKind, seen, expectations.Updated)
	if v := s.tracker.Check(owner); v.State != expectations.Waiting || v.Pending[0].Seen != before {
		t.Errorf("got %s %v, want to wait for %s", v.State, v.Pending, written)
	}
	seen.ResourceVersion = after
	s.tracker.Observe(podKind, seen, expectations.Updated)
	if v := s.tracker.Check(owner); !v.Satisfied() {
		t.Errorf("still waits for %v", v.Pending)
	}
}

func TestWrite_UntrackableRefused(t *testing.T) {
	s := newScene(t, setup{})
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
	if s.tracker.Outstanding() != 0 {
		t.Errorf("%d writes outstanding", s.tracker.Outstanding())
	}
	s.live(t, "there")
}

func TestDelete_UIDPrecondition(t *testing.T) {
	s := newScene(t, setup{faults: interceptor.Funcs{
		Delete: func(_ context.Context, _ client.WithWatch, obj client.Object, opts ...client.DeleteOption) error {
			p := (&client.DeleteOptions{}).ApplyOptions(opts).Preconditions
			if p == nil || p.UID == nil || *p.UID != obj.GetUID() {
				t.Errorf("sent with preconditions %v", p)
			}
			return nil
		},
	}})
	if err := s.writes.Delete(t.Context(), pod("there"), client.GracePeriodSeconds(3)); err != nil {
		t.Fatal(err)
	}
}

func TestWrite_DryRun(t *testing.T) {
	s := newScene(t, setup{})
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
	if s.tracker.Outstanding() != 0 {
		t.Errorf("%d writes outstanding", s.tracker.Outstanding())
	}
}
