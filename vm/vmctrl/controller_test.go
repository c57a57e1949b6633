// SPDX-License-Identifier: Apache-2.0

package vmctrl_test

import (
	"fmt"
	"net/http"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"
	"kubevirt.io/api/instancetype/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/internal/rig"
)

func TestController(t *testing.T) {
	c := newCluster(t)
	for name, test := range map[string]func(*world){
		"a VM is started, runs and is stopped":                  startedAndStopped,
		"a restart is one new VMI":                              restarted,
		"a VM ends with its VMI":                                deleted,
		"a VMI that fails before it runs is delayed":            crashing,
		"an orphan is adopted":                                  adopted,
		"a VMI of another owner is reported and awaited":        taken,
		"an instance type is awaited, and its revision kept":    typed,
		"a live update reaches the VMI":                         updated,
		"a VM at rest costs no request":                         idle,
		"DataVolumes are made, awaited and outlive a stop":      provisioned,
		"a source of another namespace needs a right":           cloned,
		"killed before and after each write of a start":         killedStarting,
		"killed before and after each write of a restart":       killedRestarting,
		"killed before and after each write of a deletion":      killedDeleting,
		"killed before and after each write of a live update":   killedUpdating,
		"a VMI that another replica has created":                replica,
		"the answer to a VMI is lost":                           ambiguous(http.MethodPost, "/virtualmachineinstances"),
		"the answer to a start revision is lost":                ambiguous(http.MethodPost, "/controllerrevisions"),
		"the answer to a status is lost":                        ambiguous(http.MethodPatch, "/status"),
		"a start costs four writes":                             startWrites,
		"a status is stored while the VMI is not in the cache":  startUnseen,
		"others wait: only Running is told at once":             startBehindOthers,
		"others wait: what is told late is told":                startToldLate,
		"others wait: another replica sees the VMI run":         runsElsewhere,
		"killed before and after each write, while others wait": killedBehindOthers,
		"a cache of VMs that lags behind a user who halts it":   haltedUnseen,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(c.world(t))
		})
	}
}

func startedAndStopped(w *world) {
	w.start()
	vm := w.machine("vm", v1.RunStrategyAlways)
	vmi := w.awaitVMI(vm)
	w.awaitStatus(vm, v1.VirtualMachineStatusStarting)
	if !metav1.IsControlledBy(vmi, vm) || vmi.Annotations[v1.VirtualMachineGenerationAnnotation] != fmt.Sprint(vm.Generation) {
		w.t.Errorf("the VMI has metadata %+v, its VM generation %d", vmi.ObjectMeta, vm.Generation)
	}
	if vmi.Spec.Domain.Firmware == nil || vmi.Spec.Domain.Firmware.UUID != vm.Spec.Template.Spec.Domain.Firmware.UUID {
		w.t.Errorf("the firmware of the VMI is %+v, that of the template %+v", vmi.Spec.Domain.Firmware, vm.Spec.Template.Spec.Domain.Firmware)
	}
	rev := &appsv1.ControllerRevision{}
	if err := w.Get(w.t.Context(), client.ObjectKey{Namespace: w.ns, Name: vmi.Status.VirtualMachineRevisionName}, rev); err != nil || !metav1.IsControlledBy(rev, vm) {
		w.t.Errorf("the revision of the start: %+v, %v", rev.ObjectMeta, err)
	}
	w.awaitEvent(vm, "SuccessfulCreate", vmi.Name)

	w.phase(vmi, v1.Running)
	w.awaitStatus(vm, v1.VirtualMachineStatusRunning)
	if !vm.Status.Ready || !vm.Status.Created {
		w.t.Errorf("status %+v", vm.Status)
	}
	w.change(vm, false, func() { vm.Spec.RunStrategy = new(v1.RunStrategyHalted) })
	w.awaitStatus(vm, v1.VirtualMachineStatusStopping)
	w.ended(vm, vmi)
	w.awaitStatus(vm, v1.VirtualMachineStatusStopped)
	if vmi := w.vmi(vm); vmi != nil {
		w.t.Errorf("VMI %+v is left", vmi.ObjectMeta)
	}
	w.awaitEvent(vm, "SuccessfulDelete", string(vmi.UID))
}

// restart adds what "virtctl restart" asks for.
func restart(w *world, vm *v1.VirtualMachine, vmi *v1.VirtualMachineInstance) {
	w.change(vm, true, func() {
		vm.Status.StateChangeRequests = []v1.VirtualMachineStateChangeRequest{{Action: v1.StopRequest, UID: &vmi.UID}, {Action: v1.StartRequest}}
	})
}

func restarted(w *world) {
	w.start()
	vm := w.machine("vm", v1.RunStrategyManual)
	w.awaitStatus(vm, v1.VirtualMachineStatusStopped)
	w.change(vm, true, func() {
		vm.Status.StateChangeRequests = []v1.VirtualMachineStateChangeRequest{{Action: v1.StartRequest}}
	})
	first := w.awaitVMI(vm)
	w.phase(first, v1.Running)
	w.awaitStatus(vm, v1.VirtualMachineStatusRunning)
	restart(w, vm, first)
	w.ended(vm, first)
	second := w.awaitVMI(vm, first)
	w.phase(second, v1.Running)
	w.awaitStatus(vm, v1.VirtualMachineStatusRunning)
	if len(vm.Status.StateChangeRequests) > 0 {
		w.t.Errorf("requests are left: %v", vm.Status.StateChangeRequests)
	}
	w.created(2)
}

// created fails unless that many VMIs were created.
func (w *world) created(want int) {
	w.t.Helper()
	got := 0
	for _, q := range w.audit() {
		if q.What() == "create virtualmachineinstances" && q.Accepted() {
			got++
		}
	}
	if got != want {
		w.t.Errorf("%d VMIs were created, want %d", got, want)
	}
}

// audit returns the requests of the namespace that were made before the call.
func (w *world) audit() (of []rig.Request) {
	w.t.Helper()
	marker := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, GenerateName: "marker-"}}
	w.create(marker)
	w.delete(marker)
	w.eventually(func() string {
		requests, err := w.Requests()
		if err != nil {
			w.t.Fatal(err)
		}
		of = nil
		for _, q := range requests {
			if q.What() == "delete configmaps" && q.ObjectRef.Name == marker.Name {
				return ""
			}
			if q.ObjectRef.Namespace == w.ns {
				of = append(of, q)
			}
		}
		return "the audit log does not have all requests yet"
	})
	return of
}

func deleted(w *world) {
	w.start()
	vm, vmi := w.runs()
	w.delete(vm)
	w.awaitStatus(vm, v1.VirtualMachineStatusTerminating)
	w.ended(vm, vmi)
	w.eventually(func() string {
		if err := w.Get(w.t.Context(), client.ObjectKeyFromObject(vm), vm); client.IgnoreNotFound(err) != nil || err == nil {
			return fmt.Sprintf("the VM is left: %v, finalizers %v", err, vm.Finalizers)
		}
		return ""
	})
	w.created(1)
}

func crashing(w *world) {
	w.start()
	vm := w.machine("vm", v1.RunStrategyAlways)
	vmi := w.awaitVMI(vm)
	w.phase(vmi, v1.Failed)
	w.awaitStatus(vm, v1.VirtualMachineStatusCrashLoopBackOff)
	if f := vm.Status.StartFailure; f == nil || f.ConsecutiveFailCount != 1 || f.LastFailedVMIUID != vmi.UID {
		w.t.Errorf("the failure is counted as %+v", f)
	}
	w.created(1)
}

func adopted(w *world) {
	vm := w.machine("vm", v1.RunStrategyAlways)
	orphan := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "vm"}, Spec: vm.Spec.Template.Spec}
	w.create(orphan)
	w.start()
	w.eventually(func() string {
		if vmi := w.vmi(vm); vmi == nil || vmi.UID != orphan.UID || !metav1.IsControlledBy(vmi, vm) {
			return "the VMI is not adopted: " + w.describe(vm)
		}
		return ""
	})
	w.phase(orphan, v1.Running)
	w.awaitStatus(vm, v1.VirtualMachineStatusRunning)
}

func taken(w *world) {
	owner := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "owner"}}
	w.create(owner)
	vm := w.machine("vm", v1.RunStrategyHalted)
	foreign := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "vm",
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(owner, corev1.SchemeGroupVersion.WithKind("ConfigMap"))}}, Spec: vm.Spec.Template.Spec}
	w.create(foreign)
	w.start()
	w.change(vm, false, func() { vm.Spec.RunStrategy = new(v1.RunStrategyAlways) })
	w.awaitFailure(vm, "FailedCreate", "controlled by ConfigMap owner")
	w.delete(foreign)
	vmi := w.awaitVMI(vm, foreign)
	w.awaitStatus(vm, v1.VirtualMachineStatusStarting)
	if !metav1.IsControlledBy(vmi, vm) {
		w.t.Errorf("the VMI has the owners %v", vmi.OwnerReferences)
	}
}

func typed(w *world) {
	w.start()
	vm := w.machine("vm", v1.RunStrategyAlways, func(vm *v1.VirtualMachine) {
		vm.Spec.Template.Spec.Domain.Memory = nil
		vm.Spec.Instancetype = &v1.InstancetypeMatcher{Name: "two", Kind: "VirtualMachineInstancetype"}
	})
	w.awaitFailure(vm, "FailedFindInstancetype", "two")
	two := &v1beta1.VirtualMachineInstancetype{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "two"}}
	two.Spec.CPU.Guest = 2
	two.Spec.Memory.Guest.Set(64 << 20)
	w.create(two)
	vmi := w.awaitVMI(vm)
	if vmi.Spec.Domain.CPU == nil || vmi.Spec.Domain.CPU.Sockets != 2 || vmi.Spec.Domain.Memory.Guest.Value() != 64<<20 {
		w.t.Errorf("CPU %+v, memory %+v", vmi.Spec.Domain.CPU, vmi.Spec.Domain.Memory)
	}
	w.awaitStatus(vm, v1.VirtualMachineStatusStarting)

	// What is in use does not change.
	w.change(two, false, func() { two.Spec.CPU.Guest = 4 })
	restart(w, vm, vmi)
	w.ended(vm, vmi)
	if vmi = w.awaitVMI(vm, vmi); vmi.Spec.Domain.CPU.Sockets != 2 {
		w.t.Errorf("after a restart the VMI has CPU %+v", vmi.Spec.Domain.CPU)
	}
	if ref := vm.Status.InstancetypeRef; ref == nil || ref.ControllerRevisionRef == nil {
		w.t.Errorf("the status refers to %+v", ref)
	}
}

func updated(w *world) {
	w.start()
	vm, _ := w.runs()
	w.change(vm, false, func() { vm.Spec.Template.Spec.NodeSelector = map[string]string{"zone": "a"} })
	w.eventually(func() string {
		if vmi := w.vmi(vm); vmi.Spec.NodeSelector["zone"] != "a" {
			return fmt.Sprintf("the VMI has node selector %v: %s", vmi.Spec.NodeSelector, w.describe(vm))
		}
		return ""
	})
	w.change(vm, false, func() { vm.Spec.Template.Spec.Hostname = "another" })
	w.eventually(func() string {
		d := w.describe(vm)
		for _, c := range vm.Status.Conditions {
			if c.Type == v1.VirtualMachineRestartRequired && c.Status == corev1.ConditionTrue {
				return ""
			}
		}
		return d
	})
	w.created(1)
}

// idle checks the requests of a controller between two events of which it makes nothing.
func idle(w *world) {
	w.start()
	vm, _ := w.runs()
	other := w.machine("other", v1.RunStrategyHalted)
	w.awaitStatus(other, v1.VirtualMachineStatusStopped)
	before := len(w.audit())
	w.change(vm, false, func() { metav1.SetMetaDataAnnotation(&vm.ObjectMeta, "example.test/poked", "1") })
	w.change(other, false, func() { other.Spec.RunStrategy = new(v1.RunStrategyManual) }) // is observed after it, and not answered either
	w.change(other, true, func() {
		other.Status.StateChangeRequests = []v1.VirtualMachineStateChangeRequest{{Action: v1.StopRequest}}
	})
	w.eventually(func() string { // the request is dropped: so the controller has seen all of the above
		if d := w.describe(other); len(other.Status.StateChangeRequests) > 0 {
			return d
		}
		return ""
	})
	wrote := map[string]int{}
	for _, q := range w.audit()[before:] {
		if q.User.Username == rig.UserController && !(q.Verb == "watch" || q.Verb == "list") {
			wrote[q.What()]++
		}
	}
	if len(wrote) != 1 || wrote["patch virtualmachines/status"] != 1 {
		w.t.Errorf("the controller made the requests %v, want one patch of the status of the other", wrote)
	}
}
