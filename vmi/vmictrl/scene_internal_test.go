// SPDX-License-Identifier: Apache-2.0

package vmictrl

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/virtloom/virtloom/expectations/expectationsctrl"
	"github.com/virtloom/virtloom/internal/optional"
)

// scene is a controller with a fake API server, whose writes the caches observe at once, and a fake clock.
type scene struct {
	client.Client
	r        *Reconciler
	clock    *clocktesting.FakePassiveClock
	recorder *events.FakeRecorder
	// err is the error of the last pass.
	err error
}

// GetClient implements expectationsctrl.Cluster, as do the next two.
func (s *scene) GetClient() client.Client    { return s.Client }
func (s *scene) GetAPIReader() client.Reader { return s.Client }
func (s *scene) GetCache() cache.Cache       { return cached{client: s.Client} }

// cached is the part of a cache that a gate reads.
type cached struct {
	cache.Cache
	client client.Client
}

func (c cached) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	return c.client.Get(ctx, key, o, opts...)
}

// indexer adds the indexes to a fake client builder.
type indexer struct{ *fake.ClientBuilder }

func (i indexer) IndexField(_ context.Context, o client.Object, field string, by client.IndexerFunc) error {
	i.WithIndex(o, field, by)
	return nil
}

var sceneGuest = types.NamespacedName{Namespace: "ns", Name: "web"}

// newScene returns a scene with objects and injected faults.
func newScene(t *testing.T, faults interceptor.Funcs, objects ...client.Object) *scene {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	objects = append(objects, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: sceneGuest.Namespace}})
	mapper := meta.NewDefaultRESTMapper([]schema.GroupVersion{v1.GroupVersion, corev1.SchemeGroupVersion})
	for _, kind := range []schema.GroupVersionKind{
		v1.VirtualMachineInstanceGroupVersionKind, corev1.SchemeGroupVersion.WithKind("Pod"), corev1.SchemeGroupVersion.WithKind("PersistentVolumeClaim"),
	} {
		mapper.Add(kind, meta.RESTScopeNamespace)
	}
	b := fake.NewClientBuilder().WithScheme(scheme).WithRESTMapper(mapper).WithObjects(objects...).WithInterceptorFuncs(faults)
	if err := index(t.Context(), indexer{b}); err != nil {
		t.Fatal(err)
	}
	s := &scene{Client: b.Build(), clock: clocktesting.NewFakePassiveClock(postponeEpoch), recorder: events.NewFakeRecorder(10000)}
	s.r = &Reconciler{Client: s.Client, APIReader: s.Client, LauncherImage: "image", Clock: s.clock, Recorder: s.recorder}
	if err := s.r.complete(); err != nil {
		t.Fatal(err)
	}
	s.serve()
	s.r.nodes = &nodes{client: s.Client, clock: s.clock, after: s.r.SilentAfter, vmis: nodeGatherer{s.r}.onNode, queue: &s.r.backlog, beats: map[string]beat{}}
	var err error
	if s.r.Gate, err = expectationsctrl.NewGate(s, expectationsctrl.Options{Clock: s.clock}); err != nil {
		t.Fatal(err)
	}
	for _, seen := range []client.Object{&v1.VirtualMachineInstance{}, &corev1.Pod{}, &corev1.PersistentVolumeClaim{}} {
		s.r.Gate.Observing().Create(event.CreateEvent{Object: seen})
	}
	return s
}

// serve makes optional kinds known to the controller.
func (s *scene) serve(served ...schema.GroupVersionKind) {
	mapper := meta.NewDefaultRESTMapper(nil)
	for _, kind := range served {
		mapper.Add(kind, meta.RESTScopeNamespace)
	}
	s.r.kinds, _ = optional.Served(mapper, gatherer{s.r}.optional()) // a mapper without discovery does not fail
}

// sceneVMI returns a VMI in a phase, on node-1 after the handoff.
func sceneVMI(phase v1.VirtualMachineInstancePhase, edit ...func(*v1.VirtualMachineInstance)) *v1.VirtualMachineInstance {
	g := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{
		Namespace: sceneGuest.Namespace, Name: sceneGuest.Name, UID: "web-uid", Finalizers: []string{v1.VirtualMachineInstanceFinalizer},
	}}
	g.Status.Phase, g.Status.RuntimeUser = phase, 107
	if phase == v1.Scheduled || phase == v1.Running {
		g.Labels, g.Status.NodeName = map[string]string{v1.NodeNameLabel: "node-1"}, "node-1"
	}
	for _, e := range edit {
		e(g)
	}
	return g
}

// scenePod returns the running launcher Pod on node-1.
func scenePod(g *v1.VirtualMachineInstance) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: g.Namespace, Name: "virt-launcher-web", UID: "pod-uid",
		Labels:          map[string]string{v1.CreatedByLabel: string(g.UID), v1.AppLabel: "virt-launcher"},
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(g, v1.VirtualMachineInstanceGroupVersionKind)},
	}}
	p.Spec.Containers = []corev1.Container{{Name: "compute"}}
	ready(g, p)
	return p
}

func (s *scene) guest(t *testing.T) *v1.VirtualMachineInstance {
	t.Helper()
	g := &v1.VirtualMachineInstance{}
	if err := s.Get(t.Context(), sceneGuest, g); err != nil {
		t.Fatal(err)
	}
	return g
}

func (s *scene) events() []string {
	var all []string
	for {
		select {
		case e := <-s.recorder.Events:
			all = append(all, e)
		default:
			return all
		}
	}
}

// run processes the controller's queue for the given time: a pass follows at once upon a change of the VMI, which is an
// event, and otherwise after the back-off of an error or the requested requeue. It stops after most passes.
func (s *scene) run(t *testing.T, during time.Duration, most int) (passes int) {
	t.Helper()
	end := s.clock.Now().Add(during)
	request := reconcile.Request{NamespacedName: sceneGuest}
	for passes = 0; passes < most; passes++ {
		before := s.guest(t).ResourceVersion
		result, err := s.r.Reconcile(t.Context(), request)
		s.err = err
		var after time.Duration
		switch {
		case err != nil:
			after = s.r.limiter.When(request)
		case result.RequeueAfter > 0:
			s.r.limiter.Forget(request)
			after = result.RequeueAfter
		default:
			s.r.limiter.Forget(request)
			after = during
		}
		if s.guest(t).ResourceVersion != before {
			continue
		}
		next := s.clock.Now().Add(after)
		if next.After(end) {
			s.clock.SetTime(end)
			return passes + 1
		}
		s.clock.SetTime(next)
	}
	return passes
}
