// SPDX-License-Identifier: Apache-2.0

package vmictrl_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/vmi"
	"github.com/virtloom/virtloom/vmi/vmictrl"
)

// silentNode creates a node of the world, which holds the VMI's lease.
func (w *world) silentNode(g *v1.VirtualMachineInstance) *corev1.Node {
	w.t.Helper()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-of-" + w.ns}}
	w.create(n)
	w.podOn(n.Name, g, w.awaitPods(1)[0])
	w.t.Cleanup(func() { // the world's context is canceled by then
		if err := client.IgnoreNotFound(w.Delete(context.Background(), n)); err != nil {
			w.t.Error(err)
		}
	})
	w.change(g, func(g *v1.VirtualMachineInstance) {
		if err := handoff.Put(g, handoff.Lease{State: handoff.Owned, Epoch: 3, Holder: n.Name}); err != nil {
			w.t.Fatal(err)
		}
	})
	return n
}

// beat sends a heartbeat of the node.
func (w *world) beat(n *corev1.Node, value int) {
	w.t.Helper()
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, v1.VirtHandlerHeartbeat, strconv.Itoa(value))
	if err := w.Patch(w.t.Context(), n, client.RawPatch("application/merge-patch+json", patch)); err != nil {
		w.t.Fatal(err)
	}
}

// awaitState triggers passes, as the controller's clock is not the world's, until the lease is
// in the state.
func (w *world) awaitState(g *v1.VirtualMachineInstance, want handoff.State) handoff.Lease {
	w.t.Helper()
	var l handoff.Lease
	w.eventually(func() string {
		w.change(g, func(g *v1.VirtualMachineInstance) { g.Annotations["poked"] = time.Now().String() })
		if l = w.lease(g); l.State == want {
			return ""
		}
		return fmt.Sprintf("the lease is %+v, want %s", l, want)
	})
	return l
}

// awaitLoss lets the node be silent until its guest is lost. Time goes on between the passes: the
// controller may see an earlier heartbeat only now, and counts from there.
func (w *world) awaitLoss(g *v1.VirtualMachineInstance, clock *clocktesting.FakePassiveClock) handoff.Lease {
	w.t.Helper()
	var l handoff.Lease
	w.eventually(func() string {
		if l = w.lease(g); l.State == handoff.Lost {
			return ""
		}
		clock.SetTime(clock.Now().Add(vmi.DefaultSilentAfter))
		w.change(g, func(g *v1.VirtualMachineInstance) { g.Annotations["poked"] = time.Now().String() })
		return fmt.Sprintf("the lease is %+v", l)
	})
	return l
}

// silentNodeGone: an unresponsive node keeps the VMI until the Node object is gone and the time
// in which the node may still act has passed.
func silentNodeGone(w *world) {
	clock := clocktesting.NewFakePassiveClock(time.Now())
	w.start(setup{edit: func(r *vmictrl.Reconciler) { r.Clock = clock }})
	g := w.running("guest")
	n := w.silentNode(g)
	w.beat(n, 1)
	w.awaitState(g, handoff.Owned)

	lost := w.awaitLoss(g, clock)
	c := condition(g, v1.VirtualMachineInstanceSynchronized)
	if c.Reason != vmi.ReasonNodeUnresponsive || !strings.Contains(c.Message, n.Name) || g.Status.Phase != v1.Running || !lost.MayRun(n.Name) {
		w.t.Errorf("lease %+v, phase %s, condition %+v", lost, g.Status.Phase, c)
	}

	clock.SetTime(lost.Deadline.Time)
	if got := w.awaitState(g, handoff.Lost); got.Epoch != lost.Epoch {
		w.t.Errorf("without evidence the lease became %+v", got)
	}
	w.delete(n)
	w.awaitState(g, handoff.Released)
	if g.Status.Phase != v1.Failed || g.Status.Reason != vmi.ReasonNodeUnresponsive {
		w.t.Errorf("phase %s, reason %q", g.Status.Phase, g.Status.Reason)
	}
	if pods := w.pods(); len(pods) > 2 {
		w.t.Errorf("there are %d Pods; the guest was started again", len(pods))
	}
}

// silentNodeFenced: a Fencer's evidence counts at once, and no other.
func silentNodeFenced(w *world) {
	clock := clocktesting.NewFakePassiveClock(time.Now())
	var off atomic.Bool
	var asked atomic.Pointer[handoff.Guest]
	w.start(setup{edit: func(r *vmictrl.Reconciler) {
		r.Clock = clock
		r.Fencer = handoff.FencerFunc(func(_ context.Context, g handoff.Guest, node string) (*handoff.Evidence, error) {
			asked.Store(&g)
			if !off.Load() {
				return nil, nil
			}
			return &handoff.Evidence{Kind: handoff.FenceConfirmed, Detail: node + " is powered off"}, nil
		})
	}})
	g := w.running("guest")
	n := w.silentNode(g)
	w.awaitState(g, handoff.Owned)
	lost := w.awaitLoss(g, clock)
	w.eventually(func() string {
		w.awaitState(g, handoff.Lost)
		if a := asked.Load(); a == nil || a.UID != g.UID || a.Name != g.Name || a.Epoch != lost.Epoch {
			return fmt.Sprintf("the Fencer was asked about %+v", a)
		}
		return ""
	})
	off.Store(true)
	w.awaitState(g, handoff.Released)
	if c := condition(g, v1.VirtualMachineInstanceSynchronized); !strings.Contains(c.Message, n.Name+" is powered off") {
		w.t.Errorf("condition %+v", c)
	}
}

// silentNodeTainted: an operator's taint counts while the node is not ready.
func silentNodeTainted(w *world) {
	clock := clocktesting.NewFakePassiveClock(time.Now())
	w.start(setup{edit: func(r *vmictrl.Reconciler) {
		r.Clock, r.Fencer = clock, vmictrl.OutOfService{Reader: r.APIReader}
	}})
	g := w.running("guest")
	n := w.silentNode(g)
	w.awaitState(g, handoff.Owned)
	w.awaitLoss(g, clock)
	status := func(ready corev1.ConditionStatus) {
		patch := fmt.Appendf(nil, `{"status":{"conditions":[{"type":"Ready","status":%q}]}}`, ready)
		if err := w.Status().Patch(w.t.Context(), n, client.RawPatch("application/merge-patch+json", patch)); err != nil {
			w.t.Fatal(err)
		}
	}
	status(corev1.ConditionTrue)
	taint := []byte(`{"spec":{"taints":[{"key":"node.kubernetes.io/out-of-service","value":"nodeshutdown","effect":"NoExecute"}]}}`)
	if err := w.Patch(w.t.Context(), n, client.RawPatch("application/merge-patch+json", taint)); err != nil {
		w.t.Fatal(err)
	}
	w.awaitState(g, handoff.Lost)
	status(corev1.ConditionUnknown)
	w.awaitState(g, handoff.Released)
	if c := condition(g, v1.VirtualMachineInstanceSynchronized); g.Status.Phase != v1.Failed || !strings.Contains(c.Message, corev1.TaintNodeOutOfService) {
		w.t.Errorf("phase %s, condition %+v", g.Status.Phase, c)
	}
}

// silentNodeClosed: a node with an unresponsive agent is marked unschedulable, with the controller's permissions.
func silentNodeClosed(w *world) {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "closed-of-" + w.ns, Labels: map[string]string{v1.NodeSchedulable: "true"},
		Annotations: map[string]string{v1.VirtHandlerHeartbeat: time.Now().Add(-time.Hour).UTC().Format(time.RFC3339)}}}
	w.create(n)
	w.t.Cleanup(func() {
		if err := w.Delete(context.Background(), n); err != nil {
			w.t.Error(err)
		}
	})
	w.start(setup{})
	w.eventually(func() string {
		if err := w.Get(w.t.Context(), client.ObjectKeyFromObject(n), n); err != nil {
			return err.Error()
		}
		if got := n.Labels[v1.NodeSchedulable]; got != "false" {
			return "schedulable is " + got
		}
		return ""
	})
}

// silentNodeBack: a node that returns keeps its VMI.
func silentNodeBack(w *world) {
	clock := clocktesting.NewFakePassiveClock(time.Now())
	w.start(setup{edit: func(r *vmictrl.Reconciler) { r.Clock = clock }})
	g := w.running("guest")
	n := w.silentNode(g)
	w.beat(n, 1)
	w.awaitState(g, handoff.Owned)
	w.awaitLoss(g, clock)

	w.beat(n, 2)
	w.eventually(func() string { // the heartbeat may be observed after the return
		if w.lease(g).State == handoff.Lost {
			w.node(g, handoff.Return, v1.Running)
		}
		w.change(g, func(g *v1.VirtualMachineInstance) { g.Annotations["poked"] = time.Now().String() })
		if w.lease(g).State == handoff.Owned {
			return ""
		}
		return "the guest is lost again"
	})
	w.delete(n) // this is no evidence shortly after a heartbeat
	if l := w.awaitState(g, handoff.Owned); l.Holder != n.Name || g.Status.Phase != v1.Running {
		w.t.Errorf("lease %+v, phase %s", l, g.Status.Phase)
	}
}

// silentNodeWakes: a node becomes unresponsive without any event of its VMI.
func silentNodeWakes(w *world) {
	w.start(setup{edit: func(r *vmictrl.Reconciler) { r.SilentAfter = 500 * time.Millisecond }})
	g := w.running("guest")
	w.silentNode(g)
	w.await(g, "the loss of the guest", func() bool { return w.lease(g).State == handoff.Lost })
}
