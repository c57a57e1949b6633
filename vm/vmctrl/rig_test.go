// SPDX-License-Identifier: Apache-2.0

package vmctrl_test

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	v1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/virtloom/virtloom/internal/rig"
	"github.com/virtloom/virtloom/internal/rig/rigtest"
	"github.com/virtloom/virtloom/vm/vmctrl"
)

// patience bounds a wait.
const patience = 2 * time.Minute

// cluster is a control plane that serves CDI's kinds as well, and a client for the tests.
type cluster struct {
	*rig.Rig
	client.Client
	scheme *runtime.Scheme
	names  atomic.Int64
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	ctrl.SetLogger(logr.Discard()) // log lines outside of any manager
	gv, names := cdiv1.SchemeGroupVersion, apiextensionsv1.NamespaceScoped
	c := &cluster{scheme: runtime.NewScheme(), Rig: rigtest.Start(t, rig.Options{Definitions: []*apiextensionsv1.CustomResourceDefinition{
		rigtest.Definition(gv.WithKind("DataVolume"), "datavolumes", names), rigtest.Definition(gv.WithKind("DataSource"), "datasources", names),
	}})}
	if err := errors.Join(clientgoscheme.AddToScheme(c.scheme), vmctrl.AddToScheme(c.scheme)); err != nil {
		t.Fatal(err)
	}
	var err error
	if c.Client, err = client.New(c.Config(rig.UserAdmin), client.Options{Scheme: c.scheme}); err != nil {
		t.Fatal(err)
	}
	return c
}

// world is one namespace, to which the controllers of one test are limited.
type world struct {
	*cluster
	t  *testing.T
	ns string
	// beside is Reconciler.Beside of the controllers that are started.
	beside func() bool
}

func (c *cluster) world(t *testing.T) *world {
	t.Helper()
	w := &world{cluster: c, t: t, ns: fmt.Sprintf("test-%d", c.names.Add(1))}
	w.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.ns}})
	return w
}

// start runs a controller with the rights of the daemon, and returns a function that stops it.
func (w *world) start(wrap ...func(http.RoundTripper) http.RoundTripper) (stop func()) {
	w.t.Helper()
	cfg := w.Config(rig.UserController)
	for _, f := range wrap {
		cfg.Wrap(f)
	}
	skip := true
	mgr, err := ctrl.NewManager(cfg, ctrl.Options{
		Scheme: w.scheme, Logger: rigtest.Logger(w.t), Metrics: server.Options{BindAddress: "0"}, Controller: config.Controller{SkipNameValidation: &skip},
		Cache: cache.Options{DefaultNamespaces: map[string]cache.Config{w.ns: {}}},
	})
	if err != nil {
		w.t.Fatal(err)
	}
	r := &vmctrl.Reconciler{Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), Recorder: mgr.GetEventRecorder("virtualmachine-controller"), Beside: w.beside}
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

func (w *world) delete(o client.Object) {
	w.t.Helper()
	if err := w.Delete(w.t.Context(), o); err != nil {
		w.t.Fatal(err)
	}
}

// eventually fails unless look returns "" in time; otherwise it returns what is missing.
func (w *world) eventually(look func() string) {
	w.t.Helper()
	rigtest.Eventually(w.t, patience, look)
}

// change updates an object until the update is accepted; as a status, if status is set.
func (w *world) change(o client.Object, status bool, edit func()) {
	w.t.Helper()
	w.eventually(func() string {
		if err := w.Get(w.t.Context(), client.ObjectKeyFromObject(o), o); err != nil {
			return err.Error()
		}
		edit()
		var err error
		if status {
			err = w.Status().Update(w.t.Context(), o)
		} else {
			err = w.Update(w.t.Context(), o)
		}
		switch {
		case apierrors.IsConflict(err):
			return err.Error()
		case err != nil:
			w.t.Fatal(err)
		}
		return ""
	})
}

// machine creates a VM.
func (w *world) machine(name string, strategy v1.VirtualMachineRunStrategy, edit ...func(*v1.VirtualMachine)) *v1.VirtualMachine {
	w.t.Helper()
	memory := resource.MustParse("64Mi")
	vm := &v1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: name}, Spec: v1.VirtualMachineSpec{
		RunStrategy: &strategy,
		Template:    &v1.VirtualMachineInstanceTemplateSpec{Spec: v1.VirtualMachineInstanceSpec{Domain: v1.DomainSpec{Memory: &v1.Memory{Guest: &memory}}}},
	}}
	for _, e := range edit {
		e(vm)
	}
	w.create(vm)
	return vm
}

// vmi returns the VMI of a VM; nil if it has none.
func (w *world) vmi(vm *v1.VirtualMachine) *v1.VirtualMachineInstance {
	w.t.Helper()
	vmi := &v1.VirtualMachineInstance{}
	switch err := w.Get(w.t.Context(), client.ObjectKeyFromObject(vm), vmi); {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		w.t.Fatal(err)
	}
	return vmi
}

// awaitVMI waits for a VMI of the VM other than the given ones.
func (w *world) awaitVMI(vm *v1.VirtualMachine, but ...*v1.VirtualMachineInstance) *v1.VirtualMachineInstance {
	w.t.Helper()
	var vmi *v1.VirtualMachineInstance
	w.eventually(func() string {
		vmi = w.vmi(vm)
		if vmi == nil || slices.ContainsFunc(but, func(b *v1.VirtualMachineInstance) bool { return b.UID == vmi.UID }) {
			return "there is no new VMI: " + w.describe(vm)
		}
		return ""
	})
	return vmi
}

// describe returns the status of the VM in one line.
func (w *world) describe(vm *v1.VirtualMachine) string {
	if err := w.Get(w.t.Context(), client.ObjectKeyFromObject(vm), vm); err != nil {
		return err.Error()
	}
	return fmt.Sprintf("printableStatus %q, requests %v, conditions %+v", vm.Status.PrintableStatus, vm.Status.StateChangeRequests, vm.Status.Conditions)
}

// awaitStatus waits for the printableStatus.
func (w *world) awaitStatus(vm *v1.VirtualMachine, want v1.VirtualMachinePrintableStatus) {
	w.t.Helper()
	w.eventually(func() string {
		if d := w.describe(vm); vm.Status.PrintableStatus != want {
			return fmt.Sprintf("want %q: %s", want, d)
		}
		return ""
	})
}

// awaitFailure waits for condition Failure with the reason and all of the words.
func (w *world) awaitFailure(vm *v1.VirtualMachine, reason string, words ...string) {
	w.t.Helper()
	w.eventually(func() string {
		d := w.describe(vm)
		for _, c := range vm.Status.Conditions {
			if c.Type == v1.VirtualMachineFailure && c.Reason == reason &&
				!slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(c.Message, word) }) {
				return ""
			}
		}
		return fmt.Sprintf("want Failure %s with %q: %s", reason, words, d)
	})
}

// awaitEvent waits for an event about the VM.
func (w *world) awaitEvent(vm *v1.VirtualMachine, reason string, words ...string) {
	w.t.Helper()
	w.eventually(func() string {
		var list corev1.EventList
		if err := w.List(w.t.Context(), &list, client.InNamespace(w.ns)); err != nil {
			return err.Error()
		}
		for _, e := range list.Items {
			if e.InvolvedObject.UID == vm.UID && e.Reason == reason && !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(e.Message, word) }) {
				return ""
			}
		}
		return fmt.Sprintf("there is no event %s with %q", reason, words)
	})
}

// phase plays the part of the VMI's controller and its node.
func (w *world) phase(vmi *v1.VirtualMachineInstance, phase v1.VirtualMachineInstancePhase) {
	w.t.Helper()
	w.change(vmi, false, func() {
		vmi.Status.Phase = phase
		vmi.Status.PhaseTransitionTimestamps = append(vmi.Status.PhaseTransitionTimestamps,
			v1.VirtualMachineInstancePhaseTransitionTimestamp{Phase: phase, PhaseTransitionTimestamp: metav1.Now()})
		if phase == v1.Running {
			vmi.Status.Conditions = []v1.VirtualMachineInstanceCondition{{Type: v1.VirtualMachineInstanceReady, Status: corev1.ConditionTrue}}
		}
	})
}

// runs creates a VM and plays its start, with a controller that runs already.
func (w *world) runs() (*v1.VirtualMachine, *v1.VirtualMachineInstance) {
	w.t.Helper()
	vm := w.machine("vm", v1.RunStrategyAlways)
	vmi := w.awaitVMI(vm)
	w.phase(vmi, v1.Running)
	w.awaitStatus(vm, v1.VirtualMachineStatusRunning)
	return vm, vmi
}

// ended plays the end of a VMI that was deleted.
func (w *world) ended(vm *v1.VirtualMachine, vmi *v1.VirtualMachineInstance) {
	w.t.Helper()
	w.eventually(func() string {
		if now := w.vmi(vm); now != nil && now.UID == vmi.UID && now.DeletionTimestamp == nil {
			return "the VMI is not deleted: " + w.describe(vm)
		}
		return ""
	})
	w.phase(vmi, v1.Succeeded)
}
