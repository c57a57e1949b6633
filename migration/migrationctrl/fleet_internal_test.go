// SPDX-License-Identifier: Apache-2.0

package migrationctrl

import (
	"context"
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/workqueue"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/virtloom/virtloom/migration/evacuation"
)

// TestFleet_ComputedOncePerChange has both controllers ask repeatedly.
func TestFleet_ComputedOncePerChange(t *testing.T) {
	lists, broken := 0, false
	s := newScene(t, interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
		lists++
		if broken {
			return errors.New("not now")
		}
		return c.List(ctx, list, opts...)
	}}, drained("a"))
	kv := &v1.KubeVirt{}
	wants := func(what string, want int) string {
		t.Helper()
		lists = 0
		var got string
		for range 3 {
			var err error
			if got, err = s.nodes.get(t.Context(), s.Client, kv); err != nil {
				t.Fatal(err)
			}
		}
		var nodes corev1.NodeList
		if err := s.List(t.Context(), &nodes); err != nil {
			t.Fatal(err)
		}
		if got != evacuation.Fleet(nodes.Items, kv) || lists != want+1 {
			t.Errorf("%s: %d lists, want %d", what, lists-1, want)
		}
		return got
	}
	before := wants("at first", 1)
	wants("nothing has changed", 0)
	kv.Generation, kv.Spec.Configuration.MachineType = 2, "odd"
	if wants("another configuration", 1) == before {
		t.Error("it does not count")
	}
	q := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
	defer q.ShutDown()
	a, b := drained("a"), drained("b")
	if err := s.Create(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	e, u := &Evacuator{automatic: s.automatic}, &Updater{automatic: s.automatic}
	e.ofNodes().Create(t.Context(), event.CreateEvent{Object: b}, q)
	wants("a node that came", 1)
	e.ofNodes().Update(t.Context(), event.UpdateEvent{ObjectOld: a, ObjectNew: a}, q)
	wants("a node that changed", 1)
	e.ofNodes().Delete(t.Context(), event.DeleteEvent{Object: b}, q)
	wants("a node that went", 1)
	u.ofNodes().Create(t.Context(), event.CreateEvent{Object: b, IsInInitialList: true}, q)
	wants("a node that an update may go to", 1)
	s.nodes.changed()
	broken = true
	if _, err := s.nodes.get(t.Context(), s.Client, kv); err == nil {
		t.Error("what cannot be listed is taken for what was")
	}
}
