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

// journal writes down how writes became visible. A watch that works settles them; live reads and drops
// are for an operator to look at.
type journal struct{}

func (journal) Noted(w expectations.Write) { fmt.Println("noted", w.Verb, w.Ref) }

func (journal) Settled(w expectations.Write, by expectations.Evidence, age time.Duration) {
	switch by {
	case expectations.ByEvent, expectations.ByReply, expectations.ByBookmark, expectations.ByCache:
		fmt.Printf("%s is visible after %s, by its %s\n", w.Ref.Name, age, by)
	case expectations.ByLiveRead, expectations.ByDisproof:
		fmt.Printf("%s took a live read after %s: %s\n", w.Ref.Name, age, by)
	}
}

func (journal) Dropped(w expectations.Write, why expectations.DropReason) {
	switch why {
	case expectations.Cancelled:
		fmt.Println(w.Ref.Name, "was refused")
	case expectations.Forgotten, expectations.Succeeded:
		fmt.Println("the owner of", w.Ref.Name, "is gone")
	}
}

func (journal) Troubled(w expectations.Write, p expectations.Problem) {
	switch p {
	case expectations.Overdue:
		fmt.Println(w.Ref.Name, "is overdue")
	case expectations.Tombstone, expectations.Incomparable:
		fmt.Println(w.Ref.Name, "needs a live read:", p)
	}
}

// The writes of an owner from start to end, as metrics or logs would have them.
func ExampleObserver() {
	now := time.Unix(0, 0)
	tracker, err := expectations.New(expectations.Options{Now: func() time.Time { return now }, Observer: journal{}})
	if err != nil {
		fmt.Println(err)
		return
	}
	vm := expectations.Owner{Key: types.NamespacedName{Namespace: "default", Name: "vm"}, UID: "7f2c"}
	kind := schema.GroupKind{Kind: "Pod"}
	create := func(name string) (expectations.Token, *metav1.PartialObjectMetadata) {
		token := tracker.ExpectCreate(vm, expectations.Ref{Kind: kind, Namespace: "default", Name: name})
		return token, &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name), ResourceVersion: "41"}}
	}
	token, launcher := create("launcher")
	tracker.Confirm(token, launcher)
	now = now.Add(time.Millisecond)
	tracker.Observe(kind, launcher, expectations.Added)

	token, _ = create("exporter") // over quota
	tracker.Cancel(token)

	create("volume") // the connection breaks
	now = now.Add(expectations.DefaultTTL)
	tracker.Answer(tracker.Check(vm).Pending[0], nil)

	create("hotplug")
	tracker.ForgetKey(vm.Key) // the owner is deleted
	// Output:
	// noted create Pod default/launcher
	// launcher is visible after 1ms, by its event
	// noted create Pod default/exporter
	// exporter was refused
	// noted create Pod default/volume
	// volume is overdue
	// volume took a live read after 30s: disproof
	// noted create Pod default/hotplug
	// the owner of hotplug is gone
}

// What a controller does with each verdict, here of a Pod whose event is lost: it waits, reads live when
// that is pointless, and leaves the cache the time that it still has.
func ExampleVerdict() {
	now := time.Unix(0, 0)
	tracker, err := expectations.New(expectations.Options{Now: func() time.Time { return now }})
	if err != nil {
		fmt.Println(err)
		return
	}
	vm := expectations.Owner{Key: types.NamespacedName{Namespace: "default", Name: "vm"}, UID: "7f2c"}
	kind := schema.GroupKind{Kind: "Pod"}
	live := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "launcher", UID: "91aa", ResourceVersion: "41"}}
	tracker.ExpectCreate(vm, expectations.Ref{Kind: kind, Namespace: "default", Name: "launcher"}) // no answer

	for done := false; !done; {
		switch v := tracker.Check(vm); v.State {
		case expectations.Satisfied:
			fmt.Println("act on the cache")
			done = true
		case expectations.Waiting:
			fmt.Println("requeue after", v.RequeueAfter)
			now = v.Deadline
		case expectations.Expired:
			switch f := tracker.Answer(v.Pending[0], live); f {
			case expectations.Shown, expectations.Disproved:
				fmt.Println(f, "- the write is settled:", f.Settled())
			case expectations.CacheBehind, expectations.ServerBehind:
				fmt.Println(f, "- one of the two needs more time")
			case expectations.Unordered:
				tracker.Cancel(v.Pending[0].Token())
			}
		}
	}
	// Output:
	// requeue after 30s
	// cache behind - one of the two needs more time
	// requeue after 30s
	// shown - the write is settled: true
	// act on the cache
}

// outcome describes what an error says about a write.
func outcome(o expectations.Outcome) string {
	switch o {
	case expectations.Accepted:
		return "await it"
	case expectations.Refused:
		return "it has no effect"
	default:
		return "it may have an effect"
	}
}

// A watch that delivers bookmarks settles a write whose own event was lost, and an owner that is gone takes its
// writes along.
func ExampleTracker_ObserveBookmark() {
	tracker, err := expectations.New(expectations.Options{Now: func() time.Time { return time.Unix(0, 0) }})
	if err != nil {
		fmt.Println(err)
		return
	}
	vm := expectations.Owner{Key: types.NamespacedName{Namespace: "default", Name: "vm"}, UID: "7f2c"}
	kind := schema.GroupKind{Kind: "Pod"}
	launcher := expectations.Ref{Kind: kind, Namespace: "default", Name: "launcher"}

	tracker.ExpectUpdate(vm, launcher, "41", "44")
	fmt.Println(outcome(expectations.Classify(expectations.Update, nil)))
	tracker.ObserveBookmark(kind, "default", "43")
	fmt.Println("at 43:", tracker.Check(vm).State)
	tracker.ObserveBookmark(kind, "", "44") // of a watch of all namespaces
	fmt.Println("at 44:", tracker.Check(vm).State)

	tracker.ExpectUpdate(vm, launcher, "44", "51")
	tracker.Forget(vm)
	fmt.Println("open writes:", tracker.Outstanding())
	// Output:
	// await it
	// at 43: waiting
	// at 44: satisfied
	// open writes: 0
}
