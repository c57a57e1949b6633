// SPDX-License-Identifier: Apache-2.0

package migrationctrl

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

func asked(name string) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Namespace: "ns", Name: name}}
}

// What happens to Pods goes before migrations that were made before, and what is relisted goes after them.
func TestWhatHappensToPodsIsUrgent(t *testing.T) {
	h := urgent{handler.EnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []reconcile.Request {
		return []reconcile.Request{asked(o.GetName())}
	})}
	pod := func(name, version string) *corev1.Pod {
		p := &corev1.Pod{}
		p.Name, p.ResourceVersion = name, version
		return p
	}
	q := priorityqueue.New[reconcile.Request]("urgent")
	defer q.ShutDown()
	q.AddWithOpts(priorityqueue.AddOpts{}, asked("waiting-1"), asked("waiting-2"))
	h.Update(t.Context(), event.UpdateEvent{ObjectOld: pod("relisted", "1"), ObjectNew: pod("relisted", "1")}, q)
	h.Update(t.Context(), event.UpdateEvent{ObjectOld: pod("updated", "1"), ObjectNew: pod("updated", "2")}, q)
	h.Create(t.Context(), event.CreateEvent{Object: pod("created", "1")}, q)
	h.Delete(t.Context(), event.DeleteEvent{Object: pod("deleted", "1")}, q)
	h.Generic(t.Context(), event.GenericEvent{Object: pod("told", "1")}, q)
	for _, want := range []string{"updated", "created", "deleted", "told", "waiting-1", "waiting-2", "relisted"} {
		got, _, _ := q.GetWithPriority()
		if got != asked(want) {
			t.Errorf("%s is next, want %s", got.Name, want)
		}
		q.Done(got)
	}
}

// A queue that knows no priorities gets what it would get otherwise.
func TestUrgentWithAPlainQueue(t *testing.T) {
	q := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
	defer q.ShutDown()
	h := urgent{handler.EnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []reconcile.Request {
		return []reconcile.Request{asked(o.GetName())}
	})}
	p := &corev1.Pod{}
	p.Name = "created"
	h.Create(t.Context(), event.CreateEvent{Object: p}, q)
	if got, _ := q.Get(); got != asked("created") {
		t.Errorf("%s is next", got.Name)
	}
}
