// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"hash/fnv"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/internal/vmistatus"
)

// longestDelay bounds the back-off.
const longestDelay = 300

// status computes the status of the VM.
func (d *decision) status() {
	if d.strategy == "" {
		d.strategy, _ = d.VM.RunStrategy()
	}
	st := &d.plan.VM.Status
	st.Created = d.vmi != nil
	st.Ready = d.vmi != nil && vmistatus.IsTrue(d.vmi, v1.VirtualMachineInstanceReady)
	d.generations()
	if d.vmi != nil || st.RunStrategy != "" && d.strategy != v1.RunStrategyRerunOnFailure {
		st.RunStrategy = d.strategy
	}
	d.trimVolumeRequests()
	d.dumpStatus()
	d.trimRequests()
	d.startFailure()
	d.conditions()
	st.PrintableStatus = d.printable()
}

// trimRequests removes the first state change request once it has been carried out.
func (d *decision) trimRequests() {
	r := d.request()
	if r == nil || len(d.Pending) > 0 {
		return
	}
	var done bool
	switch r.Action {
	case v1.StopRequest:
		done = !d.stopRequested()
	case v1.StartRequest:
		done = d.vmi != nil && d.vmi.DeletionTimestamp == nil && !d.vmi.IsFinal()
	default: // an unknown request would block all that follow
		done = true
	}
	if done {
		st := &d.plan.VM.Status
		st.StateChangeRequests = slices.Delete(slices.Clone(st.StateChangeRequests), 0, 1)
	}
}

// startFailure counts VMIs in a row that ended before they ran, each once.
func (d *decision) startFailure() {
	st := &d.plan.VM.Status
	ran := d.vmi != nil && slices.ContainsFunc(d.vmi.Status.PhaseTransitionTimestamps, func(t v1.VirtualMachineInstancePhaseTransitionTimestamp) bool {
		return t.Phase == v1.Running
	})
	switch {
	case ran || d.vmi != nil && d.vmi.Status.Phase == v1.Running || !retries(d.strategy):
		st.StartFailure = nil
	case d.vmi != nil && d.vmi.IsFinal():
		count := 1
		if f := st.StartFailure; f != nil {
			if f.LastFailedVMIUID == d.vmi.UID {
				return
			}
			count = f.ConsecutiveFailCount + 1
		}
		at := metav1.NewTime(d.now.Add(delayOf(count, string(d.vmi.UID))))
		st.StartFailure = &v1.VirtualMachineStartFailure{ConsecutiveFailCount: count, LastFailedVMIUID: d.vmi.UID, RetryAfterTimestamp: &at}
	}
}

// delayOf returns the back-off after a number of failures. What KubeVirt adds at random follows from the seed.
func delayOf(failures int, seed string) time.Duration {
	n := min(max(failures, 1), 10)
	base := 10 * n * n
	h := fnv.New32a()
	h.Write([]byte(seed))
	seconds := base + int(h.Sum32()%uint32(base/2+1))
	return time.Duration(min(seconds, longestDelay)) * time.Second
}

// release removes the VM's finalizer from a VMI that has ended, once the status that counts it is stored.
func (d *decision) release() {
	if d.vmi == nil || len(d.Pending) > 0 {
		return
	}
	ended := d.vmi.IsFinal() || d.vmi.Status.Phase == v1.WaitingForSync && d.vmi.DeletionTimestamp != nil
	counted := countedLast(d.plan.VM.Status.StartFailure) == countedLast(d.VM.Status.StartFailure)
	// A VM that has run once under RerunOnFailure is not started again: the status says so.
	recorded := d.strategy != v1.RunStrategyRerunOnFailure || d.VM.Status.RunStrategy == d.strategy
	if ended && counted && recorded {
		remove(&d.next.Finalizers, v1.VirtualMachineControllerFinalizer)
	}
}

// countedLast returns the UID of the VMI that was counted last.
func countedLast(f *v1.VirtualMachineStartFailure) types.UID {
	if f == nil {
		return ""
	}
	return f.LastFailedVMIUID
}

// own are the conditions that are not copied from the VMI.
var own = []v1.VirtualMachineConditionType{v1.VirtualMachineReady, v1.VirtualMachineFailure, v1.VirtualMachineRestartRequired, v1.VirtualMachineManualRecoveryRequired}

// conditions mirrors those of the VMI, and reports failures.
func (d *decision) conditions() {
	vm := d.plan.VM
	d.ready()
	switch f := d.currentFailure(); {
	case f != nil:
		d.set(v1.VirtualMachineCondition{Type: v1.VirtualMachineFailure, Status: corev1.ConditionTrue, Reason: f.Reason, Message: f.Message})
	case len(d.Pending) == 0:
		dropCondition(vm, v1.VirtualMachineFailure)
	}
	if d.vmi == nil {
		return
	}
	vm.Status.Conditions = slices.DeleteFunc(vm.Status.Conditions, func(c v1.VirtualMachineCondition) bool {
		return !slices.Contains(own, c.Type) && vmistatus.Condition(d.vmi, v1.VirtualMachineInstanceConditionType(c.Type)) == nil
	})
	for _, c := range d.vmi.Status.Conditions {
		if !slices.Contains(own, v1.VirtualMachineConditionType(c.Type)) {
			d.set(mirrored(c))
		}
	}
}

func mirrored(c v1.VirtualMachineInstanceCondition) v1.VirtualMachineCondition {
	return v1.VirtualMachineCondition{Type: v1.VirtualMachineConditionType(c.Type), Status: c.Status, Reason: c.Reason, Message: c.Message,
		LastProbeTime: c.LastProbeTime, LastTransitionTime: c.LastTransitionTime}
}

// currentFailure returns what condition Failure reports; nil if there is nothing.
func (d *decision) currentFailure() *Failure {
	if d.Failure != nil {
		return d.Failure
	}
	return d.failure
}

func (d *decision) ready() {
	c := v1.VirtualMachineCondition{Type: v1.VirtualMachineReady, Status: corev1.ConditionFalse}
	switch {
	case d.vmi == nil:
		c.Reason, c.Message = "VMINotExists", "VMI does not exist"
	default:
		r := vmistatus.Condition(d.vmi, v1.VirtualMachineInstanceReady)
		if r == nil {
			c.Reason, c.Message = "VMIConditionMissing", "VMI is missing the Ready condition"
			break
		}
		c = mirrored(*r)
	}
	d.set(c)
}

// set adds a condition, or replaces it if status or reason differ: a message or a time alone is no change.
func (d *decision) set(c v1.VirtualMachineCondition) {
	if c.LastTransitionTime.IsZero() {
		c.LastTransitionTime = metav1.NewTime(d.now)
	}
	list := &d.plan.VM.Status.Conditions
	for i, was := range *list {
		if was.Type == c.Type {
			if was.Status != c.Status || was.Reason != c.Reason {
				(*list)[i] = c
			}
			return
		}
	}
	*list = append(*list, c)
}

func dropCondition(vm *v1.VirtualMachine, t v1.VirtualMachineConditionType) {
	vm.Status.Conditions = slices.DeleteFunc(vm.Status.Conditions, func(c v1.VirtualMachineCondition) bool { return c.Type == t })
}

func conditionTrue(vm *v1.VirtualMachine, t v1.VirtualMachineConditionType) bool {
	return slices.ContainsFunc(vm.Status.Conditions, func(c v1.VirtualMachineCondition) bool { return c.Type == t && c.Status == corev1.ConditionTrue })
}

// collectWaits lists what the VM waits for.
func (d *decision) collectWaits() {
	for _, w := range d.Pending {
		d.plan.Waits = append(d.plan.Waits, Wait{Reason: "WaitingForCache", Message: "waiting for the cache to observe this controller's write: " + string(w.Verb) + " " + w.Name,
			Object: vmObject(d.VM), Until: "the cache observes the write", Responsible: ByController})
	}
	if f := d.currentFailure(); f != nil {
		by := ByController
		if d.Failure == nil {
			by = ByUser
		}
		d.plan.Waits = append(d.plan.Waits, Wait{Reason: f.Reason, Message: f.Message, Object: vmObject(d.VM), Until: "the cause is removed", Responsible: by})
	}
	d.plan.Waits = append(d.plan.Waits, d.waits...)
	if d.vmi != nil && d.vmi.Status.Phase != v1.Running {
		d.plan.Waits = append(d.plan.Waits, Wait{Reason: "VMINotRunning", Object: "VirtualMachineInstance " + d.vmi.Namespace + "/" + d.vmi.Name, Responsible: ByController,
			Message: "the VirtualMachineInstance is in phase " + string(d.vmi.Status.Phase), Until: "its phase changes"})
	}
	if conditionTrue(d.plan.VM, v1.VirtualMachineRestartRequired) {
		d.plan.Waits = append(d.plan.Waits, Wait{Reason: string(v1.VirtualMachineRestartRequired), Object: vmObject(d.VM), Responsible: ByUser,
			Message: "a change of the template needs a restart", Until: "the VirtualMachine is restarted"})
	}
}
