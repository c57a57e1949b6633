// SPDX-License-Identifier: Apache-2.0

package migrationctrl_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	v1 "kubevirt.io/api/core/v1"
	"kubevirt.io/api/migrations/v1alpha1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/internal/rig"
	"github.com/virtloom/virtloom/internal/rig/rigtest"
	"github.com/virtloom/virtloom/migration"
	"github.com/virtloom/virtloom/migration/migrationctrl"
	"github.com/virtloom/virtloom/template"
	"github.com/virtloom/virtloom/template/templatectrl"
)

const (
	// patience bounds waiting for what must happen.
	patience = 2 * time.Minute
	image    = "example.test/virt-launcher:1"
)

// cluster is a rig with three nodes and a client for the test.
type cluster struct {
	*rig.Rig
	client.Client
	scheme *runtime.Scheme
	names  atomic.Int64
}

func newCluster(t *testing.T) *cluster { return newClusterOf(t, 3, 0) }

// newClusterOf has so many nodes, whose migrations take that long.
func newClusterOf(t *testing.T, nodes int, takes time.Duration) *cluster {
	t.Helper()
	c := &cluster{Rig: rigtest.Start(t, rig.Options{SimulatedNodes: nodes})}
	var err error
	if c.scheme, err = newScheme(); err != nil {
		t.Fatal(err)
	}
	if c.Client, err = client.New(c.Config(rig.UserAdmin), client.Options{Scheme: c.scheme}); err != nil {
		t.Fatal(err)
	}
	c.startNodes(t, takes)
	return c
}

func newScheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	return scheme, nil
}

// smallGuest is a VMI as its author writes it.
func smallGuest(namespace, name string) *v1.VirtualMachineInstance {
	memory := resource.MustParse("64Mi")
	return &v1.VirtualMachineInstance{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"guest": name}},
		Spec:       v1.VirtualMachineInstanceSpec{Domain: v1.DomainSpec{Memory: &v1.Memory{Guest: &memory}}},
	}
}

// manager returns a manager of its own for one process of the test.
func (c *cluster) manager(t *testing.T, user string) ctrl.Manager {
	t.Helper()
	skip := true
	mgr, err := ctrl.NewManager(c.Config(user), ctrl.Options{
		Scheme: c.scheme, Logger: rigtest.Logger(t), Metrics: server.Options{BindAddress: "0"},
		Controller: config.Controller{SkipNameValidation: &skip},
		Cache:      cache.Options{DefaultTransform: templatectrl.TrimPod},
	})
	if err != nil {
		t.Fatal(err)
	}
	return mgr
}

// startController runs the controller under test; edit may change it first.
func (c *cluster) startController(t *testing.T, edit func(*migrationctrl.Reconciler)) (stop func()) {
	t.Helper()
	mgr, _ := c.controller(t, edit)
	return rigtest.Run(t, mgr.Start)
}

// controller is the controller under test, set up with a manager that has yet to run; edit may change it first.
func (c *cluster) controller(t *testing.T, edit func(*migrationctrl.Reconciler)) (ctrl.Manager, *migrationctrl.Reconciler) {
	t.Helper()
	mgr := c.manager(t, rig.UserController)
	r := reconcilerOf(mgr)
	if edit != nil {
		edit(r)
	}
	if err := r.SetupWithManager(t.Context(), mgr); err != nil {
		t.Fatal(err)
	}
	return mgr, r
}

func reconcilerOf(mgr ctrl.Manager) *migrationctrl.Reconciler {
	return &migrationctrl.Reconciler{
		Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), LauncherImage: image, Recorder: mgr.GetEventRecorder("migration"),
	}
}

// namespace makes a namespace for one test.
func (c *cluster) namespace(t *testing.T) string {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("test-%d", c.names.Add(1))}}
	c.create(t, ns)
	t.Cleanup(func() { c.clear(t, ns.Name) })
	return ns.Name
}

// clear removes what a failed test may leave, so that it holds no slot in the
// tests after it.
func (c *cluster) clear(t *testing.T, namespace string) {
	t.Helper()
	ctx := context.Background()
	var list v1.VirtualMachineInstanceMigrationList
	if err := c.List(ctx, &list, client.InNamespace(namespace)); err != nil {
		t.Error(err)
	}
	for i := range list.Items {
		m := &list.Items[i]
		m.Finalizers = nil
		if err := errors.Join(c.Update(ctx, m), c.Delete(ctx, m)); err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			t.Error(err)
		}
	}
	for _, o := range []client.Object{&v1.VirtualMachineInstance{}, &v1.KubeVirt{}} {
		if err := c.DeleteAllOf(ctx, o, client.InNamespace(namespace)); err != nil {
			t.Error(err)
		}
	}
}

func (c *cluster) create(t *testing.T, o client.Object) {
	t.Helper()
	if err := c.Create(t.Context(), o); err != nil {
		t.Fatal(err)
	}
}

// guest creates a VMI that runs in a launcher Pod on the node, as the rest of the
// control plane leaves it.
func (c *cluster) guest(t *testing.T, namespace, name, node string) *v1.VirtualMachineInstance {
	t.Helper()
	return c.guestWith(t, namespace, name, node, nil)
}

// guestWith creates a VMI that keeps its state in the claim, if there is one.
func (c *cluster) guestWith(t *testing.T, namespace, name, node string, state *corev1.PersistentVolumeClaim) *v1.VirtualMachineInstance {
	t.Helper()
	vmi := smallGuest(namespace, name)
	in := template.Input{VMI: vmi, Config: template.Config{LauncherImage: image}}
	if state != nil {
		persistent := true
		vmi.Spec.Domain.Devices.TPM = &v1.TPMDevice{Persistent: &persistent}
		in.Facts.Claims = map[string]*corev1.PersistentVolumeClaim{state.Name: state}
	}
	c.create(t, vmi)
	pod, err := template.Default().Launcher(in)
	if err != nil {
		t.Fatal(err)
	}
	pod.Spec.NodeName = node
	c.create(t, pod)
	c.waitFor(t, "the launcher Pod to run", pod, func() bool { return pod.Status.Phase == corev1.PodRunning })

	vmi.Status.Phase, vmi.Status.NodeName, vmi.Status.SelinuxContext = v1.Running, node, "none"
	vmi.Labels[v1.NodeNameLabel] = node
	if err := handoff.Put(vmi, handoff.Lease{State: handoff.Owned, Epoch: 1, Holder: node}); err != nil {
		t.Fatal(err)
	}
	if err := c.Update(t.Context(), vmi); err != nil {
		t.Fatal(err)
	}
	return vmi
}

func (c *cluster) migrate(t *testing.T, vmi *v1.VirtualMachineInstance, name string, edit func(*v1.VirtualMachineInstanceMigration)) *v1.VirtualMachineInstanceMigration {
	t.Helper()
	m := &v1.VirtualMachineInstanceMigration{
		ObjectMeta: metav1.ObjectMeta{Namespace: vmi.Namespace, Name: name},
		Spec:       v1.VirtualMachineInstanceMigrationSpec{VMIName: vmi.Name},
	}
	if edit != nil {
		edit(m)
	}
	c.create(t, m)
	return m
}

// waitFor reads the object until the condition holds.
func (c *cluster) waitFor(t *testing.T, what string, o client.Object, ok func() bool) {
	t.Helper()
	err := rigtest.Poll(t.Context(), patience, func(ctx context.Context) (bool, error) {
		if err := c.Get(ctx, client.ObjectKeyFromObject(o), o); err != nil {
			return false, err
		}
		return ok(), nil
	})
	if err != nil {
		t.Fatalf("waiting for %s: %v; it is %+v", what, err, o)
	}
}

func (c *cluster) waitGone(t *testing.T, o client.Object) {
	t.Helper()
	err := rigtest.Poll(t.Context(), patience, func(ctx context.Context) (bool, error) {
		err := c.Get(ctx, client.ObjectKeyFromObject(o), o)
		return apierrors.IsNotFound(err), client.IgnoreNotFound(err)
	})
	if err != nil {
		t.Fatalf("%T %s is still there: %v", o, o.GetName(), err)
	}
}

func (c *cluster) waitPhase(t *testing.T, m *v1.VirtualMachineInstanceMigration, want v1.VirtualMachineInstanceMigrationPhase) {
	t.Helper()
	c.waitFor(t, "phase "+string(want), m, func() bool {
		if m.IsFinal() && m.Status.Phase != want {
			t.Fatalf("migration ended in phase %s: %+v", m.Status.Phase, m.Status.Conditions)
		}
		return m.Status.Phase == want
	})
}

// waitReleased waits until nothing is left to do for the migration.
func (c *cluster) waitReleased(t *testing.T, m *v1.VirtualMachineInstanceMigration) {
	t.Helper()
	c.waitFor(t, "the finalizer to go", m, func() bool { return len(m.Finalizers) == 0 })
}

// pods lists the VMI's Pods that are not being deleted.
func (c *cluster) pods(t *testing.T, vmi *v1.VirtualMachineInstance) []corev1.Pod {
	t.Helper()
	var list corev1.PodList
	if err := c.List(t.Context(), &list, client.InNamespace(vmi.Namespace), client.MatchingLabels{v1.CreatedByLabel: string(vmi.UID)}); err != nil {
		t.Fatal(err)
	}
	return list.Items
}

// onlyPodOn waits until the VMI has exactly one Pod, on the node that owns it.
func (c *cluster) onlyPodOn(t *testing.T, vmi *v1.VirtualMachineInstance, node string) {
	t.Helper()
	err := rigtest.Poll(t.Context(), patience, func(context.Context) (bool, error) {
		pods := c.pods(t, vmi)
		return len(pods) == 1 && pods[0].Spec.NodeName == node, nil
	})
	if err != nil {
		t.Errorf("the VMI's Pods are not one on %s: %+v", node, c.pods(t, vmi))
	}
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(vmi), vmi); err != nil {
		t.Fatal(err)
	}
	lease, err := handoff.Of(vmi)
	if err != nil {
		t.Fatal(err)
	}
	if lease.State != handoff.Owned || lease.Holder != node || vmi.Status.NodeName != node {
		t.Errorf("the lease is %+v, nodeName %q; want Owned by %s", lease, vmi.Status.NodeName, node)
	}
}

func reasonOf(m *v1.VirtualMachineInstanceMigration) migration.Reason {
	for _, t := range []v1.VirtualMachineInstanceMigrationConditionType{migration.ConditionFailed, migration.ConditionWaiting} {
		if c := migration.Condition(m.Status, t); c != nil {
			return migration.Reason(c.Reason)
		}
	}
	return ""
}
