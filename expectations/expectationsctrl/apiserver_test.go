// SPDX-License-Identifier: Apache-2.0

package expectationsctrl_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlconfig "sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/virtloom/virtloom/expectations"
	"github.com/virtloom/virtloom/expectations/expectationsctrl"
	"github.com/virtloom/virtloom/internal/rig/rigtest"
)

// onePod is a controller that wants exactly one Pod for each ConfigMap. It gives every Pod another name, so that only its
// expectations keep it from creating two.
type onePod struct {
	client client.Client
	gate   *expectationsctrl.Gate
	clock  *clocktesting.FakePassiveClock
	labels map[string]string

	mu      sync.Mutex
	created int                  // guarded by mu
	states  []expectations.State // guarded by mu; the verdict of every pass
}

func (r *onePod) count(s expectations.State) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, state := range r.states {
		if state == s {
			n++
		}
	}
	return n
}

func (r *onePod) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	if request.Name != "vm" {
		return ctrl.Result{}, nil // every namespace has a ConfigMap of the cluster
	}
	var wanted corev1.ConfigMap
	if err := r.client.Get(ctx, request.NamespacedName, &wanted); err != nil {
		r.gate.Forget(request.NamespacedName)
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	owner := expectationsctrl.OwnerOf(&wanted)
	verdict, err := r.gate.Check(ctx, owner)
	r.mu.Lock()
	r.states = append(r.states, verdict.State)
	r.mu.Unlock()
	if err != nil || !verdict.Satisfied() {
		return ctrl.Result{}, err
	}
	var pods corev1.PodList
	if err := r.client.List(ctx, &pods, client.InNamespace(wanted.Namespace), client.MatchingLabels(r.labels)); err != nil {
		return ctrl.Result{}, err
	}
	if len(pods.Items) > 0 {
		return ctrl.Result{}, nil
	}
	r.mu.Lock()
	r.created++
	name := fmt.Sprintf("%s-%d", wanted.Name, r.created)
	r.mu.Unlock()
	return ctrl.Result{}, r.gate.For(owner).Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: wanted.Namespace, Labels: r.labels},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "example.test/c:1"}}},
	})
}

// start runs the controller with a cache made by the options and returns when it is running.
func (r *onePod) start(t *testing.T, config *rest.Config, options cache.Options, name string) {
	t.Helper()
	mgr := newManager(t, config, options)
	var err error
	r.client, r.clock = mgr.GetClient(), clocktesting.NewFakePassiveClock(time.Unix(1000, 0))
	if r.gate, err = expectationsctrl.NewGate(mgr, expectationsctrl.Options{Clock: r.clock, TTL: time.Minute}); err != nil {
		t.Fatal(err)
	}
	err = r.gate.Attach(ctrl.NewControllerManagedBy(mgr)).Named(name).
		For(&corev1.ConfigMap{}).
		Watches(&corev1.Pod{}, handler.Funcs{}).
		WithOptions(controller.Options{MaxConcurrentReconciles: 2}).
		Complete(r)
	if err != nil {
		t.Fatal(err)
	}
	run(t, mgr)
}

func newManager(t *testing.T, config *rest.Config, options cache.Options) ctrl.Manager {
	t.Helper()
	skip := true
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Cache: options, Logger: logr.Discard(), Metrics: metricsserver.Options{BindAddress: "0"},
		Controller: ctrlconfig.Controller{SkipNameValidation: &skip},
	})
	if err != nil {
		t.Fatal(err)
	}
	return mgr
}

// run starts the manager and returns when its caches are filled.
func run(t *testing.T, mgr ctrl.Manager) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- mgr.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("manager: %v", err)
		}
	})
	if !mgr.GetCache().WaitForCacheSync(ctx) {
		t.Fatal("the cache did not sync")
	}
}

func eventually(t *testing.T, what string, condition func(context.Context) (bool, error)) {
	t.Helper()
	if err := rigtest.Poll(t.Context(), time.Minute, condition); err != nil {
		t.Fatalf("waiting until %s: %v", what, err)
	}
}

// poke changes the ConfigMap so that the controller runs again.
func poke(t *testing.T, c client.Client, cm *corev1.ConfigMap, value string) {
	t.Helper()
	base := cm.DeepCopy()
	cm.Data = map[string]string{"value": value}
	if err := c.Patch(t.Context(), cm, client.MergeFrom(base)); err != nil {
		t.Fatal(err)
	}
}

func TestGate_APIServer(t *testing.T) {
	ctrl.SetLogger(logr.Discard())
	config := rigtest.New(t).Config("expectations-test")
	for name, test := range map[string]func(*testing.T, *rest.Config){
		"a cache that lags behind leads to no second pod":     lagging,
		"a pod outside of the cache is found by a live read":  outside,
		"a pod that is known to be outside is not waited for": hidden,
		"a pod outside of the cache, by every verb":           unseen,
		"a namespace that lags behind another":                namespaces,
		"each write, before caches of each form, and no wait": withForms,
		"beside a client that reads its writes":               beside,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, config)
		})
	}
}

// prepareNamespace creates a namespace that Pods can be created in, and in it the owner of the tests' objects.
func prepareNamespace(t *testing.T, c client.Client, name string) *corev1.ConfigMap {
	t.Helper()
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "vm", Namespace: name}}
	for _, o := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}},
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default", Namespace: name}},
		cm,
	} {
		if err := client.IgnoreAlreadyExists(c.Create(t.Context(), o)); err != nil {
			t.Fatal(err)
		}
	}
	return cm
}

func newClient(t *testing.T, config *rest.Config) client.Client {
	t.Helper()
	c, err := client.New(config, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func livePods(t *testing.T, c client.Client, ns string) int {
	t.Helper()
	var pods corev1.PodList
	if err := c.List(t.Context(), &pods, client.InNamespace(ns)); err != nil {
		t.Fatal(err)
	}
	return len(pods.Items)
}

func lagging(t *testing.T, config *rest.Config) {
	direct := newClient(t, config)
	var pods valve
	pods.shut()
	r := &onePod{labels: map[string]string{"of": "vm"}}
	r.start(t, config, cache.Options{
		DefaultNamespaces: map[string]cache.Config{"lag": {}},
		ByObject:          map[client.Object]cache.ByObject{&corev1.Pod{}: {Transform: pods.transform}},
	}, "lag")
	cm := prepareNamespace(t, direct, "lag")
	eventually(t, "the pod is created", func(context.Context) (bool, error) { return livePods(t, direct, "lag") > 0, nil })
	for i := range 20 {
		before := r.count(expectations.Waiting)
		poke(t, direct, cm, fmt.Sprint(i))
		eventually(t, "the controller has run", func(context.Context) (bool, error) {
			return r.count(expectations.Waiting) > before, nil
		})
	}
	before := r.count(expectations.Satisfied)
	pods.open()
	eventually(t, "the event wakes the owner", func(context.Context) (bool, error) {
		return r.count(expectations.Satisfied) > before && r.gate.Tracker().Outstanding() == 0, nil
	})
	if got := livePods(t, direct, "lag"); got != 1 {
		t.Errorf("%d pods, want 1", got)
	}
}
