// SPDX-License-Identifier: Apache-2.0

package vmi

// creation creates the launcher Pod of a VMI that has none, and its prerequisites.
type creation struct{ *decision }

// start creates the launcher Pod, or its prerequisites, if nothing blocks it.
func (d creation) start() {
	d.plan.Checks = evaluate(d.Snapshot, checks)
	if d.Failure != nil {
		return
	}
	d.do(staleTemporaries(d.Snapshot)...)
	if d.plan.Blocked() != nil {
		return
	}
	wait, claim := stateClaim(d.Snapshot, d.Config.StateClass)
	d.plan.Checks = append(d.plan.Checks, Check{Name: "state", Wait: wait})
	if claim != nil {
		d.do(*claim)
	}
	if wait != nil {
		return
	}
	d.plan.Checks = append(d.plan.Checks, evaluate(d.Snapshot, lastChecks)...)
	switch {
	case d.plan.Blocked() != nil:
	case firstConsumer(d.Snapshot):
		d.do(Action{Verb: CreateTemporary, Fault: ReasonFailedCreate, Why: "claims wait for their first consumer"})
	default:
		d.do(Action{Verb: CreateLauncher, Fault: ReasonFailedCreate, Why: "the VirtualMachineInstance has no Pod"})
	}
}

// displaced returns the wait for a Pod created by a migration that may run the domain of an
// object without status; nil if there is none.
func (d creation) displaced() *Wait {
	if !unprocessed(d.VMI) || receiver(d.VMI) {
		return nil
	}
	return nowhereElse(d.Snapshot)
}

func (d creation) isDisplaced() bool { return d.displaced() != nil }

// importFailed reports whether a DataVolume of the VMI has failed.
func (d creation) importFailed() bool { return importFailed(d.Snapshot) != nil }

// consumerFailed reports whether the first-consumer Pod of claims that still need one has
// failed.
func (d creation) consumerFailed() bool {
	return firstConsumer(d.Snapshot) && temporaryFailed(d.Snapshot) != nil
}
