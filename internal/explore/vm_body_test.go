// SPDX-License-Identifier: Apache-2.0

package explore

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"
)

// principal is what a VirtualMachine says.
type principal struct {
	// obj has neither UID nor version nor deletionTimestamp, and is never changed.
	obj *v1.VirtualMachine
	sum uint64
}

// revision is what a start revision says.
type revision struct {
	obj *appsv1.ControllerRevision
	sum uint64
}

// principal returns the one value for what the object says. When conditions have changed decides nothing.
func (k *memory) principal(vm *v1.VirtualMachine) *principal {
	n := vm.DeepCopy()
	n.UID, n.ResourceVersion, n.DeletionTimestamp = "", "", nil
	for i := range n.Status.Conditions {
		n.Status.Conditions[i].LastTransitionTime, n.Status.Conditions[i].LastProbeTime = moment, metav1.Time{}
	}
	text := encode(n)
	return k.principals.of(text, func() *principal { return &principal{obj: n, sum: sumOf(text)} })
}

func (k *memory) revision(rev *appsv1.ControllerRevision) *revision {
	n := rev.DeepCopy()
	n.UID, n.ResourceVersion = "", ""
	text := encode(n)
	return k.revisions.of(text, func() *revision { return &revision{obj: n, sum: sumOf(text)} })
}

// mergeKey is two versions of a VirtualMachine.
type mergeKey struct {
	have, want *principal
	status     bool
}

// counted is what the API server stores of a change: it counts the generations of the spec.
func (k *memory) counted(have, want *principal) *principal {
	return k.merged.of(mergeKey{have, want, false}, func() *principal {
		n := want.obj.DeepCopy()
		if n.Generation = have.obj.Generation; !equality.Semantic.DeepEqual(n.Spec, have.obj.Spec) {
			n.Generation++
		}
		return k.principal(n)
	})
}

// withStatus is a version with the status of another one.
func (k *memory) withStatus(have, of *principal) *principal {
	return k.merged.of(mergeKey{have, of, true}, func() *principal {
		n := have.obj.DeepCopy()
		n.Status = *of.obj.Status.DeepCopy()
		return k.principal(n)
	})
}

// wantedMachine is a VirtualMachine as its user has made it. It has no firmware UUID, so that its controller changes its spec.
func wantedMachine(strategy v1.VirtualMachineRunStrategy) *v1.VirtualMachine {
	return &v1.VirtualMachine{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: slotVMI.String(), CreationTimestamp: moment, Generation: 1},
		Spec:       v1.VirtualMachineSpec{RunStrategy: &strategy, Template: &v1.VirtualMachineInstanceTemplateSpec{Spec: wanted().Spec}},
	}
}

// instance is the object of that UID. Which version it has decides nothing.
func (p *principal) instance(uid uint8, deleting bool) *v1.VirtualMachine {
	vm := *p.obj
	vm.UID, vm.ResourceVersion = fullUID(slotVM, uid), "1"
	if deleting {
		vm.DeletionTimestamp = &moment
	}
	return &vm
}

// slotOfRevision is the object of a start revision's name, which ends in the generation of the spec.
func slotOfRevision(name string) slot {
	generation, err := strconv.Atoi(name[strings.LastIndexByte(name, '-')+1:])
	s := slotRev2 + slot(generation-2)
	if err != nil || !s.isRevision() {
		cannot("start revision %s is not modelled", name)
	}
	return s
}

// order is what the user of a VirtualMachine asks for: to start, stop or restart it, another run strategy, another host name, which
// needs a restart, or another toleration, which does not.
type order uint8

const (
	start order = iota
	stop
	restart
	always
	halted
	manual
	rerun
	once
	edit
	tolerate
	orderCount
)

var (
	orderNames = [orderCount]string{"start", "stop", "restart", "Always", "Halted", "Manual", "RerunOnFailure", "Once", "edit", "tolerate"}
	// orderStrategies are the run strategies that are asked for.
	orderStrategies = [orderCount]v1.VirtualMachineRunStrategy{
		always: v1.RunStrategyAlways, halted: v1.RunStrategyHalted, manual: v1.RunStrategyManual, rerun: v1.RunStrategyRerunOnFailure, once: v1.RunStrategyOnce,
	}
)

// String is the name of the order in scripts.
func (o order) String() string { return orderNames[o] }

// orderSet are orders.
type orderSet uint16

func ordersOf(all ...order) (set orderSet) {
	for _, o := range all {
		set |= 1 << o
	}
	return set
}

// orders are what the user may ask for now.
func (e *enabler) orders() {
	o := e.w.api[slotVM]
	if o == nil || o.deleting {
		return
	}
	e.add(deletes, 0, uint8(slotVM))
	for a := range orderCount {
		if e.w.orders&(1<<a) != 0 && e.w.left.allows(orders) && e.w.ordered(a) != nil {
			e.add(orders, 0, uint8(a))
		}
	}
}

// order lets the user ask for something, in one write.
func (w *world) order(a order) {
	was := w.api[slotVM]
	vm := w.known.counted(was.vm, w.known.principal(w.ordered(a)))
	w.store(was.with(func(o *object) { o.vm = vm }))
	w.past.due++
}

// ordered is the VirtualMachine once its user has asked, as KubeVirt's subresources change it; nil if that is refused, or if it
// needs more revisions than there are.
func (w *world) ordered(a order) *v1.VirtualMachine {
	vm := w.api[slotVM].vm.obj.DeepCopy()
	strategy := *vm.Spec.RunStrategy
	spec := &vm.Spec.Template.Spec
	var requests []v1.VirtualMachineStateChangeRequest
	switch g := w.api[slotVMI]; {
	case a == edit:
		spec.Hostname = fmt.Sprint("generation-", vm.Generation)
		return w.changed(vm, strategy)
	case a == tolerate:
		spec.Tolerations = []corev1.Toleration{{Key: fmt.Sprint("generation-", vm.Generation)}}
		return w.changed(vm, strategy)
	case orderStrategies[a] != "":
		return w.changed(vm, orderStrategies[a])
	case a == start && strategy == v1.RunStrategyHalted:
		return w.changed(vm, v1.RunStrategyAlways)
	case a == stop && (strategy == v1.RunStrategyAlways || strategy == v1.RunStrategyOnce):
		return w.changed(vm, v1.RunStrategyHalted)
	case a == start:
		requests = startRequests(strategy, g)
	case g == nil, strategy == v1.RunStrategyHalted, strategy == v1.RunStrategyOnce, a == stop && g.vmi.obj.IsFinal():
		return nil
	case a == stop:
		requests = []v1.VirtualMachineStateChangeRequest{stopOf(g)}
	default:
		requests = []v1.VirtualMachineStateChangeRequest{stopOf(g), {Action: v1.StartRequest}}
	}
	if pending := vm.Status.StateChangeRequests; requests == nil || len(pending) > 1 || len(pending) == 1 && pending[0].Action != v1.StopRequest {
		return nil // the last one is under way
	}
	vm.Status.StateChangeRequests, vm.Status.StartFailure = requests, nil
	return vm
}

// changed changes the run strategy of a VirtualMachine, or, if it is the same one, something else of its spec.
func (w *world) changed(vm *v1.VirtualMachine, s v1.VirtualMachineRunStrategy) *v1.VirtualMachine {
	if equality.Semantic.DeepEqual(vm.Spec.RunStrategy, &s) && equality.Semantic.DeepEqual(vm.Spec, w.api[slotVM].vm.obj.Spec) || vm.Generation >= int64(slotCount-slotRev2) { // one is left for its controller
		return nil
	}
	vm.Spec.RunStrategy = &s
	return vm
}

func stopOf(g *object) v1.VirtualMachineStateChangeRequest {
	return v1.VirtualMachineStateChangeRequest{Action: v1.StopRequest, UID: new(g.fullUID())}
}

func startRequests(s v1.VirtualMachineRunStrategy, g *object) []v1.VirtualMachineStateChangeRequest {
	again := v1.VirtualMachineStateChangeRequest{Action: v1.StartRequest}
	switch {
	case !slices.Contains([]v1.VirtualMachineRunStrategy{v1.RunStrategyManual, v1.RunStrategyRerunOnFailure}, s):
		return nil
	case g == nil:
		return []v1.VirtualMachineStateChangeRequest{again}
	case !g.vmi.obj.IsFinal(), s == v1.RunStrategyRerunOnFailure && g.vmi.obj.Status.Phase == v1.Failed:
		return nil
	}
	return []v1.VirtualMachineStateChangeRequest{stopOf(g), again}
}
