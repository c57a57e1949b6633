// SPDX-License-Identifier: Apache-2.0

package migration

import (
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
)

// exchange has the two halves of a migration between clusters learn of each other.
type exchange struct{ *decision }

// unsetHere judges a decentralized migration for the first time. It waits for older ones: once
// its half is written it blocks every other migration of the VMI.
func (d exchange) unsetHere() phase {
	next := advance(d).unset()
	switch f := checkOrder(d.s, d.now); {
	case next != v1.MigrationPending:
		return next
	case f.Blocked:
		return refusal(d).blocked(f)
	case d.sends():
		return v1.MigrationSynchronizing
	}
	return v1.MigrationWaitingForSync
}

// decide writes the first part of this side's half, and waits for the other side's.
func (d exchange) decide() phase {
	if d.ms == nil {
		if f := checkOrder(d.s, d.now); f.Blocked {
			return refusal(d).blocked(f)
		}
		if orphan := d.s.orphan(); orphan != nil {
			stop(d).callOff(orphan.Tag, cause{ReasonAborted, "its migration no longer exists"})
			return d.stay(handoff.ByController, reasonCancelling, "canceling an orphaned migration")
		}
		if f := checkRunning(d.s, d.now); d.sends() && f.Blocked {
			return refusal(d).blocked(f) // a migration under way needs its state
		}
		d.act(Action{Verb: ChangeVMI, Why: "report to the other cluster", Change: &VMIChange{State: d.firstHalf()}})
		return d.plan.Status.Phase
	}
	if d.answered() {
		return v1.MigrationPending
	}
	if text := d.obstruction(); text != "" {
		d.explain("", reasonSynchronizing, d.plan.Message+": "+text)
	}
	return d.plan.Status.Phase
}

// answered reports whether the other side has reported enough to continue.
func (d exchange) answered() bool {
	source, target := halves(d.ms)
	if source == "" || target == "" {
		return false
	}
	// The labels of its node are part of the report; there may be none.
	return d.sends() || d.ms.SourceState.Pod != "" && d.ms.SourceState.Node != ""
}

// firstHalf returns the migration state with this side in it. It keeps what the other side has
// written, and drops what an earlier migration left.
func (d exchange) firstHalf() *v1.VirtualMachineInstanceMigrationState {
	vmi, m := d.s.VMI, d.s.Migration
	ms := &v1.VirtualMachineInstanceMigrationState{}
	if was := vmi.Status.MigrationState; was != nil && !was.Completed && was.MigrationUID == "" && d.unspoken(was) {
		ms = was.DeepCopy()
	}
	if ms.TargetState == nil {
		ms.TargetState = &v1.VirtualMachineInstanceMigrationTargetState{}
	}
	if d.receives() {
		ms.TargetState.MigrationUID = m.UID
		return ms
	}
	if ms.SourceState == nil {
		ms.SourceState = &v1.VirtualMachineInstanceMigrationSourceState{}
	}
	uid, namespace, url := vmi.UID, vmi.Namespace, m.Spec.SendTo.ConnectURL
	ms.SourceState.MigrationUID, ms.SourceState.VirtualMachineInstanceUID, ms.SourceState.DomainNamespace = m.UID, &uid, &namespace
	ms.TargetState.SyncAddress = &url
	return ms
}

// unspoken reports whether this side's half of the state is unclaimed.
func (d exchange) unspoken(ms *v1.VirtualMachineInstanceMigrationState) bool {
	source, target := halves(ms)
	if d.sends() {
		return source == ""
	}
	return target == ""
}
