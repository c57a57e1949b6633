// SPDX-License-Identifier: Apache-2.0

package migration

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
)

// A decentralized migration moves a guest between two objects, of two clusters or two
// namespaces, by two migrations that share an ID. That with spec.sendTo is the sender, that
// with spec.receive the receiver; with both or none of the fields it is a local one. Each
// side writes its half of the guest's status.migrationState; KubeVirt's synchronization
// controllers carry it to the other side.

// Sending is what the sender has to tell of its guest beside what its object says.
type Sending struct {
	// NodeSelectors are the labels of the guest's node that a node has to have to take it.
	NodeSelectors map[string]string
	// Volumes are the guest's claims, whose content travels with it.
	Volumes []v1.StorageMigratedVolumeInfo
	// Missing names what could not be found; empty if all was.
	Missing string
}

// senders are the rows of migrations that send.
var senders = map[v1.VirtualMachineInstanceMigrationPhase]row{
	v1.MigrationPhaseUnset: {
		owner: OwnerController, within: (*decision).pendingBound, overdue: ReasonPendingTimeout, step: (*decision).unsetHere,
	},
	v1.MigrationSynchronizing: {
		owner: OwnerOther, awaits: ReasonSynchronizing, message: "the receiving cluster is asked to take the guest",
		within: (*decision).synchronizeBound, overdue: ReasonSynchronizeTimeout, step: (*decision).exchange,
	},
	v1.MigrationPending: {
		owner: OwnerController, within: (*decision).pendingBound, overdue: ReasonPendingTimeout, step: (*decision).pendingSender,
	},
	v1.MigrationScheduling: {
		owner: OwnerOther, awaits: ReasonWaitingForReceiver, message: "the receiving cluster is to make the target Pod",
		within: (*decision).pendingBound, overdue: ReasonReceiverTimeout, step: (*decision).schedulingSender,
	},
	v1.MigrationScheduled: {
		owner: OwnerOther, awaits: ReasonWaitingForReceiver, message: "the receiving cluster is to name the target node",
		within: (*decision).handOffBound, overdue: ReasonHandOffTimeout, step: (*decision).scheduledSender,
	},
	v1.MigrationPreparingTarget: {
		owner: OwnerOther, awaits: ReasonWaitingForTargetNode, message: "the target node gets ready to receive the guest",
		within: (*decision).prepareBound, overdue: ReasonPrepareTimeout, step: (*decision).preparingSender,
	},
	v1.MigrationTargetReady: {
		owner: OwnerSource, awaits: ReasonWaitingForSourceNode, message: "the target is ready, the source node is to begin",
		within: (*decision).beginBound, overdue: ReasonBeginTimeout, step: (*decision).targetReady,
	},
	v1.MigrationRunning: {
		owner: OwnerSource, awaits: ReasonMoving, message: "the guest is being moved to the receiving cluster",
		within: (*decision).runningBound, overdue: ReasonMoveTimeout, step: (*decision).runningSender,
	},
	v1.MigrationSucceeded: {owner: OwnerNobody, step: (*decision).succeededSender},
	v1.MigrationFailed:    {owner: OwnerNobody, step: (*decision).failedSender},
}

// receivers are the rows of migrations that receive.
var receivers = map[v1.VirtualMachineInstanceMigrationPhase]row{
	v1.MigrationPhaseUnset: {
		owner: OwnerController, within: (*decision).pendingBound, overdue: ReasonPendingTimeout, step: (*decision).unsetHere,
	},
	v1.MigrationWaitingForSync: {
		owner: OwnerOther, awaits: ReasonSynchronizing, message: "the sending cluster is to tell about the guest",
		within: (*decision).synchronizeBound, overdue: ReasonSynchronizeTimeout, step: (*decision).exchange,
	},
	v1.MigrationPending: table[v1.MigrationPending],
	v1.MigrationScheduling: {
		owner: OwnerScheduler, awaits: ReasonWaitingForTargetPod, message: "the target Pod is being scheduled and started",
		step: (*decision).scheduling,
	},
	v1.MigrationScheduled:       table[v1.MigrationScheduled],
	v1.MigrationPreparingTarget: table[v1.MigrationPreparingTarget],
	v1.MigrationTargetReady: {
		owner: OwnerOther, awaits: ReasonWaitingForSourceNode, message: "the target is ready, the sending cluster is to begin",
		within: (*decision).beginBound, overdue: ReasonBeginTimeout, step: (*decision).targetReadyReceiver,
	},
	v1.MigrationRunning: {
		owner: OwnerOther, awaits: ReasonMoving, message: "the guest is being moved here from the sending cluster",
		within: (*decision).runningBound, overdue: ReasonMoveTimeout, step: (*decision).running,
	},
	v1.MigrationSucceeded: {owner: OwnerNobody, step: (*decision).succeededReceiver},
	v1.MigrationFailed:    {owner: OwnerNobody, step: (*decision).failed},
}

// rowsOf is the part of the transition table for the migration.
func rowsOf(m *v1.VirtualMachineInstanceMigration) map[v1.VirtualMachineInstanceMigrationPhase]row {
	switch {
	case m.IsDecentralizedSource():
		return senders
	case m.IsDecentralizedTarget():
		return receivers
	}
	return table
}

func (d *decision) sends() bool         { return d.s.Migration.IsDecentralizedSource() }
func (d *decision) receives() bool      { return d.s.Migration.IsDecentralizedTarget() }
func (d *decision) decentralized() bool { return d.s.Migration.IsDecentralized() }

// mine returns the guest's migration state if this migration is the one in it, or, of a
// decentralized one, has its half there.
func (s Snapshot) mine() *v1.VirtualMachineInstanceMigrationState {
	if own := s.State(); own != nil || !s.Migration.IsDecentralized() || s.VMI == nil {
		return own
	}
	ms := s.VMI.Status.MigrationState
	if ms == nil || ms.MigrationUID != "" {
		return nil
	}
	if source, target := halves(ms); source == s.Migration.UID && s.Migration.IsDecentralizedSource() ||
		target == s.Migration.UID && s.Migration.IsDecentralizedTarget() {
		return ms
	}
	return nil
}

// NeedsSending reports whether [Snapshot.Sending] has to be gathered.
func (s Snapshot) NeedsSending() bool {
	ms := s.mine()
	if ms == nil || ms.MigrationUID != "" || !s.Migration.IsDecentralizedSource() {
		return false
	}
	return s.Migration.Status.Phase == v1.MigrationPending || s.Migration.Status.Phase == v1.MigrationScheduling
}

// halves returns the migrations of both sides.
func halves(ms *v1.VirtualMachineInstanceMigrationState) (source, target types.UID) {
	if ms.SourceState != nil {
		source = ms.SourceState.MigrationUID
	}
	if ms.TargetState != nil {
		target = ms.TargetState.MigrationUID
	}
	return source, target
}

// concerns reports whether the migration, one of the same guest, is named by the state.
func concerns(ms *v1.VirtualMachineInstanceMigrationState, o *v1.VirtualMachineInstanceMigration) bool {
	if ms.MigrationUID != "" || !o.IsDecentralized() {
		return ms.MigrationUID == o.UID
	}
	source, target := halves(ms)
	return !ms.Completed && o.UID != "" && (source == o.UID || target == o.UID)
}

// standingApart is how far a decentralized migration has come. The state that both sides
// write comes first: when a guest has left the cluster its lease ends as if it had not moved.
func (d *decision) standingApart() standing {
	ms := d.ms
	switch {
	case ms == nil:
		return notHandedOff
	case ms.Failed, closedEarly(ms):
		return stayed
	case ms.Completed, d.sends() && reported(ms):
		return arrived
	case d.receives() && (ms.TargetNodeAddress != "" || sighted(ms)):
		// The source may begin at any moment, and tells it later.
		return begunMoving
	}
	return d.standingHere()
}

// closedEarly tells whether somebody has closed the state before anything was handed over.
func closedEarly(ms *v1.VirtualMachineInstanceMigrationState) bool {
	return ms.Completed && ms.MigrationUID == ""
}

// standingHere asks the lease, which a node that knows it changes before it begins; one that
// does not says so in the migration state alone.
func (d *decision) standingHere() standing {
	if d.sends() && d.leased {
		if known, s := d.leaseStanding(); known && s != prepared {
			return s
		}
	}
	if d.ms.StartTimestamp != nil {
		return begunMoving
	}
	return prepared
}

// reported tells whether the other side says that the guest runs there, as the node that
// the guest has left judges it.
func reported(ms *v1.VirtualMachineInstanceMigrationState) bool {
	t := ms.TargetState
	return ms.EndTimestamp != nil && t != nil && t.DomainDetected && t.DomainReadyTimestamp != nil
}

// sighted tells whether the target node has seen anything of the guest.
func sighted(ms *v1.VirtualMachineInstanceMigrationState) bool {
	t := ms.TargetState
	return ms.TargetNodeDomainDetected || ms.TargetNodeDomainReadyTimestamp != nil ||
		t != nil && (t.DomainDetected || t.DomainReadyTimestamp != nil)
}

// claimApart is the claim of a decentralized migration. A sender is counted from phase
// Scheduled on and never waits for a slot: the receiver does for both. A receiver is counted
// from the decision to make its target Pod; it leaves the node of another cluster, and shares
// the slots for leaving with those that come from the same one.
func (s Snapshot) claimApart(c Claim) (Claim, bool) {
	ms := s.mine()
	if ms == nil || ms.Completed {
		return c, false
	}
	if s.Migration.IsDecentralizedSource() {
		switch s.Migration.Status.Phase {
		case v1.MigrationScheduled, v1.MigrationPreparingTarget, v1.MigrationTargetReady, v1.MigrationRunning:
			c.Acting = true
		}
		return c, c.Acting
	}
	c.SourceNode = abroad(ms.SourceState)
	if s.TargetPod != nil {
		c.Acting, c.TargetNode = true, s.TargetPod.Spec.NodeName
		_, c.Stuck = unschedulable(s.TargetPod)
	}
	if ms.MigrationUID == s.Migration.UID {
		c.Acting, c.Arriving, c.TargetNode = true, true, ms.TargetNode
	}
	if c.Acting {
		return c, true
	}
	return c, s.Migration.Status.Phase == v1.MigrationPending && s.mayStart()
}

// abroad names a node of another cluster. No node of this one has such a name.
func abroad(source *v1.VirtualMachineInstanceMigrationSourceState) string {
	if source == nil {
		return "?"
	}
	at := "another cluster"
	if source.SyncAddress != nil && *source.SyncAddress != "" {
		at = *source.SyncAddress
	}
	return source.Node + " of " + at
}

// concludeApart mirrors what the synchronization controller tells, and where it is reached.
func (d *decision) concludeApart() {
	if !d.decentralized() {
		return
	}
	st := &d.plan.Status
	if d.s.SyncAddresses != nil {
		st.SynchronizationAddresses = d.s.SyncAddresses
	}
	if d.s.VMI == nil {
		return
	}
	for _, c := range d.s.VMI.Status.Conditions {
		if c.Type == v1.VirtualMachineInstanceDecentralizedLiveMigrationFailure {
			setCondition(st, v1.VirtualMachineInstanceMigrationCondition{
				Type: v1.VirtualMachineInstanceDecentralizedMigrationBlocked, Status: c.Status, Reason: c.Reason, Message: c.Message,
			}, d.stamp())
			return
		}
	}
	dropCondition(st, v1.VirtualMachineInstanceDecentralizedMigrationBlocked)
}

// obstruction is what the synchronization controller says is in its way; empty if nothing is.
func (d *decision) obstruction() string {
	for _, c := range d.s.VMI.Status.Conditions {
		if c.Type == v1.VirtualMachineInstanceDecentralizedLiveMigrationFailure && c.Status == corev1.ConditionTrue {
			return c.Message
		}
	}
	return ""
}

// leaving tells whether this migration's lease says that the guest goes to another cluster.
func (d *decision) leaving() bool {
	return d.leased && d.lease.Tag == d.s.UID() && d.lease.Target == handoff.Elsewhere
}
