// SPDX-License-Identifier: Apache-2.0

package expectationsctrl_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/virtloom/virtloom/expectations"
)

type queue struct {
	workqueue.TypedRateLimitingInterface[reconcile.Request]
}

func newQueue(t *testing.T) *queue {
	t.Helper()
	q := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
	t.Cleanup(q.ShutDown)
	return &queue{q}
}

// representations are the forms in which a cache may hold a Pod.
func representations(name, version string) map[string]client.Object {
	typed := pod(name)
	typed.ResourceVersion = version
	partial := &metav1.PartialObjectMetadata{ObjectMeta: typed.ObjectMeta}
	partial.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Pod"))
	free := &unstructured.Unstructured{}
	free.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Pod"))
	free.SetNamespace(typed.Namespace)
	free.SetName(typed.Name)
	free.SetUID(typed.UID)
	free.SetResourceVersion(version)
	return map[string]client.Object{"typed": typed, "metadata": partial, "unstructured": free}
}

func TestObserving_Events(t *testing.T) {
	for form, seen := range representations("there", "2000") {
		for name, tc := range map[string]struct {
			expect func(*scene)
			event  func(predicate.Predicate) bool
			want   expectations.State
		}{
			"create": {func(s *scene) { s.tracker.ExpectCreate(owner, there()) },
				func(p predicate.Predicate) bool { return p.Create(event.CreateEvent{Object: seen}) }, expectations.Satisfied},
			"update": {func(s *scene) { s.tracker.ExpectUpdate(owner, there(), "", "2000") },
				func(p predicate.Predicate) bool {
					return p.Update(event.UpdateEvent{ObjectOld: pod("there"), ObjectNew: seen})
				}, expectations.Satisfied},
			"delete": {func(s *scene) { s.tracker.ExpectDelete(owner, there(), seen.GetUID(), "") },
				func(p predicate.Predicate) bool { return p.Delete(event.DeleteEvent{Object: seen}) }, expectations.Satisfied},
			"tombstone": {func(s *scene) { s.tracker.ExpectDelete(owner, there(), seen.GetUID(), "") },
				func(p predicate.Predicate) bool {
					return p.Delete(event.DeleteEvent{Object: seen, DeleteStateUnknown: true})
				}, expectations.Expired},
			"generic": {func(s *scene) { s.tracker.ExpectCreate(owner, there()) },
				func(p predicate.Predicate) bool { return p.Generic(event.GenericEvent{Object: seen}) }, expectations.Waiting},
			"nothing": {func(s *scene) { s.tracker.ExpectCreate(owner, there()) },
				func(p predicate.Predicate) bool { return p.Create(event.CreateEvent{}) }, expectations.Waiting},
		} {
			t.Run(form+" "+name, func(t *testing.T) {
				s := newScene(t, setup{})
				tc.expect(s)
				if !tc.event(s.gate.Observing()) {
					t.Error("the event is dropped")
				}
				if got := s.tracker.Check(owner).State; got != tc.want {
					t.Errorf("got %s, want %s", got, tc.want)
				}
			})
		}
	}
}
