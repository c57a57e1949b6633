// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"fmt"
	"time"

	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
)

// receivedWithin is how often a decentralized migration that ends is looked at.
const receivedWithin = 2 * time.Second

// runStrategy is whether the VM is to have a VMI.
type runStrategy struct{ *decision }

// read reads the run strategy.
func (d runStrategy) read() {
	strategy, err := d.VM.RunStrategy()
	if err != nil {
		d.fail(reasonFailedCreate, fmt.Sprintf("Error fetching RunStrategy: %v", err))
		return
	}
	d.strategy = strategy
}

// strategies is what each run strategy wants, with and without a VMI.
var strategies = map[v1.VirtualMachineRunStrategy]struct{ withVMI, withoutVMI func(runStrategy) }{
	v1.RunStrategyAlways:         {runStrategy.replaceEnded, runStrategy.startDelayed},
	v1.RunStrategyRerunOnFailure: {runStrategy.replaceFailed, runStrategy.startFirst},
	v1.RunStrategyManual:         {runStrategy.stopRequested, runStrategy.startRequested},
	v1.RunStrategyHalted:         {runStrategy.halt, runStrategy.unhalt},
	v1.RunStrategyOnce:           {func(runStrategy) {}, runStrategy.start},
	v1.RunStrategyWaitAsReceiver: {runStrategy.endReceiving, runStrategy.start},
}

// carryOut starts or stops the VMI. Once it has, nothing else happens in the pass.
func (d runStrategy) carryOut() {
	s, known := strategies[d.strategy]
	switch {
	case !known:
		d.fail(reasonFailedCreate, "unknown runstrategy: "+string(d.strategy))
	case d.vmi != nil:
		s.withVMI(d)
	default:
		s.withoutVMI(d)
	}
	d.halted = d.halted || d.does(CreateVMI) || d.does(DeleteVMI)
}

func (d runStrategy) start()          { startStop(d).start() }
func (d runStrategy) stop(why string) { startStop(d).stop(why) }

// replaceEnded (Always) stops a VMI that has ended, so that another one is started.
func (d runStrategy) replaceEnded() {
	if !d.vmi.IsFinal() && !d.requests.stop(d.vmi) {
		return
	}
	m := d.vmi.Status.MigrationState
	switch {
	case !d.vmi.IsDecentralizedMigration():
		d.stop("the run strategy is Always and the VMI has ended or is to be restarted")
	case m.Completed:
		d.change(v1.RunStrategyHalted)
		d.halted = true
	default:
		d.requeue(d.now.Add(receivedWithin))
	}
}

// replaceFailed (RerunOnFailure) stops a VMI that has ended, and requests another start if it has failed.
func (d runStrategy) replaceFailed() {
	switch {
	case d.vmi.DeletionTimestamp != nil:
	case d.requests.overtaken(d.vmi, d.strategy): // the request goes in a pass before the VMI: a crash in between starts nothing twice
	case d.vmi.Status.Phase == v1.Failed:
		// The request is stored with the status, in a pass before the VMI is deleted: a crash in between restarts nothing twice.
		if !d.requests.startQueued() {
			st := &d.plan.VM.Status
			st.StateChangeRequests = append(st.StateChangeRequests, v1.VirtualMachineStateChangeRequest{Action: v1.StartRequest})
			return
		}
		d.stop("the run strategy is RerunOnFailure and the VMI has failed")
	case d.vmi.Status.Phase == v1.Succeeded || d.requests.stop(d.vmi):
		d.stop("the VMI has succeeded or is to be stopped")
	}
}

// startFirst (RerunOnFailure) starts a VM that has not run under this strategy yet, or is to be started again.
func (d runStrategy) startFirst() {
	if d.requests.start() || d.VM.Status.RunStrategy != v1.RunStrategyRerunOnFailure {
		d.startDelayed()
	}
}

// stopRequested and startRequested (Manual) carry out requests alone.
func (d runStrategy) stopRequested() {
	if d.requests.stop(d.vmi) {
		d.stop("a stop is requested")
	}
}

func (d runStrategy) startRequested() {
	if d.requests.start() {
		d.start()
	}
}

func (d runStrategy) halt() { d.stop("the run strategy is Halted") }

// unhalt changes the run strategy of a halted VM that is to be started.
func (d runStrategy) unhalt() {
	if d.requests.start() {
		d.change(v1.RunStrategyAlways)
		d.halted = true
	}
}

// endReceiving (WaitAsReceiver) restores the run strategy of a VM that has received its VMI from another cluster.
func (d runStrategy) endReceiving() {
	if d.vmi.Annotations[v1.CreateMigrationTarget] == "true" {
		return
	}
	if m := d.vmi.Status.MigrationState; m == nil || !m.Completed {
		d.fail(reasonFailedCreate, "Found non receiver VMI while VM is receiver")
		return
	}
	if restored := v1.VirtualMachineRunStrategy(d.VM.Annotations[v1.RestoreRunStrategy]); restored != "" {
		d.change(restored)
	}
}

// change changes the run strategy in the spec of the VM.
func (d runStrategy) change(s v1.VirtualMachineRunStrategy) {
	spec := &d.plan.VM.Spec
	if spec.RunStrategy == nil && spec.Running != nil && (s == v1.RunStrategyAlways || s == v1.RunStrategyHalted) {
		spec.Running = new(s == v1.RunStrategyAlways)
		return
	}
	spec.Running, spec.RunStrategy = nil, &s
}

// startDelayed starts the VMI, unless it has failed to start before and the back-off is not over.
func (d runStrategy) startDelayed() {
	f := d.VM.Status.StartFailure
	if f == nil || f.RetryAfterTimestamp == nil || !f.RetryAfterTimestamp.After(d.now) {
		d.start()
		return
	}
	at := f.RetryAfterTimestamp.Time
	d.requeue(at)
	d.wait(Wait{Reason: string(v1.VirtualMachineStatusCrashLoopBackOff), Object: vmObject(d.VM), Responsible: handoff.ByController, Deadline: &at, Until: "the back-off is over",
		Message: fmt.Sprintf("%d VMIs in a row have failed before they ran; the next start is at %s", f.ConsecutiveFailCount, at.UTC().Format(time.RFC3339))})
}
