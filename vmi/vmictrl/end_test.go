// SPDX-License-Identifier: Apache-2.0

package vmictrl_test

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/handoff"
)

func claimed(g *v1.VirtualMachineInstance) bool {
	return slices.Contains(g.Finalizers, v1.VirtualMachineInstanceFinalizer)
}

func vanishedEarly(w *world) {
	w.start(setup{})
	g := w.guest("guest", unplaceable)
	w.awaitPhase(g, v1.Scheduling)
	w.delete(&w.awaitPods(1)[0], client.GracePeriodSeconds(0))
	w.await(g, "the end", func() bool { return g.Status.Phase == v1.Failed && !claimed(g) })
	if l := w.lease(g); l.State != handoff.Released {
		w.t.Errorf("the lease is %+v", l)
	}
	w.onePodEach(1)
}

func vanishedLate(w *world) {
	w.start(setup{})
	g := w.running("guest")
	w.delete(&w.awaitPods(1)[0], client.GracePeriodSeconds(0))
	w.awaitPhase(g, v1.Failed)
	if l := w.lease(g); l.State != handoff.Owned || !claimed(g) {
		w.t.Errorf("the lease is %+v, finalizers %v: nobody would see that the node ends the guest", l, g.Finalizers)
	}
	w.node(g, handoff.Release, v1.Failed)
	w.await(g, "the finalizer to go", func() bool { return !claimed(g) })
	w.onePodEach(1)
}

// outlived ends the domain without ending its Pod.
func outlived(w *world) {
	w.start(setup{})
	g := w.running("guest")
	w.node(g, handoff.Release, v1.Succeeded)
	w.await(g, "the finalizer to go", func() bool { return g.Status.Phase == v1.Succeeded && !claimed(g) })
	w.awaitPods(0)
}

func deletedPending(w *world) {
	w.quota(0)
	w.start(setup{})
	g := w.guest("guest")
	w.awaitTrouble(g, "FailedCreate")
	w.delete(g)
	w.awaitGone(g)
	w.onePodEach(0)
}

func deletedScheduling(w *world) {
	w.start(setup{})
	g := w.guest("guest", unplaceable)
	w.awaitPhase(g, v1.Scheduling)
	w.delete(g)
	w.awaitGone(g)
	w.awaitPods(0)
	w.onePodEach(1)
}

func deletedScheduled(w *world) {
	w.start(setup{})
	g := w.guest("guest")
	w.awaitPhase(g, v1.Scheduled)
	w.delete(g)
	w.awaitGone(g)
	w.awaitPods(0)
	w.onePodEach(1)
}

func deletedRunning(w *world) {
	w.start(setup{})
	g := w.running("guest")
	w.delete(g)
	w.eventually(func() string {
		if pod := w.awaitPods(1)[0]; pod.DeletionTimestamp == nil || *pod.DeletionGracePeriodSeconds <= 1 {
			return "the Pod is not being deleted with its grace period"
		}
		return ""
	})
	w.await(g, "the guest to be left to its node", func() bool {
		return g.Status.Phase == v1.Running && claimed(g) && condition(g, v1.VirtualMachineInstanceReady).Reason == "PodTerminating"
	})
	w.node(g, handoff.Release, v1.Succeeded)
	w.awaitGone(g)
	w.awaitPods(0)
	// The second shortens the grace period of the Pod whose domain has ended.
	if n := w.writes(false)["delete pods"]; n != 2 {
		w.t.Errorf("Pods were deleted %d times, want 2", n)
	}
}

func deletedFinal(w *world) {
	w.start(setup{})
	g := w.running("guest")
	w.node(g, handoff.Release, v1.Succeeded)
	w.await(g, "the finalizer to go", func() bool { return !claimed(g) })
	w.delete(g)
	w.awaitGone(g)
	w.awaitPods(0)
}

// recreated force-removes the object while its Pod exists. The next object of the name must
// not use that Pod.
func recreated(w *world) {
	w.start(setup{})
	old := w.running("guest")
	was := w.awaitPods(1)[0]
	w.delete(old)
	w.change(old, func(g *v1.VirtualMachineInstance) { g.Finalizers = nil })
	w.awaitGone(old)
	g := w.guest("guest")
	w.awaitPhase(g, v1.Scheduled)
	w.eventually(func() string {
		pods := w.pods()
		if i := slices.IndexFunc(pods, func(p corev1.Pod) bool { return p.UID == was.UID }); i >= 0 && pods[i].DeletionTimestamp == nil {
			return "the Pod of the guest of before is left alone"
		}
		return ""
	})
	if _, mine := g.Status.ActivePods[was.UID]; mine || len(g.Status.ActivePods) != 1 {
		w.t.Errorf("activePods %v, the Pod of before is %s", g.Status.ActivePods, was.UID)
	}
	w.onePodEach(2)
}

// rivals are two processes that both consider themselves leaders.
func rivals(w *world) {
	w.start(setup{})
	w.start(setup{})
	const n = 10
	var guests []*v1.VirtualMachineInstance
	for i := range n {
		guests = append(guests, w.guest(fmt.Sprintf("guest-%d", i)))
	}
	for _, g := range guests {
		w.awaitPhase(g, v1.Scheduled)
		if l := w.lease(g); l.Epoch != 1 {
			w.t.Errorf("guest %s was offered more than once: %+v", g.Name, l)
		}
	}
	w.onePodEach(n)
	for _, g := range guests {
		w.delete(g)
	}
	for _, g := range guests {
		w.awaitGone(g)
	}
	w.awaitPods(0)
}
