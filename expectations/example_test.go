// SPDX-License-Identifier: Apache-2.0

package expectations_test

import (
	"fmt"
	"io"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/virtloom/virtloom/expectations"
)

// A controller notes a creation, waits for its cache, and is woken by the event.
func Example() {
	tracker, err := expectations.New(expectations.Options{
		Now:  func() time.Time { return time.Unix(0, 0) },
		Wake: func(o expectations.Owner) { fmt.Println("wake", o.Key) },
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	vm := expectations.Owner{Key: types.NamespacedName{Namespace: "default", Name: "vm"}, UID: "7f2c"}
	kind := schema.GroupKind{Kind: "Pod"}

	token := tracker.ExpectCreate(vm, expectations.Ref{Kind: kind, Namespace: "default", Name: "virt-launcher-vm-x"})
	// Here the Pod is created; this is the server's answer.
	pod := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Namespace: "default", Name: "virt-launcher-vm-x", UID: "91aa", ResourceVersion: "41",
	}}
	tracker.Confirm(token, pod)

	verdict := tracker.Check(vm)
	fmt.Println(verdict.State, verdict.Pending)

	tracker.Observe(kind, pod, expectations.Added) // from the watch
	fmt.Println(tracker.Check(vm).State)
	// Output:
	// waiting [create of Pod default/virt-launcher-vm-x, needs 41]
	// wake default/vm
	// satisfied
}

// A connection breaks while a Pod is created. Whether the server has made it is unknown, so the creation stays expected
// until a live read settles it.
func ExampleTracker_Answer() {
	now := time.Unix(0, 0)
	tracker, err := expectations.New(expectations.Options{Now: func() time.Time { return now }})
	if err != nil {
		fmt.Println(err)
		return
	}
	vm := expectations.Owner{Key: types.NamespacedName{Namespace: "default", Name: "vm"}, UID: "7f2c"}
	kind := schema.GroupKind{Kind: "Pod"}

	tracker.ExpectCreate(vm, expectations.Ref{Kind: kind, Namespace: "default", Name: "virt-launcher-vm-x"})
	fmt.Println(expectations.Classify(expectations.Create, io.ErrUnexpectedEOF) == expectations.Ambiguous)
	fmt.Println(tracker.Check(vm).State)

	now = now.Add(expectations.DefaultTTL)
	verdict := tracker.Check(vm)
	fmt.Println(verdict.State, verdict.Pending)

	fmt.Println(tracker.Answer(verdict.Pending[0], nil)) // the server reports that no such Pod exists
	fmt.Println(tracker.Check(vm).State)
	// Output:
	// true
	// waiting
	// expired [create of Pod default/virt-launcher-vm-x, overdue]
	// disproved
	// satisfied
}
