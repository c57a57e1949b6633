// SPDX-License-Identifier: Apache-2.0

package vmctrl_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// writes reports whether a request is a write of a controller that others depend on.
func writes(req *http.Request) bool {
	return req.Method != http.MethodGet && !strings.HasSuffix(req.URL.Path, "/events") && !strings.Contains(req.URL.Path, "/events/")
}

var errDead = errors.New("the controller is dead")

// death ends a controller at one of its writes: nothing that it sends from then on arrives.
type death struct {
	// at is the write, from zero; -1 for none. If answered is set, the write arrives, and its answer is not read.
	at       int
	answered bool
	count    atomic.Int64
	// dying is set with that write, and dead once it has been answered, so that the end of the process does not cancel it.
	dying, dead atomic.Bool
}

func (d *death) String() string {
	if d.answered {
		return fmt.Sprint("after write ", d.at)
	}
	return fmt.Sprint("before write ", d.at)
}

func (d *death) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(req *http.Request) (*http.Response, error) {
		switch {
		case d.dying.Load():
			return nil, errDead
		case !writes(req) || d.count.Add(1)-1 != int64(d.at):
			return next.RoundTrip(req)
		}
		d.dying.Store(true)
		defer d.dead.Store(true)
		if d.answered {
			if resp, err := next.RoundTrip(req); err == nil {
				resp.Body.Close()
			}
		}
		return nil, errDead
	})
}

// path is what a controller is killed on.
type path struct {
	// begin returns a VM at the beginning of the path, without a controller.
	begin func(*world) *v1.VirtualMachine
	// arrived plays the part of the others, and returns what is missing to the end of the path, or "".
	arrived func(*world, *v1.VirtualMachine) string
	// created is how many VMIs are created in all.
	created int
}

// killed runs a controller that is killed before and after each of its writes, and a second one to the end.
func killed(w *world, p path) {
	calm := &death{at: -1}
	w.survive(p, calm)
	if calm.count.Load() == 0 {
		w.t.Fatal("the controller writes nothing on this path")
	}
	for at := range int(calm.count.Load()) {
		for _, answered := range []bool{false, true} {
			w.cluster.world(w.t).survive(p, &death{at: at, answered: answered})
		}
	}
}

func (w *world) survive(p path, d *death) {
	w.t.Helper()
	vm := p.begin(w)
	stop := w.start(d.wrap)
	w.eventually(func() string {
		if d.dead.Load() {
			return ""
		}
		return p.arrived(w, vm)
	})
	stop()
	if d.dead.Load() {
		stop = w.start()
		w.eventually(func() string {
			if missing := p.arrived(w, vm); missing != "" {
				return fmt.Sprintf("killed %s: %s", d, missing)
			}
			return ""
		})
		stop()
	}
	w.created(p.created)
}

// starting returns what is missing until the VM has a VMI and says so.
func starting(w *world, vm *v1.VirtualMachine) string {
	if d := w.describe(vm); vm.Status.PrintableStatus != v1.VirtualMachineStatusStarting || !vm.Status.Created || len(vm.Status.Conditions) != 1 {
		return d
	}
	return ""
}

func killedStarting(w *world) {
	killed(w, path{
		begin:   func(w *world) *v1.VirtualMachine { return w.machine("vm", v1.RunStrategyAlways) },
		arrived: starting, created: 1,
	})
}

// running returns a VM that runs, without a controller.
func running(w *world) *v1.VirtualMachine {
	stop := w.start()
	defer stop()
	vm, _ := w.runs()
	return vm
}

// endsDeleted ends the VMI if it is deleted.
func endsDeleted(w *world, vm *v1.VirtualMachine) {
	if vmi := w.vmi(vm); vmi != nil && vmi.DeletionTimestamp != nil && !vmi.IsFinal() {
		vmi.Status.Phase = v1.Succeeded
		if err := w.Update(w.t.Context(), vmi); err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			w.t.Fatal(err)
		}
	}
}

func killedRestarting(w *world) {
	killed(w, path{
		begin: func(w *world) *v1.VirtualMachine {
			vm := running(w)
			restart(w, vm, w.vmi(vm))
			return vm
		},
		arrived: func(w *world, vm *v1.VirtualMachine) string {
			endsDeleted(w, vm)
			if missing := starting(w, vm); missing != "" || len(vm.Status.StateChangeRequests) > 0 {
				return "the restart " + missing
			}
			return ""
		},
		created: 2,
	})
}

func killedDeleting(w *world) {
	killed(w, path{
		begin: func(w *world) *v1.VirtualMachine {
			vm := running(w)
			w.delete(vm)
			return vm
		},
		arrived: func(w *world, vm *v1.VirtualMachine) string {
			endsDeleted(w, vm)
			if err := w.Get(w.t.Context(), client.ObjectKeyFromObject(vm), vm); !apierrors.IsNotFound(err) {
				return fmt.Sprintf("the VM is left: %v, finalizers %v", err, vm.Finalizers)
			}
			return ""
		},
		created: 1,
	})
}

// ambiguous loses the answer to the first write of one kind, which the server has carried out.
func ambiguous(method, suffix string) func(*world) {
	return func(w *world) {
		var lost atomic.Bool
		w.start(func(next http.RoundTripper) http.RoundTripper {
			return roundTripper(func(req *http.Request) (*http.Response, error) {
				resp, err := next.RoundTrip(req)
				if req.Method == method && strings.HasSuffix(req.URL.Path, suffix) && lost.CompareAndSwap(false, true) {
					if err == nil {
						resp.Body.Close()
					}
					return nil, io.ErrUnexpectedEOF
				}
				return resp, err
			})
		})
		vm := w.machine("vm", v1.RunStrategyAlways)
		w.eventually(func() string { return starting(w, vm) })
		if !lost.Load() {
			w.t.Error("no answer was lost")
		}
		w.created(1)
	}
}

// held holds back the events of a watch.
type held struct {
	suffix string
	mu     sync.Mutex
	until  chan struct{} // guarded by mu; nil while nothing is held
}

func (h *held) hold() (release func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	until := make(chan struct{})
	h.until = until
	return func() { close(until) }
}

func (h *held) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(req *http.Request) (*http.Response, error) {
		resp, err := next.RoundTrip(req)
		if err == nil && strings.HasSuffix(req.URL.Path, h.suffix) && req.URL.Query().Has("watch") {
			resp.Body = &heldBody{resp.Body, req.Context(), h}
		}
		return resp, err
	})
}

type heldBody struct {
	io.ReadCloser
	ctx context.Context
	h   *held
}

func (b *heldBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.h.mu.Lock()
	until := b.h.until
	b.h.mu.Unlock()
	if until == nil {
		return n, err
	}
	select {
	case <-until:
	case <-b.ctx.Done():
	}
	return n, err
}

// haltedUnseen halts a VM, whose controller sees that its VMI has ended and not that it is halted: it must not start it again.
func haltedUnseen(w *world) {
	h := &held{suffix: "/virtualmachines"}
	w.start(h.wrap)
	vm, vmi := w.runs()
	release := h.hold()
	w.change(vm, false, func() { vm.Spec.RunStrategy = new(v1.RunStrategyHalted) })
	before := len(w.audit())
	w.phase(vmi, v1.Succeeded) // under Always it would be deleted, and another one started
	w.eventually(func() string {
		looks := 0
		for _, q := range w.audit()[before:] {
			// The decision rests on the old version, which a live read refutes. The second look comes after all that follows the first.
			if q.What() == "get virtualmachines" && q.User.Username != "admin" {
				looks++
			}
		}
		if looks < 2 {
			return fmt.Sprintf("the controller has looked %d times at the VM", looks)
		}
		return ""
	})
	if now := w.vmi(vm); now == nil || now.DeletionTimestamp != nil {
		w.t.Error("the VMI was deleted by a stale decision")
	}
	release()
	w.awaitStatus(vm, v1.VirtualMachineStatusStopped)
	w.created(1)
}

// replica starts a VM whose VMI another replica of the controller has created, which this one's cache does not show.
func replica(w *world) {
	h := &held{suffix: "/virtualmachineinstances"}
	w.start(h.wrap)
	vm := w.machine("vm", v1.RunStrategyHalted)
	w.awaitStatus(vm, v1.VirtualMachineStatusStopped)
	release := h.hold()
	theirs := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "vm",
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(vm, v1.VirtualMachineGroupVersionKind)}}, Spec: vm.Spec.Template.Spec}
	w.create(theirs)
	w.change(vm, false, func() { vm.Spec.RunStrategy = new(v1.RunStrategyAlways) })
	w.eventually(func() string {
		for _, q := range w.audit() {
			if q.What() == "create virtualmachineinstances" && !q.Accepted() {
				return ""
			}
		}
		return "the controller has not tried to create the VMI"
	})
	w.awaitStatus(vm, v1.VirtualMachineStatusStarting)
	for _, c := range vm.Status.Conditions {
		if c.Type == v1.VirtualMachineFailure {
			w.t.Errorf("its own VMI is a failure: %+v", c)
		}
	}
	release()
	w.eventually(func() string { return starting(w, vm) })
	w.created(1)
}
