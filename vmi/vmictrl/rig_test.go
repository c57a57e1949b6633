// SPDX-License-Identifier: Apache-2.0

package vmictrl_test

import (
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	v1 "kubevirt.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/internal/rig"
	"github.com/virtloom/virtloom/internal/rig/rigtest"
	"github.com/virtloom/virtloom/template/templatectrl"
	"github.com/virtloom/virtloom/vmi/vmictrl"
)

const (
	// patience bounds a wait.
	patience = 2 * time.Minute
	image    = "example.test/virt-launcher:1"
)

// cluster is a rig with two nodes and a client for the tests.
type cluster struct {
	*rig.Rig
	client.Client
	scheme *runtime.Scheme
	names  atomic.Int64
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	ctrl.SetLogger(logr.Discard()) // log lines outside of any manager
	c := &cluster{Rig: rigtest.Start(t, rig.Options{SimulatedNodes: 2})}
	var err error
	if c.scheme, err = newScheme(); err != nil {
		t.Fatal(err)
	}
	if c.Client, err = client.New(c.Config(rig.UserAdmin), client.Options{Scheme: c.scheme}); err != nil {
		t.Fatal(err)
	}
	return c
}

func newScheme() (*runtime.Scheme, error) {
	s := runtime.NewScheme()
	return s, errors.Join(clientgoscheme.AddToScheme(s), vmictrl.AddToScheme(s))
}

// newController returns a controller limited to the namespaces.
func newController(cfg *rest.Config, s *runtime.Scheme, l logr.Logger, namespaces ...string) (ctrl.Manager, *vmictrl.Reconciler, error) {
	skip := true
	only := map[string]cache.Config{}
	for _, ns := range namespaces {
		only[ns] = cache.Config{}
	}
	mgr, err := ctrl.NewManager(cfg, ctrl.Options{
		Scheme: s, Logger: l, Metrics: server.Options{BindAddress: "0"},
		Controller: config.Controller{SkipNameValidation: &skip},
		Cache:      cache.Options{DefaultNamespaces: only, DefaultTransform: templatectrl.TrimPod},
	})
	if err != nil {
		return nil, nil, err
	}
	return mgr, &vmictrl.Reconciler{
		Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), LauncherImage: image,
		Recorder: mgr.GetEventRecorder("virtualmachine-controller"),
	}, nil
}

// world is one namespace, to which the controllers of one test are limited, so that tests can
// run in parallel.
type world struct {
	*cluster
	t  *testing.T
	ns string
}

func (c *cluster) world(t *testing.T) *world {
	t.Helper()
	w := &world{cluster: c, t: t, ns: fmt.Sprintf("test-%d", c.names.Add(1))}
	w.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.ns}})
	return w
}

// setup contains a test's changes of its controller.
type setup struct {
	edit func(*vmictrl.Reconciler)
	wrap func(http.RoundTripper) http.RoundTripper
}

// start runs a controller and returns a function that stops it.
func (w *world) start(s setup) (stop func()) {
	w.t.Helper()
	cfg := w.Config(rig.UserController)
	if s.wrap != nil {
		cfg.Wrap(s.wrap)
	}
	mgr, r, err := newController(cfg, w.scheme, rigtest.Logger(w.t), w.ns)
	if err != nil {
		w.t.Fatal(err)
	}
	if s.edit != nil {
		s.edit(r)
	}
	if err := r.SetupWithManager(w.t.Context(), mgr); err != nil {
		w.t.Fatal(err)
	}
	return rigtest.Run(w.t, mgr.Start)
}

func (w *world) create(o client.Object) {
	w.t.Helper()
	if err := w.Create(w.t.Context(), o); err != nil {
		w.t.Fatal(err)
	}
}

// noGrace deletes without grace period.
const noGrace = client.GracePeriodSeconds(0)

func (w *world) delete(o client.Object, opts ...client.DeleteOption) {
	w.t.Helper()
	if err := w.Delete(w.t.Context(), o, opts...); err != nil {
		w.t.Fatal(err)
	}
}

// guest creates a VirtualMachineInstance.
func (w *world) guest(name string, change ...func(*v1.VirtualMachineInstance)) *v1.VirtualMachineInstance {
	w.t.Helper()
	g := newGuest(w.ns, name)
	for _, c := range change {
		c(g)
	}
	w.create(g)
	return g
}

func newGuest(namespace, name string) *v1.VirtualMachineInstance {
	memory := resource.MustParse("64Mi")
	return &v1.VirtualMachineInstance{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       v1.VirtualMachineInstanceSpec{Domain: v1.DomainSpec{Memory: &v1.Memory{Guest: &memory}}},
	}
}

// unplaceable keeps the launcher Pod from being scheduled.
func unplaceable(g *v1.VirtualMachineInstance) {
	g.Spec.NodeSelector = map[string]string{"example.test/nowhere": "true"}
}

// eventually repeats look until it returns "", and fails with its last result.
func (w *world) eventually(look func() string) {
	w.t.Helper()
	rigtest.Eventually(w.t, patience, look)
}

// await reads the VMI until the condition holds.
func (w *world) await(g *v1.VirtualMachineInstance, what string, ok func() bool) {
	w.t.Helper()
	w.eventually(func() string {
		*g = v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: g.Name}}
		if err := w.Get(w.t.Context(), client.ObjectKeyFromObject(g), g); err != nil {
			return err.Error()
		}
		if ok() {
			return ""
		}
		return fmt.Sprintf("waiting for %s: phase %q, reason %q, conditions %+v, annotations %v, finalizers %v",
			what, g.Status.Phase, g.Status.Reason, g.Status.Conditions, g.Annotations, g.Finalizers)
	})
}

func (w *world) awaitPhase(g *v1.VirtualMachineInstance, p v1.VirtualMachineInstancePhase) {
	w.t.Helper()
	w.await(g, "phase "+string(p), func() bool { return g.Status.Phase == p })
}

func (w *world) awaitGone(o client.Object) {
	w.t.Helper()
	w.eventually(func() string {
		switch err := w.Get(w.t.Context(), client.ObjectKeyFromObject(o), o); {
		case apierrors.IsNotFound(err):
			return ""
		case err != nil:
			return err.Error()
		default:
			return fmt.Sprintf("%s is still there: finalizers %v", o.GetName(), o.GetFinalizers())
		}
	})
}

// pods lists the Pods of the namespace.
func (w *world) pods() []corev1.Pod {
	w.t.Helper()
	var list corev1.PodList
	if err := w.List(w.t.Context(), &list, client.InNamespace(w.ns)); err != nil {
		w.t.Fatal(err)
	}
	return list.Items
}

// awaitPods waits until the namespace has as many Pods and returns them.
func (w *world) awaitPods(n int) []corev1.Pod {
	w.t.Helper()
	var pods []corev1.Pod
	w.eventually(func() string {
		if pods = w.pods(); len(pods) == n {
			return ""
		}
		return fmt.Sprintf("there are %d Pods, want %d", len(pods), n)
	})
	return pods
}

// podOn creates a copy of the launcher Pod on a node, as a migration does.
func (w *world) podOn(node string, g *v1.VirtualMachineInstance, like corev1.Pod) *corev1.Pod {
	w.t.Helper()
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "target", Labels: map[string]string{v1.CreatedByLabel: string(g.UID)},
			OwnerReferences: like.OwnerReferences},
		Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "compute", Image: image}}},
	}
	w.create(p)
	return p
}

// change writes the VMI as another writer.
func (w *world) change(g *v1.VirtualMachineInstance, edit func(*v1.VirtualMachineInstance)) {
	w.t.Helper()
	w.eventually(func() string {
		if err := w.Get(w.t.Context(), client.ObjectKeyFromObject(g), g); err != nil {
			return err.Error()
		}
		was := g.DeepCopy()
		edit(g)
		if err := w.Patch(w.t.Context(), g, client.MergeFromWithOptions(was, client.MergeFromWithOptimisticLock{})); err != nil {
			return err.Error()
		}
		return ""
	})
}

// node acts as the agent of the VMI's node on an event of the lease.
func (w *world) node(g *v1.VirtualMachineInstance, kind handoff.Kind, phase v1.VirtualMachineInstancePhase) {
	w.t.Helper()
	w.change(g, func(g *v1.VirtualMachineInstance) {
		l := w.lease(g)
		events := []handoff.Kind{kind}
		if kind == handoff.Accept && phase == v1.Running {
			events = append(events, handoff.Started)
		}
		for _, k := range events {
			var err error
			if l, _, err = handoff.Step(l, handoff.Event{Kind: k, Epoch: l.Epoch, Node: l.Holder}, time.Now()); err != nil {
				w.t.Fatal(err)
			}
		}
		if err := handoff.Put(g, l); err != nil {
			w.t.Fatal(err)
		}
		g.Status.Phase = phase
	})
}

func (w *world) lease(g *v1.VirtualMachineInstance) handoff.Lease {
	w.t.Helper()
	l, err := handoff.Of(g)
	if err != nil {
		w.t.Fatal(err)
	}
	return l
}

// running starts a VMI up to phase Running.
func (w *world) running(name string) *v1.VirtualMachineInstance {
	w.t.Helper()
	g := w.guest(name)
	w.awaitPhase(g, v1.Scheduled)
	w.node(g, handoff.Accept, v1.Running)
	return g
}

func condition(g *v1.VirtualMachineInstance, t v1.VirtualMachineInstanceConditionType) v1.VirtualMachineInstanceCondition {
	for _, c := range g.Status.Conditions {
		if c.Type == t {
			return c
		}
	}
	return v1.VirtualMachineInstanceCondition{}
}
