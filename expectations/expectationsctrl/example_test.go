// SPDX-License-Identifier: Apache-2.0

package expectationsctrl_test

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/virtloom/virtloom/expectations"
	"github.com/virtloom/virtloom/expectations/expectationsctrl"
)

// What is written through the client is awaited by itself: the gate stays shut
// until the watch has shown the new Pod. In a controller the manager's client and
// cache take the place of the fake, and its watches call the handler.
func Example() {
	tracker, err := expectations.New(expectations.Options{
		Now:  func() time.Time { return time.Unix(0, 0) },
		Wake: func(o expectations.Owner) { fmt.Println("wake", o.Key) }, // a Waker's in a controller
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	server := fake.NewClientBuilder().Build()
	recording := expectationsctrl.NewRecordingClient(server, tracker, nil)
	gate := &expectationsctrl.Resolver{Tracker: tracker, Reader: server, Mapper: server.RESTMapper()}
	events := expectationsctrl.Observing(tracker, schema.GroupKind{Kind: "Pod"}, nil)
	vm := expectations.Owner{Key: types.NamespacedName{Namespace: "default", Name: "vm"}, UID: "7f2c"}

	ctx := context.Background()
	launcher := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "virt-launcher-vm-x"}}
	launcher.UID = "91aa" // a real server chooses it
	if err := recording.For(vm).Create(ctx, launcher); err != nil {
		fmt.Println(err)
		return
	}
	verdict, err := gate.Check(ctx, vm)
	fmt.Println(verdict.State, verdict.Pending, err)

	events.Create(ctx, event.CreateEvent{Object: launcher}, nil) // from the watch
	verdict, err = gate.Check(ctx, vm)
	fmt.Println(verdict.State, err)

	// A write that nobody could recognise is refused before it is sent.
	nameless := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", GenerateName: "virt-launcher-"}}
	fmt.Println(recording.For(vm).Create(ctx, nameless))
	// Output:
	// waiting [create of Pod default/virt-launcher-vm-x, needs 1] <nil>
	// wake default/vm
	// satisfied <nil>
	// create Pod with generated name: write cannot be tracked
}
