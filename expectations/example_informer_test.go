// SPDX-License-Identifier: Apache-2.0

package expectations_test

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	listersv1 "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	cachetesting "k8s.io/client-go/tools/cache/testing"
	"k8s.io/client-go/util/workqueue"

	"github.com/virtloom/virtloom/expectations"
)

var podKind = schema.GroupKind{Kind: "Pod"}

// observing passes every event of an informer to a tracker. With it, the informers of client-go are sufficient.
func observing(t *expectations.Tracker, kind schema.GroupKind) cache.ResourceEventHandler {
	see := func(obj any, event expectations.EventKind) {
		if o, ok := obj.(metav1.Object); ok {
			t.Observe(kind, o, event)
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { see(obj, expectations.Added) },
		UpdateFunc: func(_, obj any) { see(obj, expectations.Updated) },
		DeleteFunc: func(obj any) {
			lost, unseen := obj.(cache.DeletedFinalStateUnknown)
			if !unseen {
				see(obj, expectations.Deleted)
				return
			}
			// A relist misses the object. Only its name is certain.
			namespace, name, err := cache.SplitMetaNamespaceKey(lost.Key)
			if err == nil {
				see(&metav1.ObjectMeta{Namespace: namespace, Name: name}, expectations.DeletedUnknown)
			}
		},
	}
}

// controller gives every machine one Pod.
type controller struct {
	tracker *expectations.Tracker
	pods    listersv1.PodLister // the cache
	client  kubernetes.Interface
}

// reconcile acts for a machine once the cache shows the writes of earlier passes.
func (c *controller) reconcile(ctx context.Context, vm expectations.Owner) (after time.Duration, err error) {
	verdict := c.tracker.Check(vm)
	if verdict.State == expectations.Expired {
		if err := c.ask(ctx, verdict); err != nil {
			return 0, err
		}
		verdict = c.tracker.Check(vm)
	}
	if !verdict.Satisfied() {
		fmt.Println(verdict.State, "for", verdict.Pending)
		return verdict.RequeueAfter, nil // Wake comes earlier as a rule
	}

	ref := expectations.Ref{Kind: podKind, Namespace: vm.Key.Namespace, Name: "launcher-of-" + vm.Key.Name}
	if pod, err := c.pods.Pods(ref.Namespace).Get(ref.Name); err == nil {
		fmt.Println("the cache shows", pod.Name)
		return 0, nil
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: ref.Namespace, Name: ref.Name}}
	token := c.tracker.ExpectCreate(vm, ref)
	created, err := c.client.CoreV1().Pods(ref.Namespace).Create(ctx, pod, metav1.CreateOptions{})
	switch expectations.Classify(expectations.Create, err) {
	case expectations.Accepted:
		c.tracker.Confirm(token, created)
		fmt.Println("created", created.Name)
	case expectations.Exists:
		c.tracker.Exists(token)
	case expectations.Refused:
		c.tracker.Cancel(token)
	case expectations.Ambiguous: // stays expected
	}
	return 0, err
}

// ask reads live an object that the cache should have shown by now.
func (c *controller) ask(ctx context.Context, v expectations.Verdict) error {
	for _, p := range v.Pending {
		if p.Problem == expectations.NoProblem {
			continue
		}
		live, err := c.client.CoreV1().Pods(p.Namespace).Get(ctx, p.Name, metav1.GetOptions{})
		switch {
		case err == nil:
			c.tracker.Answer(p, live)
		case apierrors.IsNotFound(err):
			c.tracker.Answer(p, nil)
		default:
			return fmt.Errorf("read live: %w", err)
		}
	}
	return nil
}

// With the informers and work queues of client-go: events of the informer settle what is expected, and the queue is woken
// by the tracker.
func Example_informer() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	watch := cachetesting.NewFakeControllerSource() // stands for the API server's watch, which the example delays
	informer := cache.NewSharedIndexInformer(watch, &corev1.Pod{}, 0, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})

	vm := expectations.Owner{Key: types.NamespacedName{Namespace: "default", Name: "vm"}, UID: "7f2c"}
	queue := workqueue.NewTyped[expectations.Owner]()
	defer queue.ShutDown()
	tracker, err := expectations.New(expectations.Options{Now: time.Now, Wake: queue.Add})
	if err != nil {
		fmt.Println(err)
		return
	}
	handlers, err := informer.AddEventHandler(observing(tracker, podKind))
	if err != nil {
		fmt.Println(err)
		return
	}
	go informer.RunWithContext(ctx)
	cache.WaitForCacheSync(ctx.Done(), handlers.HasSynced)

	c := &controller{tracker: tracker, pods: listersv1.NewPodLister(informer.GetIndexer()), client: fake.NewClientset()}
	pass := func() {
		owner, _ := queue.Get()
		defer queue.Done(owner)
		if _, err := c.reconcile(ctx, owner); err != nil {
			fmt.Println(err)
		}
	}
	queue.Add(vm)
	pass()
	queue.Add(vm) // another event of the machine arrives before the watch has delivered the Pod
	pass()
	created, err := c.client.CoreV1().Pods("default").Get(ctx, "launcher-of-vm", metav1.GetOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	watch.Add(created)
	pass() // woken by the event
	// Output:
	// created launcher-of-vm
	// waiting for [create of Pod default/launcher-of-vm]
	// the cache shows launcher-of-vm
}
