// SPDX-License-Identifier: Apache-2.0

package migrationctrl

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/virtloom/virtloom/migration/queue"
)

func asked(name string) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Namespace: "ns", Name: name}}
}

// Urgent migrations go before those created earlier, relisted ones after them.
func TestPriority_UrgentFirst(t *testing.T) {
	h := ranked{handler.EnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []reconcile.Request {
		return []reconcile.Request{asked(o.GetName())}
	}), func(context.Context, client.Object) int { return urgentPriority }}
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
	h.Generic(t.Context(), event.GenericEvent{Object: pod("generic", "1")}, q)
	for _, want := range []string{"updated", "created", "deleted", "generic", "waiting-1", "waiting-2", "relisted"} {
		got, _, _ := q.GetWithPriority()
		if got != asked(want) {
			t.Errorf("%s is next, want %s", got.Name, want)
		}
		q.Done(got)
	}
}

// A queue without priorities gets the keys unchanged.
func TestRanks_PlainQueue(t *testing.T) {
	q := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
	defer q.ShutDown()
	h := ranked{handler.EnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []reconcile.Request {
		return []reconcile.Request{asked(o.GetName())}
	}), func(context.Context, client.Object) int { return urgentPriority }}
	p := &corev1.Pod{}
	p.Name = "created"
	h.Create(t.Context(), event.CreateEvent{Object: p}, q)
	if got, _ := q.Get(); got != asked("created") {
		t.Errorf("%s is next", got.Name)
	}
}

// A running target Pod waits for the handoff. The remaining work for a VMI that has migrated is done last, but
// first if others wait for its slot.
func TestRanks(t *testing.T) {
	guest := func(edit func(*v1.VirtualMachineInstanceMigrationState)) *v1.VirtualMachineInstance {
		g := &v1.VirtualMachineInstance{}
		g.Namespace, g.Name = "ns", "web"
		if edit != nil {
			g.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{SourcePod: "source", MigrationUID: "move"}
			edit(g.Status.MigrationState)
		}
		return g
	}
	moved := guest(func(ms *v1.VirtualMachineInstanceMigrationState) { ms.Completed = true })
	moves := guest(func(*v1.VirtualMachineInstanceMigrationState) {})
	pod := func(name, job string) *corev1.Pod {
		p := &corev1.Pod{}
		p.Namespace, p.Name, p.Labels = "ns", name, map[string]string{v1.MigrationJobLabel: job}
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "kubevirt.io/v1", Kind: vmiKind, Name: "web", Controller: new(true)}}
		return p
	}
	attachment := pod("attachment", "move")
	attachment.OwnerReferences[0].Kind, attachment.Annotations = podKind, map[string]string{ownerName: "web"}
	move := func(p phase) *v1.VirtualMachineInstanceMigration {
		m := &v1.VirtualMachineInstanceMigration{}
		m.Status.Phase = p
		return m
	}
	for name, test := range map[string]struct {
		guest *v1.VirtualMachineInstance // in the cache
		of    client.Object
		rank  int
		waits int // if others wait for slots
	}{
		"a guest":                               {nil, guest(nil), 0, 0},
		"a guest that moves":                    {nil, moves, 0, 0},
		"a guest that has moved":                {nil, moved, endedPriority, urgentPriority},
		"a Pod whose guest is not known":        {nil, pod("target", "move"), urgentPriority, urgentPriority},
		"a Pod of a guest that has never moved": {guest(nil), pod("target", "move"), urgentPriority, urgentPriority},
		"a target":                              {moves, pod("target", "move"), urgentPriority, urgentPriority},
		"a target of a guest that has moved":    {moved, pod("target", "move"), endedPriority, urgentPriority},
		"the next target":                       {moved, pod("target", "next"), urgentPriority, urgentPriority},
		"the source of a guest that has moved":  {moved, pod("source", ""), endedPriority, urgentPriority},
		"an attachment":                         {moved, attachment, endedPriority, urgentPriority},
		"a migration that was made":             {nil, move(""), 0, 0},
		"one whose target Pod starts":           {nil, move(v1.MigrationScheduling), urgentPriority, urgentPriority},
		"one that is ready to be handed over":   {nil, move(v1.MigrationScheduled), urgentPriority, urgentPriority},
		"one that moves":                        {nil, move(v1.MigrationRunning), 0, 0},
		"one that has failed":                   {nil, move(v1.MigrationFailed), endedPriority, urgentPriority},
	} {
		t.Run(name, func(t *testing.T) {
			scheme := runtime.NewScheme()
			if err := v1.AddToScheme(scheme); err != nil {
				t.Fatal(err)
			}
			b := fake.NewClientBuilder().WithScheme(scheme)
			if test.guest != nil {
				b.WithObjects(test.guest)
			}
			r := &Reconciler{Client: b.Build(), Admission: queue.NewAdmission(queue.Limits{Cluster: 1, Outbound: 1, Inbound: 1}, queue.Options{})}
			rank := func() int {
				switch test.of.(type) {
				case *corev1.Pod:
					return ranker{r}.rankOfPod(t.Context(), test.of)
				case *v1.VirtualMachineInstance:
					return ranker{r}.rankOfVMI(t.Context(), test.of)
				}
				return ranker{r}.rankOfMigration(t.Context(), test.of)
			}
			if got := rank(); got != test.rank {
				t.Errorf("rank %d, want %d", got, test.rank)
			}
			for _, k := range []string{"first", "second"} {
				r.Admission.Ask(queue.Claim{Key: asked(k).NamespacedName, Since: time.Now()}, time.Now())
			}
			if got := rank(); got != test.waits {
				t.Errorf("rank %d while others wait, want %d", got, test.waits)
			}
		})
	}
}
