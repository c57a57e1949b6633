// SPDX-License-Identifier: Apache-2.0

package vm_test

import (
	"fmt"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/vm"
)

// A world is an API server with one VM, and what else acts on its VMI.
type world struct {
	t       *testing.T
	vm      *v1.VirtualMachine
	vmi     *v1.VirtualMachineInstance
	revs    map[string]*appsv1.ControllerRevision
	version int
	// creations, writes and budget count writes; when the budget is spent, the controller is killed.
	creations, writes, budget int
	// old are earlier snapshots; a lagging cache returns the one lag passes ago.
	old []vm.Snapshot
	lag int
	// fails is the number of VMIs whose guest fails once it runs.
	fails int
}

func (w *world) stamp() string {
	w.version++
	return fmt.Sprint(1000 + w.version)
}

func (w *world) snapshot() vm.Snapshot {
	s := vm.Snapshot{VM: w.vm.DeepCopy(), VMI: w.vmi.DeepCopy()}
	for _, rev := range w.revs {
		s.Revisions = append(s.Revisions, rev)
	}
	w.old = append(w.old, s)
	return w.old[max(len(w.old)-1-w.lag, 0)]
}

// write counts a write; false if the controller is killed before it.
func (w *world) write() bool {
	if w.writes == w.budget {
		return false
	}
	w.writes++
	return true
}

// do executes an action; false if it is refused.
func (w *world) do(a vm.Action, p vm.Plan, version *string) bool {
	switch a.Verb {
	case vm.UpdateVM:
		if a.If.ResourceVersion != w.vm.ResourceVersion {
			return false
		}
		if !equality.Semantic.DeepEqual(w.vm.Spec, p.VM.Spec) {
			w.vm.Generation++
		}
		w.vm.Spec, w.vm.Finalizers, w.vm.Annotations = *p.VM.Spec.DeepCopy(), slices.Clone(p.VM.Finalizers), p.VM.Annotations
		w.vm.ResourceVersion = w.stamp()
		*version = w.vm.ResourceVersion
	case vm.CreateRevision:
		if w.revs[a.Name] == nil {
			w.revs[a.Name] = a.Revision
		}
	case vm.DeleteRevision:
		delete(w.revs, a.Name)
	case vm.CreateVMI:
		if w.vmi != nil || *version != w.vm.ResourceVersion {
			return false
		}
		w.creations++
		w.vmi = a.VMI.DeepCopy()
		w.vmi.UID, w.vmi.ResourceVersion = types.UID(fmt.Sprint("vmi-", w.creations)), w.stamp()
	case vm.PatchVMI:
		if w.vmi == nil || a.If.ResourceVersion != w.vmi.ResourceVersion || a.If.UID != w.vmi.UID {
			return false
		}
		w.vmi = a.VMI.DeepCopy()
		w.vmi.ResourceVersion = w.stamp()
	case vm.DeleteVMI:
		if w.vmi == nil || a.If.UID != w.vmi.UID || a.If.OwnerLive && *version != w.vm.ResourceVersion {
			return false
		}
		w.vmi.DeletionTimestamp, w.vmi.ResourceVersion = &metav1.Time{Time: now}, w.stamp()
	default:
		w.t.Fatalf("unexpected %s", a)
	}
	return true
}

// pass is one pass of the controller; false if it is killed in it.
func (w *world) pass() bool {
	s := w.snapshot()
	p := vm.Decide(s, now)
	version := s.VM.ResourceVersion
	for _, a := range p.Actions {
		if !w.write() {
			return false
		}
		if !w.do(a, p, &version) {
			return true // conflict: the next pass decides anew
		}
	}
	if equality.Semantic.DeepEqual(p.VM.Status, s.VM.Status) || version != w.vm.ResourceVersion {
		return true
	}
	if !w.write() {
		return false
	}
	w.vm.Status = *p.VM.Status.DeepCopy()
	w.vm.ResourceVersion = w.stamp()
	return true
}

// live is what others do to the VMI.
func (w *world) live() {
	g := w.vmi
	if g == nil {
		return
	}
	was := g.DeepCopy()
	switch {
	case g.IsFinal() && g.DeletionTimestamp != nil && len(g.Finalizers) == 0:
		w.vmi = nil
		return
	case g.IsFinal():
	case g.DeletionTimestamp != nil:
		g.Status.Phase = v1.Succeeded
	case g.Status.Phase == v1.Running && w.fails > 0:
		w.fails--
		g.Status.Phase = v1.Failed
	default:
		g.Status.Phase = v1.Running
		ran(g)
		g.Status.PhaseTransitionTimestamps = g.Status.PhaseTransitionTimestamps[:1]
	}
	if !equality.Semantic.DeepEqual(was, g) {
		g.ResourceVersion = w.stamp()
	}
}

// settle runs until nothing changes any more, with a new controller after each kill.
func (w *world) settle() {
	w.t.Helper()
	quiet := 0
	for range 100 {
		before := w.version
		if !w.pass() {
			w.budget = -1 // killed once
		}
		w.live()
		if quiet++; w.version != before {
			quiet = 0
		}
		if quiet > w.lag+2 {
			return
		}
	}
	w.t.Fatal("it never comes to rest")
}

// A scenario starts from a state that has settled.
type scenario struct {
	strategy v1.VirtualMachineRunStrategy
	// change is what a user does, fails how many guests fail then.
	change func(*v1.VirtualMachine)
	fails  int
	// want says whether there is a VMI in the end, creations how many were created.
	want      bool
	creations int
}

func (c scenario) run(t *testing.T, kill, lag int) *world {
	w := &world{t: t, vm: newVM(), revs: map[string]*appsv1.ControllerRevision{}, budget: -1}
	w.vm.Finalizers, w.vm.Spec.RunStrategy = nil, &c.strategy
	w.settle()
	if c.change != nil {
		c.change(w.vm)
		w.vm.ResourceVersion = w.stamp()
	}
	w.fails, w.writes, w.budget, w.lag = c.fails, 0, kill, lag
	w.settle()
	return w
}

// Whenever the controller is killed, and with caches that lag, the result is the same: the VMI that is wanted, and none more.
func TestDecide_KilledAtEachWrite(t *testing.T) {
	set := func(s v1.VirtualMachineRunStrategy) func(*v1.VirtualMachine) {
		return func(o *v1.VirtualMachine) { o.Spec.RunStrategy = &s; o.Generation++ }
	}
	ask := func(all ...v1.VirtualMachineStateChangeRequest) func(*v1.VirtualMachine) {
		return func(o *v1.VirtualMachine) {
			for i := range all {
				if all[i].Action == v1.StopRequest {
					all[i].UID = new(types.UID("vmi-1"))
				}
			}
			o.Status.StateChangeRequests = slices.Clone(all)
		}
	}
	both := func(o *v1.VirtualMachine) {
		set(v1.RunStrategyManual)(o)
		ask(stop, start)(o)
	}
	for name, c := range map[string]scenario{
		"start":                    {strategy: v1.RunStrategyHalted, change: set(v1.RunStrategyAlways), want: true, creations: 1},
		"stop":                     {strategy: v1.RunStrategyAlways, change: set(v1.RunStrategyHalted), creations: 1},
		"restart under Always":     {strategy: v1.RunStrategyAlways, change: ask(stop, start), want: true, creations: 2},
		"restart under Manual":     {strategy: v1.RunStrategyAlways, change: both, want: true, creations: 2},
		"request under Manual":     {strategy: v1.RunStrategyManual, change: ask(start), want: true, creations: 1},
		"request while halted":     {strategy: v1.RunStrategyHalted, change: ask(start), want: true, creations: 1},
		"failures under Always":    {strategy: v1.RunStrategyAlways, fails: 2, want: true, creations: 3},
		"failures, RerunOnFailure": {strategy: v1.RunStrategyRerunOnFailure, fails: 2, want: true, creations: 3},
		"failure under Once":       {strategy: v1.RunStrategyOnce, fails: 1, want: true, creations: 1},
		"live update": {strategy: v1.RunStrategyAlways, change: func(o *v1.VirtualMachine) {
			o.Spec.Template.Spec.Tolerations = nil
			o.Spec.Template.Spec.NodeSelector = map[string]string{"a": "b"}
			o.Generation++
		}, want: true, creations: 1},
		"deletion": {strategy: v1.RunStrategyAlways, change: func(o *v1.VirtualMachine) { o.DeletionTimestamp = &metav1.Time{Time: now} }, creations: 1},
	} {
		t.Run(name, func(t *testing.T) {
			for _, lag := range []int{0, 2} {
				undisturbed := c.run(t, -1, lag)
				for kill := -1; kill < undisturbed.writes; kill++ {
					w := c.run(t, kill, lag)
					if (w.vmi != nil) != c.want || w.creations != c.creations {
						t.Errorf("killed before write %d, caches lag %d passes: a VMI is there: %t, %d were created; want %t, %d", kill, lag, w.vmi != nil, w.creations, c.want, c.creations)
					}
					if name == "live update" && w.vmi.Spec.NodeSelector["a"] != "b" {
						t.Errorf("killed before write %d, caches lag %d passes: the update is lost", kill, lag)
					}
				}
			}
		})
	}
}
