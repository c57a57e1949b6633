// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"fmt"
	"time"

	v1 "kubevirt.io/api/core/v1"
)

// receivedWithin is how often a decentralized migration that ends is looked at.
const receivedWithin = 2 * time.Second

// strategies is what each run strategy wants, with and without a VMI.
var strategies = map[v1.VirtualMachineRunStrategy]struct{ with, without part }{
	v1.RunStrategyAlways:         {(*decision).alwaysWith, (*decision).startDelayed},
	v1.RunStrategyRerunOnFailure: {(*decision).rerunWith, (*decision).rerunWithout},
	v1.RunStrategyManual:         {(*decision).manualWith, (*decision).manualWithout},
	v1.RunStrategyHalted:         {(*decision).haltedWith, (*decision).haltedWithout},
	v1.RunStrategyOnce:           {func(*decision) {}, (*decision).start},
	v1.RunStrategyWaitAsReceiver: {(*decision).receiverWith, (*decision).start},
}

// run carries out the run strategy. Once it has started or stopped the VMI, nothing else happens in the pass.
func (d *decision) run() {
	s, known := strategies[d.strategy]
	switch {
	case !known:
		d.fail(reasonFailedCreate, "unknown runstrategy: "+string(d.strategy))
	case d.vmi != nil:
		s.with(d)
	default:
		s.without(d)
	}
	d.halted = d.halted || d.does(CreateVMI) || d.does(DeleteVMI)
}

// request returns the first state change request; nil if there is none. Others wait for it.
func (d *decision) request() *v1.VirtualMachineStateChangeRequest {
	if all := d.VM.Status.StateChangeRequests; len(all) > 0 {
		return &all[0]
	}
	return nil
}

// stopRequested reports whether the VMI is to be stopped.
func (d *decision) stopRequested() bool {
	r := d.request()
	return r != nil && r.Action == v1.StopRequest && r.UID != nil && d.vmi != nil && *r.UID == d.vmi.UID
}

func (d *decision) startRequested() bool {
	r := d.request()
	return r != nil && r.Action == v1.StartRequest
}

func (d *decision) alwaysWith() {
	if !d.vmi.IsFinal() && !d.stopRequested() {
		return
	}
	m := d.vmi.Status.MigrationState
	switch {
	case !d.vmi.IsDecentralizedMigration():
		d.stop("the run strategy is Always and the VMI has ended or is to be restarted")
	case m.Completed:
		d.setStrategy(v1.RunStrategyHalted)
		d.halted = true
	default:
		d.requeue(d.now.Add(receivedWithin))
	}
}

func (d *decision) rerunWith() {
	switch {
	case d.vmi.DeletionTimestamp != nil:
	case d.vmi.Status.Phase == v1.Failed:
		// The request is stored with the status, in a pass before the VMI is deleted: a crash in between restarts nothing twice.
		if !d.startQueued() {
			st := &d.plan.VM.Status
			st.StateChangeRequests = append(st.StateChangeRequests, v1.VirtualMachineStateChangeRequest{Action: v1.StartRequest})
			return
		}
		d.stop("the run strategy is RerunOnFailure and the VMI has failed")
	case d.vmi.Status.Phase == v1.Succeeded || d.stopRequested():
		d.stop("the VMI has succeeded or is to be stopped")
	}
}

// startQueued reports whether a start is requested at any place.
func (d *decision) startQueued() bool {
	for _, r := range d.VM.Status.StateChangeRequests {
		if r.Action == v1.StartRequest {
			return true
		}
	}
	return false
}

func (d *decision) rerunWithout() {
	if d.startRequested() || d.VM.Status.RunStrategy != v1.RunStrategyRerunOnFailure {
		d.startDelayed()
	}
}

func (d *decision) manualWith() {
	if d.stopRequested() {
		d.stop("a stop is requested")
	}
}

func (d *decision) manualWithout() {
	if d.startRequested() {
		d.start()
	}
}

func (d *decision) haltedWith() { d.stop("the run strategy is Halted") }

// haltedWithout changes the run strategy of a halted VM that is to be started.
func (d *decision) haltedWithout() {
	if d.startRequested() {
		d.setStrategy(v1.RunStrategyAlways)
		d.halted = true
	}
}

func (d *decision) receiverWith() {
	if d.vmi.Annotations[v1.CreateMigrationTarget] == "true" {
		return
	}
	if m := d.vmi.Status.MigrationState; m == nil || !m.Completed {
		d.fail(reasonFailedCreate, "Found non receiver VMI while VM is receiver")
		return
	}
	if restored := v1.VirtualMachineRunStrategy(d.VM.Annotations[v1.RestoreRunStrategy]); restored != "" {
		d.setStrategy(restored)
	}
}

// setStrategy changes the spec of the VM.
func (d *decision) setStrategy(s v1.VirtualMachineRunStrategy) {
	spec := &d.plan.VM.Spec
	if spec.RunStrategy == nil && spec.Running != nil && (s == v1.RunStrategyAlways || s == v1.RunStrategyHalted) {
		spec.Running = new(s == v1.RunStrategyAlways)
		return
	}
	spec.Running, spec.RunStrategy = nil, &s
}

// startDelayed starts the VMI, unless it has failed to start before and the back-off is not over.
func (d *decision) startDelayed() {
	f := d.VM.Status.StartFailure
	if f == nil || f.RetryAfterTimestamp == nil || !f.RetryAfterTimestamp.After(d.now) {
		d.start()
		return
	}
	at := f.RetryAfterTimestamp.Time
	d.requeue(at)
	d.wait(Wait{Reason: string(v1.VirtualMachineStatusCrashLoopBackOff), Object: vmObject(d.VM), Responsible: ByController, Deadline: &at, Until: "the back-off is over",
		Message: fmt.Sprintf("%d VMIs in a row have failed before they ran; the next start is at %s", f.ConsecutiveFailCount, at.UTC().Format(time.RFC3339))})
}

// stop deletes the VMI, once.
func (d *decision) stop(why string) {
	if d.vmi == nil || d.vmi.DeletionTimestamp != nil {
		return
	}
	dropCondition(d.plan.VM, v1.VirtualMachineRestartRequired)
	// A stale cache must not end a guest that is to run by now, nor one whose next start is not requested any more. A
	// deletion of the VM is final.
	live := d.VM.DeletionTimestamp == nil
	d.do(Action{Verb: DeleteVMI, Name: d.vmi.Name, If: Precondition{UID: d.vmi.UID, OwnerLive: live}, Why: why,
		Fault:  Failure{reasonFailedDelete, "Failure attempting to delete VMI: "},
		Done:   &Event{Reason: "SuccessfulDelete", Message: fmt.Sprintf("Stopped the virtual machine by deleting the virtual machine instance %s", d.vmi.UID)},
		Failed: &Event{Warning: true, Reason: reasonFailedDelete, Message: fmt.Sprintf("Error deleting virtual machine instance %s: ", d.vmi.Name)}})
}

// vmObject returns the Wait.Object of a VM.
func vmObject(vm *v1.VirtualMachine) string { return "VirtualMachine " + vm.Namespace + "/" + vm.Name }
