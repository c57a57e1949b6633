// SPDX-License-Identifier: Apache-2.0

package migration

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"
	"time"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/migration/queue"
)

// A decentralized migration transfers a domain between the VMIs of two clusters or two
// namespaces, by two migrations with the same ID. The migration with spec.sendTo is the sender,
// the one with spec.receive the receiver; with both fields or none it is a local migration. Each
// side writes its half of the VMI's status.migrationState; KubeVirt's synchronization
// controllers copy it to the other side.

// Sending is the data about the VMI that the sender adds to the VMI's own.
type Sending struct {
	// NodeSelectors are the labels of the VMI's node that a target node must have.
	NodeSelectors map[string]string
	// Volumes are the VMI's claims whose content is migrated too.
	Volumes []v1.StorageMigratedVolumeInfo
	// Missing names the data that was not found; empty if none is missing.
	Missing string
}

// senders holds the rows of sending migrations.
var senders = map[v1.VirtualMachineInstanceMigrationPhase]row{
	v1.MigrationPhaseUnset: {
		responsible: handoff.ByController, within: in(policyBounds.pending), overdue: reasonPendingTimeout, step: in(exchange.unsetHere),
	},
	v1.MigrationSynchronizing: {
		responsible: handoff.ByOtherCluster, awaits: reasonSynchronizing, message: "waiting for the receiving cluster to accept the migration",
		within: in(policyBounds.synchronize), overdue: reasonSynchronizeTimeout, step: in(exchange.decide),
	},
	v1.MigrationPending: {
		responsible: handoff.ByController, within: in(policyBounds.pending), overdue: reasonPendingTimeout, step: in(sender.pending),
	},
	v1.MigrationScheduling: {
		responsible: handoff.ByOtherCluster, awaits: reasonWaitingForReceiver, message: "waiting for the receiving cluster to create the target Pod",
		within: in(policyBounds.pending), overdue: reasonReceiverTimeout, step: in(sender.scheduling),
	},
	v1.MigrationScheduled: {
		responsible: handoff.ByOtherCluster, awaits: reasonWaitingForReceiver, message: "waiting for the receiving cluster to report the target node",
		within: in(policyBounds.handOff), overdue: reasonHandOffTimeout, step: in(sender.scheduled),
	},
	v1.MigrationPreparingTarget: {
		responsible: handoff.ByOtherCluster, awaits: reasonWaitingForTargetNode, message: "the target node is preparing to receive the VMI",
		within: in(policyBounds.prepare), overdue: reasonPrepareTimeout, step: in(sender.preparing),
	},
	v1.MigrationTargetReady: {
		responsible: handoff.BySourceNode, awaits: reasonWaitingForSourceNode, message: "the target is ready, waiting for the source node to begin",
		within: in(policyBounds.begin), overdue: reasonBeginTimeout, step: in(advance.targetReady),
	},
	v1.MigrationRunning: {
		responsible: handoff.BySourceNode, awaits: ReasonMoving, message: "the VMI is being migrated to the receiving cluster",
		within: in(policyBounds.running), overdue: reasonMoveTimeout, step: in(sender.running),
	},
	v1.MigrationSucceeded: {responsible: handoff.ByNobody, step: in(sender.succeeded)},
	v1.MigrationFailed:    {responsible: handoff.ByNobody, step: in(sender.failed)},
}

// receivers holds the rows of receiving migrations.
var receivers = map[v1.VirtualMachineInstanceMigrationPhase]row{
	v1.MigrationPhaseUnset: {
		responsible: handoff.ByController, within: in(policyBounds.pending), overdue: reasonPendingTimeout, step: in(exchange.unsetHere),
	},
	v1.MigrationWaitingForSync: {
		responsible: handoff.ByOtherCluster, awaits: reasonSynchronizing, message: "waiting for the sending cluster to report the VMI",
		within: in(policyBounds.synchronize), overdue: reasonSynchronizeTimeout, step: in(exchange.decide),
	},
	v1.MigrationPending: table[v1.MigrationPending],
	v1.MigrationScheduling: {
		responsible: handoff.ByScheduler, awaits: reasonWaitingForTargetPod, message: "the target Pod is being scheduled and started",
		step: in(advance.scheduling),
	},
	v1.MigrationScheduled:       table[v1.MigrationScheduled],
	v1.MigrationPreparingTarget: table[v1.MigrationPreparingTarget],
	v1.MigrationTargetReady: {
		responsible: handoff.ByOtherCluster, awaits: reasonWaitingForSourceNode, message: "the target is ready, waiting for the sending cluster to begin",
		within: in(policyBounds.begin), overdue: reasonBeginTimeout, step: in(receiver.targetReady),
	},
	v1.MigrationRunning: {
		responsible: handoff.ByOtherCluster, awaits: ReasonMoving, message: "the VMI is being migrated from the sending cluster",
		within: in(policyBounds.running), overdue: reasonMoveTimeout, step: in(advance.running),
	},
	v1.MigrationSucceeded: {responsible: handoff.ByNobody, step: in(receiver.succeeded)},
	v1.MigrationFailed:    {responsible: handoff.ByNobody, step: in(finish.failed)},
}

// rowsOf returns the transition table for the migration.
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

// mine returns the VMI's migration state if it is this migration's or, for a decentralized
// migration, contains its half.
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

// NeedsSending reports whether Decide needs [Snapshot.Sending].
func (s Snapshot) NeedsSending() bool {
	ms := s.mine()
	if ms == nil || ms.MigrationUID != "" || !s.Migration.IsDecentralizedSource() {
		return false
	}
	return s.Migration.Status.Phase == v1.MigrationPending || s.Migration.Status.Phase == v1.MigrationScheduling
}

// halves returns the UIDs of the migrations of both sides.
func halves(ms *v1.VirtualMachineInstanceMigrationState) (source, target types.UID) {
	if ms.SourceState != nil {
		source = ms.SourceState.MigrationUID
	}
	if ms.TargetState != nil {
		target = ms.TargetState.MigrationUID
	}
	return source, target
}

// concerns reports whether the state names the migration, which is of the same VMI.
func concerns(ms *v1.VirtualMachineInstanceMigrationState, o *v1.VirtualMachineInstanceMigration) bool {
	if ms.MigrationUID != "" || !o.IsDecentralized() {
		return ms.MigrationUID == o.UID
	}
	source, target := halves(ms)
	return !ms.Completed && o.UID != "" && (source == o.UID || target == o.UID)
}

// closedEarly reports whether the state was closed before the handoff.
func closedEarly(ms *v1.VirtualMachineInstanceMigrationState) bool {
	return ms.Completed && ms.MigrationUID == ""
}

// reported reports whether the other side says that the VMI runs there, by the rule of the
// node that the VMI has left.
func reported(ms *v1.VirtualMachineInstanceMigrationState) bool {
	t := ms.TargetState
	return ms.EndTimestamp != nil && t != nil && t.DomainDetected && t.DomainReadyTimestamp != nil
}

// sighted reports whether the target node has seen anything of the VMI.
func sighted(ms *v1.VirtualMachineInstanceMigrationState) bool {
	t := ms.TargetState
	return ms.TargetNodeDomainDetected || ms.TargetNodeDomainReadyTimestamp != nil ||
		t != nil && (t.DomainDetected || t.DomainReadyTimestamp != nil)
}

// claimApart returns the claim of a decentralized migration. A sender is counted from phase
// Scheduled on and never waits for a slot: the receiver waits for both. A receiver is counted
// from the decision to create its target Pod; it leaves a node of another cluster, and shares
// the outbound slots with migrations from the same node.
func (s Snapshot) claimApart(c queue.Claim, now time.Time) (queue.Claim, bool) {
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
	return c, s.Migration.Status.Phase == v1.MigrationPending && s.mayStart(now)
}

// abroad returns a name for a node of another cluster, which no node of this cluster has.
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

// concludeApart mirrors the synchronization controller's reports and addresses into the status.
func (d conclusion) concludeApart() {
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

// obstruction returns what blocks the synchronization controller by its own report, or "".
func (d exchange) obstruction() string {
	for _, c := range d.s.VMI.Status.Conditions {
		if c.Type == v1.VirtualMachineInstanceDecentralizedLiveMigrationFailure && c.Status == corev1.ConditionTrue {
			return c.Message
		}
	}
	return ""
}

// leaving reports whether this migration's lease targets another cluster.
func (d sender) leaving() bool {
	return d.leased && d.lease.Tag == d.s.uid() && d.lease.Target == handoff.Elsewhere
}
