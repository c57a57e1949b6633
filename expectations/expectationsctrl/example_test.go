// SPDX-License-Identifier: Apache-2.0

package expectationsctrl_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/virtloom/virtloom/expectations"
	"github.com/virtloom/virtloom/expectations/expectationsctrl"
)

// gated is a reconciler that acts on a cache only if that shows what it wrote.
type gated struct {
	client.Client
	gate *expectationsctrl.Gate
}

func (r *gated) SetupWithManager(mgr ctrl.Manager) (err error) {
	if r.gate, err = expectationsctrl.NewGate(mgr, expectationsctrl.Options{}); err != nil {
		return err
	}
	return r.gate.Attach(ctrl.NewControllerManagedBy(mgr)).For(&corev1.ConfigMap{}).Owns(&corev1.Pod{}).Complete(r)
}

func (r *gated) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	vm := &corev1.ConfigMap{}
	if err := r.Get(ctx, req.NamespacedName, vm); err != nil {
		r.gate.Forget(req.NamespacedName)
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	owner := expectationsctrl.OwnerOf(vm)
	if verdict, err := r.gate.Check(ctx, owner); err != nil || !verdict.Satisfied() {
		return ctrl.Result{RequeueAfter: verdict.RequeueAfter}, err
	}
	return ctrl.Result{}, launch(ctx, r.gate.For(owner), vm) // every write through this client is awaited
}

// standIn takes the place of the manager, and its cache shows nothing.
type standIn struct{ client.Client }

func (s standIn) GetClient() client.Client    { return s.Client }
func (s standIn) GetAPIReader() client.Reader { return s.Client }
func (s standIn) GetCache() cache.Cache       { return nothing{} }

type nothing struct{ cache.Cache }

func (nothing) Get(_ context.Context, key client.ObjectKey, _ client.Object, _ ...client.GetOption) error {
	return apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, key.Name)
}

// launch creates the Pod of vm unless the cache shows it.
func launch(ctx context.Context, c client.Client, vm *corev1.ConfigMap) error {
	launcher := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: vm.Namespace, Name: "virt-launcher-" + vm.Name}}
	fmt.Println("create", launcher.Name)
	launcher.UID = "91aa" // a real server chooses it
	return c.Create(ctx, launcher)
}

// The reconciler above is gated in nineteen lines, those of SetupWithManager and Reconcile. Here it meets a cache that
// does not show its Pod yet; a manager and a watch would take the place of what the example does by hand.
func Example() {
	ctx := context.Background()
	vm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "vm", UID: "7f2c"}}
	server := fake.NewClientBuilder().WithObjects(vm).Build()
	gate, err := expectationsctrl.NewGate(standIn{server}, expectationsctrl.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	r := &gated{Client: server, gate: gate}
	request := ctrl.Request{NamespacedName: client.ObjectKeyFromObject(vm)}
	for range 3 {
		if _, err := r.Reconcile(ctx, request); err != nil {
			fmt.Println(err)
		}
	}
	verdict, err := gate.Check(ctx, expectationsctrl.OwnerOf(vm))
	fmt.Println(verdict.State, verdict.Pending, err)

	for _, late := range gate.Late(expectationsctrl.OwnerOf(vm)) { // before the finalizer is removed
		fmt.Println(late.Ref, "may appear until", late.Until)
	}
	anonymous := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", GenerateName: "virt-launcher-"}}
	err = gate.For(expectationsctrl.OwnerOf(vm)).Create(ctx, anonymous)
	fmt.Println("cannot be awaited:", errors.Is(err, expectationsctrl.ErrUntracked))

	launcher := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "virt-launcher-vm", UID: "91aa"}}
	gate.Observing().Create(event.CreateEvent{Object: launcher}) // from the watch
	verdict, err = gate.Check(ctx, expectationsctrl.OwnerOf(vm))
	fmt.Println(verdict.State, err)
	// Output:
	// create virt-launcher-vm
	// waiting [create of Pod default/virt-launcher-vm, needs 1] <nil>
	// cannot be awaited: true
	// satisfied <nil>
}

// liveReads counts the reads that a Gate sends to the API server because no event came.
type liveReads struct {
	expectations.Observer // the rest goes there
	all, missing          atomic.Int64
}

func (l *liveReads) LiveRead(_ expectations.Ref, found bool, err error) {
	l.all.Add(1)
	if err == nil && !found {
		l.missing.Add(1)
	}
}

// An observer that has the method of LiveReads gets live reads as well.
func ExampleLiveReads() {
	counts := &liveReads{Observer: expectationsctrl.NewMetrics("desktops")}
	var observer expectations.Observer = counts
	_, counted := observer.(expectationsctrl.LiveReads)
	_, err := expectationsctrl.NewGate(standIn{fake.NewClientBuilder().Build()}, expectationsctrl.Options{Observer: observer})
	fmt.Println(counted, counts.all.Load(), counts.missing.Load(), err)
	// Output: true 0 0 <nil>
}
