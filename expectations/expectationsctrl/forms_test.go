// SPDX-License-Identifier: Apache-2.0

package expectationsctrl_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/virtloom/virtloom/expectations"
	"github.com/virtloom/virtloom/expectations/expectationsctrl"
)

// valve lets events into a cache while it is open.
type valve struct{ mu sync.RWMutex }

func (v *valve) shut() { v.mu.Lock() }
func (v *valve) open() { v.mu.Unlock() }

func (v *valve) transform(o any) (any, error) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return o, nil
}

// stage is a controller of Pods that only wakes, with a valve before its cache. Its clock is stopped.
type stage struct {
	valve
	staging
	admin client.Client
	gate  *expectationsctrl.Gate
	shows client.Reader // the cache
	clock *clocktesting.FakePassiveClock
	woken atomic.Int64
	awake int64 // of woken, what was awaited
}

// staging is the configuration of a stage.
type staging struct {
	sample client.Object // in the form in which the cache holds Pods
	cache  cache.Options
	hidden func(schema.GroupKind, metav1.Object) bool
}

func newStage(t *testing.T, config *rest.Config, namespace string, with staging) *stage {
	t.Helper()
	s := &stage{staging: with, admin: newClient(t, config), clock: clocktesting.NewFakePassiveClock(time.Unix(1000, 0))}
	prepareNamespace(t, s.admin, namespace)
	with.cache.DefaultTransform = s.transform
	mgr := newManager(t, config, with.cache)
	s.shows = mgr.GetCache()
	var err error
	if s.gate, err = expectationsctrl.NewGate(mgr, expectationsctrl.Options{Clock: s.clock, Hidden: with.hidden}); err != nil {
		t.Fatal(err)
	}
	err = s.gate.Attach(ctrl.NewControllerManagedBy(mgr)).Named(namespace).For(with.sample).
		Complete(reconcile.Func(func(_ context.Context, req ctrl.Request) (ctrl.Result, error) {
			if req.NamespacedName == owner.Key {
				s.woken.Add(1)
			}
			return ctrl.Result{}, nil
		}))
	if err != nil {
		t.Fatal(err)
	}
	run(t, mgr)
	s.gate.Wake(owner.Key)
	s.awaitWake(t) // the controller works once its watches have begun
	return s
}

// awaitWake waits until the owner is woken once more.
func (s *stage) awaitWake(t *testing.T) {
	t.Helper()
	eventually(t, "the owner is woken", func(context.Context) (bool, error) { return s.woken.Load() > s.awake, nil })
	s.awake = s.woken.Load()
}

// idle is a Pod that no other component writes: it has no scheduler.
func idle(namespace, name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"a": "0"}},
		Spec: corev1.PodSpec{
			SchedulerName: "none", TerminationGracePeriodSeconds: new(int64),
			Containers: []corev1.Container{{Name: "c", Image: "example.test/c:1"}},
		},
	}
}

// shown waits until the cache shows the Pod as the server has it.
func (s *stage) shown(t *testing.T, p *corev1.Pod) {
	t.Helper()
	eventually(t, "the cache shows "+p.Name, func(ctx context.Context) (bool, error) {
		if err := s.admin.Get(ctx, client.ObjectKeyFromObject(p), p); err != nil {
			return false, err
		}
		seen := s.sample.DeepCopyObject().(client.Object)
		err := s.shows.Get(ctx, client.ObjectKeyFromObject(p), seen)
		return err == nil && seen.GetResourceVersion() == p.ResourceVersion, client.IgnoreNotFound(err)
	})
}

// scripted is a write to a Pod, of which the cache shows everything before.
type scripted struct {
	name string
	// prepare changes the Pod, seen by the cache. May be nil.
	prepare func(ctx context.Context, admin client.Client, p *corev1.Pod) error
	// write is the write under test. It has a client of the gate and one without; the cache shows nothing of it.
	write func(ctx context.Context, c, admin client.Client, p *corev1.Pod) error
}

func finalized(ctx context.Context, admin client.Client, p *corev1.Pod) error {
	p.Finalizers = []string{"example.test/stay"}
	return admin.Update(ctx, p)
}

func terminated(ctx context.Context, admin client.Client, p *corev1.Pod) error {
	return errors.Join(finalized(ctx, admin, p), admin.Delete(ctx, p))
}

func relabelled(p *corev1.Pod) *corev1.Pod {
	p.Labels = map[string]string{"a": "1"}
	return p
}

func stub(p *corev1.Pod) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name}}
}

func merge(text string) client.Patch { return client.RawPatch(types.MergePatchType, []byte(text)) }

func applied(p *corev1.Pod, label string) *applycorev1.PodApplyConfiguration {
	return applycorev1.Pod(p.Name, p.Namespace).WithLabels(map[string]string{"b": label})
}

const me = client.FieldOwner("me")

// withEvent are writes that change an object.
var withEvent = []scripted{
	{name: "create", write: func(ctx context.Context, c, _ client.Client, p *corev1.Pod) error {
		return c.Create(ctx, idle(p.Namespace, p.Name+"-new"))
	}},
	{name: "create unstructured", write: func(ctx context.Context, c, _ client.Client, p *corev1.Pod) error {
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(idle(p.Namespace, p.Name+"-new"))
		u := &unstructured.Unstructured{Object: content}
		u.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Pod"))
		return errors.Join(err, c.Create(ctx, u))
	}},
	{name: "create what exists unseen", write: func(ctx context.Context, c, admin client.Client, p *corev1.Pod) error {
		err := admin.Create(ctx, idle(p.Namespace, p.Name+"-new"))
		return errors.Join(err, client.IgnoreAlreadyExists(c.Create(ctx, idle(p.Namespace, p.Name+"-new"))))
	}},
	{name: "create what exists and goes", write: func(ctx context.Context, c, admin client.Client, p *corev1.Pod) error {
		other := idle(p.Namespace, p.Name+"-new")
		err := admin.Create(ctx, other)
		err = errors.Join(err, client.IgnoreAlreadyExists(c.Create(ctx, idle(p.Namespace, p.Name+"-new"))))
		return errors.Join(err, admin.Delete(ctx, other))
	}},
	{name: "update", write: func(ctx context.Context, c, _ client.Client, p *corev1.Pod) error {
		return c.Update(ctx, relabelled(p))
	}},
	{name: "patch", write: func(ctx context.Context, c, _ client.Client, p *corev1.Pod) error {
		return c.Patch(ctx, stub(p), merge(`{"metadata":{"labels":{"a":"1"}}}`))
	}},
	{name: "patch of metadata", write: func(ctx context.Context, c, _ client.Client, p *corev1.Pod) error {
		m := &metav1.PartialObjectMetadata{ObjectMeta: stub(p).ObjectMeta}
		m.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Pod"))
		return c.Patch(ctx, m, merge(`{"metadata":{"labels":{"a":"1"}}}`))
	}},
	{name: "apply", write: func(ctx context.Context, c, _ client.Client, p *corev1.Pod) error {
		return c.Apply(ctx, applied(p, "1"), me)
	}},
	{name: "apply unstructured", write: func(ctx context.Context, c, _ client.Client, p *corev1.Pod) error {
		u := &unstructured.Unstructured{}
		u.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Pod"))
		u.SetNamespace(p.Namespace)
		u.SetName(p.Name)
		u.SetLabels(map[string]string{"b": "1"})
		return c.Apply(ctx, client.ApplyConfigurationFromUnstructured(u), me)
	}},
	{name: "apply that creates", write: func(ctx context.Context, c, _ client.Client, p *corev1.Pod) error {
		return c.Apply(ctx, applycorev1.Pod(p.Name+"-new", p.Namespace).WithSpec(applycorev1.PodSpec().WithSchedulerName("none").
			WithContainers(applycorev1.Container().WithName("c").WithImage("example.test/c:1"))), me)
	}},
	{name: "status update", write: func(ctx context.Context, c, _ client.Client, p *corev1.Pod) error {
		p.Status.Message = "1"
		return c.Status().Update(ctx, p)
	}},
	{name: "status patch", write: func(ctx context.Context, c, _ client.Client, p *corev1.Pod) error {
		return c.Status().Patch(ctx, stub(p), merge(`{"status":{"message":"1"}}`))
	}},
	{name: "status apply", write: func(ctx context.Context, c, _ client.Client, p *corev1.Pod) error {
		return c.Status().Apply(ctx, applycorev1.Pod(p.Name, p.Namespace).WithStatus(applycorev1.PodStatus().WithMessage("1")), me)
	}},
	{name: "another subresource", write: func(ctx context.Context, c, _ client.Client, p *corev1.Pod) error {
		return c.SubResource("ephemeralcontainers").Patch(ctx, stub(p), client.RawPatch(types.StrategicMergePatchType,
			[]byte(`{"spec":{"ephemeralContainers":[{"name":"e","image":"example.test/e:1"}]}}`)))
	}},
	{name: "delete", write: func(ctx context.Context, c, _ client.Client, p *corev1.Pod) error { return c.Delete(ctx, p) }},
	{name: "delete with a finalizer", prepare: finalized, write: func(ctx context.Context, c, _ client.Client, p *corev1.Pod) error {
		return c.Delete(ctx, p)
	}},
	{name: "delete what another terminated", prepare: finalized, write: func(ctx context.Context, c, admin client.Client, p *corev1.Pod) error {
		return errors.Join(admin.Delete(ctx, p.DeepCopy()), c.Delete(ctx, p))
	}},
	{name: "update, then gone", write: func(ctx context.Context, c, admin client.Client, p *corev1.Pod) error {
		return errors.Join(c.Update(ctx, relabelled(p)), admin.Delete(ctx, p))
	}},
	{name: "the last finalizer", prepare: terminated, write: func(ctx context.Context, c, _ client.Client, p *corev1.Pod) error {
		return c.Patch(ctx, stub(p), merge(`{"metadata":{"finalizers":null}}`))
	}},
	{name: "nothing, after another's change", write: func(ctx context.Context, c, admin client.Client, p *corev1.Pod) error {
		return errors.Join(admin.Update(ctx, relabelled(p.DeepCopy())), c.Patch(ctx, p, merge(`{"metadata":{"labels":{"a":"1"}}}`)))
	}},
}

// withoutEvent are writes that change nothing: no event will come.
var withoutEvent = []scripted{
	{name: "create as a dry run", write: func(ctx context.Context, c, _ client.Client, p *corev1.Pod) error {
		return c.Create(ctx, idle(p.Namespace, p.Name+"-new"), client.DryRunAll)
	}},
	{name: "apply as a dry run", write: func(ctx context.Context, c, _ client.Client, p *corev1.Pod) error {
		return c.Apply(ctx, applied(p, "1"), me, client.DryRunAll)
	}},
	{name: "status patch as a dry run", write: func(ctx context.Context, c, _ client.Client, p *corev1.Pod) error {
		return c.Status().Patch(ctx, stub(p), merge(`{"status":{"message":"1"}}`), client.DryRunAll)
	}},
	{name: "delete as a dry run", write: func(ctx context.Context, c, _ client.Client, p *corev1.Pod) error {
		return c.Delete(ctx, p, client.DryRunAll)
	}},
	{name: "create what is shown", write: func(ctx context.Context, c, _ client.Client, p *corev1.Pod) error {
		return client.IgnoreAlreadyExists(c.Create(ctx, idle(p.Namespace, p.Name)))
	}},
	{name: "create what is refused", write: func(ctx context.Context, c, _ client.Client, p *corev1.Pod) error {
		if err := c.Create(ctx, idle(p.Namespace, strings.Repeat("x", 300))); !apierrors.IsInvalid(err) {
			return errors.Join(errors.New("want Invalid"), err)
		}
		return nil
	}},
	{name: "update of nothing", write: func(ctx context.Context, c, _ client.Client, p *corev1.Pod) error { return c.Update(ctx, p) }},
	{name: "patch of nothing", write: func(ctx context.Context, c, _ client.Client, p *corev1.Pod) error {
		return c.Patch(ctx, stub(p), merge(`{"metadata":{"labels":{"a":"0"}}}`))
	}},
	{name: "apply of nothing", prepare: func(ctx context.Context, admin client.Client, p *corev1.Pod) error {
		return admin.Apply(ctx, applied(p, "1"), me)
	}, write: func(ctx context.Context, c, _ client.Client, p *corev1.Pod) error {
		return c.Apply(ctx, applied(p, "1"), me)
	}},
	{name: "status patch of nothing", write: func(ctx context.Context, c, _ client.Client, p *corev1.Pod) error {
		return c.Status().Patch(ctx, stub(p), merge(`{"status":{"message":null}}`))
	}},
	{name: "delete what terminates", prepare: terminated, write: func(ctx context.Context, c, _ client.Client, p *corev1.Pod) error {
		return c.Delete(ctx, p)
	}},
	{name: "update what is gone", write: func(ctx context.Context, c, admin client.Client, p *corev1.Pod) error {
		if err := errors.Join(admin.Delete(ctx, p.DeepCopy()), c.Update(ctx, relabelled(p))); !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return errors.Join(errors.New("want NotFound or Conflict"), err)
		}
		return nil
	}},
	{name: "delete what is gone", write: func(ctx context.Context, c, admin client.Client, p *corev1.Pod) error {
		return errors.Join(admin.Delete(ctx, p.DeepCopy()), client.IgnoreNotFound(c.Delete(ctx, p)))
	}},
}

// play makes a write while the valve is shut, and opens it.
func (s *stage) play(t *testing.T, namespace string, w scripted, want expectations.State) {
	t.Helper()
	ctx := t.Context()
	p := idle(namespace, strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' {
			return r
		}
		return '-'
	}, w.name))
	if err := s.admin.Create(ctx, p); err != nil {
		t.Fatal(err)
	}
	if w.prepare != nil {
		if err := w.prepare(ctx, s.admin, p); err != nil {
			t.Fatal(err)
		}
	}
	s.shown(t, p)
	s.shut()
	err := w.write(ctx, s.gate.For(owner), s.admin, p)
	verdict, checkErr := s.gate.Check(ctx, owner)
	s.open()
	if err != nil || checkErr != nil || verdict.State != want {
		t.Errorf("got %s %v, %v, %v before the cache shows anything, want %s", verdict.State, verdict.Pending, err, checkErr, want)
	}
	if want == expectations.Satisfied {
		return
	}
	s.awaitWake(t)
	if verdict, err := s.gate.Check(ctx, owner); err != nil || !verdict.Satisfied() {
		t.Errorf("got %s %v, %v when the cache shows everything", verdict.State, verdict.Pending, err)
	}
}

// withForms plays every write before caches of every form. No time passes: nothing is settled by a live read after the
// TTL.
func withForms(t *testing.T, config *rest.Config) {
	free := &unstructured.Unstructured{}
	partial := &metav1.PartialObjectMetadata{}
	for _, o := range []client.Object{free, partial} {
		o.GetObjectKind().SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Pod"))
	}
	for form, sample := range map[string]client.Object{"typed": &corev1.Pod{}, "metadata": partial, "unstructured": free} {
		t.Run(form, func(t *testing.T) {
			t.Parallel()
			s := newStage(t, config, form, staging{sample: sample, cache: cache.Options{
				DefaultNamespaces: map[string]cache.Config{form: {}},
			}})
			for _, w := range withEvent {
				t.Run(w.name, func(t *testing.T) { s.play(t, form, w, expectations.Waiting) })
			}
			for _, w := range withoutEvent {
				t.Run(w.name, func(t *testing.T) { s.play(t, form, w, expectations.Satisfied) })
			}
		})
	}
}
