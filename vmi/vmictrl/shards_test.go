// SPDX-License-Identifier: Apache-2.0

package vmictrl_test

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/vmi/vmictrl"
)

// scoped is a controller with a scope; an annotation of its Pods identifies it.
func scoped(name string, s vmictrl.Scope) setup {
	return setup{edit: func(r *vmictrl.Reconciler) {
		r.Scope, r.Name = s, name
		r.LauncherImage = "example.test/" + name
	}}
}

// byImage groups the Pods by the controller that created them.
func (w *world) byImage() map[string][]string {
	w.t.Helper()
	made := map[string][]string{}
	for _, p := range w.pods() {
		i := slices.IndexFunc(p.Spec.Containers, func(c corev1.Container) bool { return c.Name == "compute" })
		made[p.Spec.Containers[i].Image] = append(made[p.Spec.Containers[i].Image], p.Annotations[v1.DomainAnnotation])
	}
	return made
}

// sharded: each VMI belongs to one controller, and each controller has VMIs.
func sharded(w *world) {
	shards := []vmictrl.Scope{{Shard: 0, Shards: 2}, {Shard: 1, Shards: 2}}
	for i, s := range shards {
		w.start(scoped(fmt.Sprintf("shard-%d", i), s))
	}
	want := map[string][]string{}
	// Create VMIs until each controller has two.
	var guests []*v1.VirtualMachineInstance
	for i := 0; len(want["example.test/shard-0"]) < 2 || len(want["example.test/shard-1"]) < 2; i++ {
		g := w.guest(fmt.Sprintf("guest-%d", i))
		guests = append(guests, g)
		of := 0
		for shard, s := range shards {
			if s.Has(g) {
				of++
				image := fmt.Sprintf("example.test/shard-%d", shard)
				want[image] = append(want[image], g.Name)
			}
		}
		if of != 1 {
			w.t.Fatalf("guest %s of UID %s is in %d shards", g.Name, g.UID, of)
		}
	}
	for _, g := range guests {
		w.awaitPhase(g, v1.Scheduled)
		if l := w.lease(g); l.Epoch != 1 {
			w.t.Errorf("guest %s was offered more than once: %+v", g.Name, l)
		}
	}
	got := w.byImage()
	for image := range want {
		slices.Sort(want[image])
		slices.Sort(got[image])
		if !slices.Equal(want[image], got[image]) {
			w.t.Errorf("%s made the Pods of %v, want %v", image, got[image], want[image])
		}
	}
	for _, g := range guests {
		w.delete(g)
	}
	for _, g := range guests {
		w.awaitGone(g)
	}
	w.onePodEach(len(guests))
	if refused := w.writes(true); len(refused) > 0 {
		w.t.Errorf("the controllers were in each other's way: %v", refused)
	}
}

// selected: a controller reconciles VMIs with a label, and ignores one that loses it.
func selected(w *world) {
	selector, err := labels.Parse("example.test/by=me")
	if err != nil {
		w.t.Fatal(err)
	}
	w.start(scoped("mine", vmictrl.Scope{Selector: selector, Namespaces: []string{w.ns}}))
	ours := func(g *v1.VirtualMachineInstance) { metav1.SetMetaDataLabel(&g.ObjectMeta, "example.test/by", "me") }
	foreign := w.guest("foreign")
	g := w.guest("guest", ours)
	w.awaitPhase(g, v1.Scheduled)
	w.node(g, handoff.Accept, v1.Running)
	w.await(g, "Ready", func() bool { return condition(g, v1.VirtualMachineInstanceReady).Status == corev1.ConditionTrue })

	w.change(g, func(g *v1.VirtualMachineInstance) { delete(g.Labels, "example.test/by"); g.Status.Conditions = nil })
	w.delete(&w.awaitPods(1)[0], noGrace)
	w.awaitPods(0)
	// A VMI later in the queue was reconciled, so both were too.
	later := w.guest("later", ours)
	w.awaitPhase(later, v1.Scheduled)
	w.await(g, "nothing", func() bool { return true })
	w.await(foreign, "nothing", func() bool { return true })
	if g.Status.Phase != v1.Running || len(g.Status.Conditions) > 0 {
		w.t.Errorf("the guest that has left is in phase %s with %+v", g.Status.Phase, g.Status.Conditions)
	}
	if foreign.Status.Phase != "" || len(foreign.Finalizers) > 0 {
		w.t.Errorf("the guest of somebody else is in phase %s, finalizers %v", foreign.Status.Phase, foreign.Finalizers)
	}

	w.change(g, ours)
	w.awaitPhase(g, v1.Failed) // back in the scope, its Pod is missing
}

// elsewhere: a controller of another namespace ignores the VMI.
func elsewhere(w *world) {
	w.start(scoped("other", vmictrl.Scope{Namespaces: []string{"other"}}))
	w.start(scoped("mine", vmictrl.Scope{Namespaces: []string{w.ns, "other"}}))
	g := w.guest("guest")
	w.awaitPhase(g, v1.Scheduled)
	if made := w.byImage(); len(made["example.test/mine"]) != 1 || len(made) != 1 {
		w.t.Errorf("Pods were made %v", made)
	}
	w.onePodEach(1)
}
