// SPDX-License-Identifier: Apache-2.0

package migration

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"
)

// Reason is why a migration waits or failed: the reason of the conditions
// [ConditionWaiting] and [ConditionFailed].
type Reason string

// Reasons to wait. Each is reported with the owner of the next step.
const (
	// ReasonWaitingForSlot: a limit of parallel migrations is reached.
	ReasonWaitingForSlot Reason = "WaitingForSlot"
	// ReasonWaitingForMigration: an older migration of the same VMI is not
	// finished.
	ReasonWaitingForMigration Reason = "WaitingForMigration"
	// ReasonWaitingForGuest: the VMI does not run on a node that owns it yet.
	ReasonWaitingForGuest Reason = "WaitingForGuest"
	// ReasonWaitingForSourcePod: the VMI's Pod is not known yet.
	ReasonWaitingForSourcePod Reason = "WaitingForSourcePod"
	// ReasonWaitingForPod: the VMI has another, stray Pod.
	ReasonWaitingForPod Reason = "WaitingForOtherPod"
	// reasonUtilityVolumes: utility volumes must be detached first.
	reasonUtilityVolumes Reason = "UtilityVolumesPresent"
	// reasonPlugging: a volume of the VMI is being unplugged, or memory is being dumped.
	reasonPlugging Reason = "VolumesChanging"
	// reasonWaitingForAttachment: the Pod that attaches hotplugged volumes at the target
	// does not run yet.
	reasonWaitingForAttachment Reason = "WaitingForAttachmentPod"
	// reasonWaitingForState: a claim with the VMI's state does not exist yet.
	reasonWaitingForState Reason = "WaitingForStateClaim"
	// reasonStateClaim: the VMI has migrated, the claim with its state is not labeled yet.
	reasonStateClaim Reason = "StateClaimHandOff"
	// ReasonBackup: a backup of the VMI must end first.
	ReasonBackup Reason = "BackupInProgress"
	// ReasonBackoff: the last automatic migrations of the VMI have failed.
	ReasonBackoff Reason = "BackingOff"
	// ReasonPolicyInvalid: the MigrationPolicy in force has a value that cannot be
	// carried out, see [policy.PolicyError].
	ReasonPolicyInvalid Reason = "MigrationPolicyInvalid"
	// ReasonQuota: a ResourceQuota rejected the target Pod.
	ReasonQuota Reason = "ResourceQuotaExceeded"
	// ReasonCreateFailed: the API server rejected the target Pod; creation is retried.
	ReasonCreateFailed Reason = "TargetPodCreateFailed"
	// reasonWaitingForTargetPod: the target Pod is being scheduled or started.
	reasonWaitingForTargetPod Reason = "WaitingForTargetPod"
	// reasonWaitingForTargetNode: the target node is preparing to receive.
	reasonWaitingForTargetNode Reason = "WaitingForTargetNode"
	// reasonWaitingForSourceNode: the source node has not begun to send.
	reasonWaitingForSourceNode Reason = "WaitingForSourceNode"
	// ReasonMoving: the hypervisors migrate the domain.
	ReasonMoving Reason = "Moving"
	// reasonCompleting: the VMI runs on the target node, which cleans up.
	reasonCompleting Reason = "Completing"
	// reasonLiveUpdate: the VMI has migrated, a live update of it is not finished.
	reasonLiveUpdate Reason = "WaitingForLiveUpdate"
	// reasonAborting: the nodes were requested to abort and have not answered.
	reasonAborting Reason = "Aborting"
	// reasonCancelling: the migration is being canceled before it began.
	reasonCancelling Reason = "Cancelling"
	// ReasonLeaseUnreadable: the VMI's handoff annotation is invalid, so its owner is
	// unknown and nothing is changed.
	ReasonLeaseUnreadable Reason = "LeaseUnreadable"
)

// Reasons to fail.
const (
	// ReasonGuestNotFound: the VirtualMachineInstance does not exist.
	ReasonGuestNotFound Reason = "GuestNotFound"
	// ReasonGuestFinal: the VMI has ended.
	ReasonGuestFinal Reason = "GuestEnded"
	// reasonGuestAway: the VMI has left the node to be evacuated.
	reasonGuestAway Reason = "GuestHasLeft"
	// ReasonGuestDeleted: the VMI is being deleted.
	ReasonGuestDeleted Reason = "GuestDeleted"
	// ReasonNotMigratable: the VMI's LiveMigratable condition is False.
	ReasonNotMigratable Reason = "NotLiveMigratable"
	// reasonInvalidSpec: the migration contradicts itself.
	reasonInvalidSpec Reason = "InvalidSpec"
	// ReasonUnsupported: the migration requires an unsupported feature.
	ReasonUnsupported Reason = "NotSupportedYet"
	// ReasonConflict: another migration of the VMI is running.
	ReasonConflict Reason = "AnotherMigrationRunning"
	// ReasonAborted: the migration was deleted before it finished.
	ReasonAborted Reason = "Aborted"
	// reasonPendingTimeout: the migration was not admitted in time.
	reasonPendingTimeout Reason = "PendingTimeout"
	// ReasonNoNode: no node can ever match the target Pod.
	ReasonNoNode Reason = "NoNodeMatches"
	// ReasonUnschedulable: no node took the target Pod in time.
	ReasonUnschedulable Reason = "TargetPodUnschedulable"
	// reasonTargetPodTimeout: the target Pod was not ready in time.
	reasonTargetPodTimeout Reason = "TargetPodTimeout"
	// reasonTargetPodLost: the target Pod was deleted or ended.
	reasonTargetPodLost Reason = "TargetPodLost"
	// reasonAttachmentLost: the Pod that attaches hotplugged volumes at the target was
	// deleted or ended.
	reasonAttachmentLost Reason = "AttachmentPodLost"
	// ReasonTargetPodForeign: a Pod with the target's name belongs to something else.
	ReasonTargetPodForeign Reason = "TargetPodForeign"
	// ReasonRender: the target Pod cannot be rendered from the VMI.
	ReasonRender Reason = "TargetPodRenderFailed"
	// reasonSameNode: the target Pod was put on the source node.
	reasonSameNode Reason = "TargetIsSource"
	// reasonHandOffTimeout: the VMI was not handed off in time.
	reasonHandOffTimeout Reason = "HandOffTimeout"
	// reasonPrepareTimeout: the target node was not ready in time.
	reasonPrepareTimeout Reason = "PrepareTimeout"
	// reasonBeginTimeout: the source node did not begin in time.
	reasonBeginTimeout Reason = "BeginTimeout"
	// reasonMoveTimeout: the migration took longer than its budget.
	reasonMoveTimeout Reason = "MoveTimeout"
	// ReasonNodeReported: a node reported that the migration failed.
	ReasonNodeReported Reason = "NodeReportedFailure"
	// reasonStateLost: the VMI's migration state was cleared or taken over.
	reasonStateLost Reason = "MigrationStateLost"
)

// failures are the reasons that may prefix a failure text on the VMI, so that the reason
// survives a crash between two writes.
var failures = map[Reason]bool{
	ReasonAborted: true, ReasonGuestDeleted: true, reasonTargetPodLost: true, reasonAttachmentLost: true, reasonHandOffTimeout: true,
	reasonPrepareTimeout: true, reasonBeginTimeout: true, reasonMoveTimeout: true, reasonStateLost: true,
	reasonSameNode: true, ReasonNodeReported: true,
	// A reason of a migration between clusters may come from the other side.
	reasonSynchronizeTimeout: true, reasonReceiverTimeout: true, reasonPendingTimeout: true, ReasonUnschedulable: true,
	reasonTargetPodTimeout: true, ReasonGuestFinal: true, ReasonGate: true, ReasonNotMigratable: true, ReasonRender: true,
	ReasonUnsupported: true, reasonNotReceivable: true, reasonGuestAway: true, reasonUtilityVolumes: true,
}

// failureText joins reason and message as stored in
// VirtualMachineInstance.status.migrationState.failureReason.
func failureText(r Reason, message string) string { return string(r) + ": " + message }

// splitFailure is the inverse of failureText; text written by a node counts as
// [ReasonNodeReported].
func splitFailure(text string) (Reason, string) {
	head, tail, found := strings.Cut(text, ": ")
	if found && failures[Reason(head)] {
		return Reason(head), tail
	}
	return ReasonNodeReported, text
}

// Condition types of the migration that this module defines; KubeVirt's keep their names.
const (
	// ConditionWaiting is True while the migration is unfinished; its reason and message say
	// what must act next. It is absent on a finished migration.
	ConditionWaiting v1.VirtualMachineInstanceMigrationConditionType = "migrationWaiting"
	// ConditionNoNode is True from when no node matched the target Pod until the Pod is
	// created; see [Config.AwaitNodes].
	ConditionNoNode v1.VirtualMachineInstanceMigrationConditionType = "virtloom.dev/NoNodeMatches"
	// ConditionFailed is True on a failed migration; its reason is typed.
	ConditionFailed v1.VirtualMachineInstanceMigrationConditionType = "migrationFailed"
)

// setCondition sets the condition. The transition time changes only when status or reason
// change; an equal condition is left alone.
func setCondition(st *v1.VirtualMachineInstanceMigrationStatus, c v1.VirtualMachineInstanceMigrationCondition, now metav1.Time) {
	for i := range st.Conditions {
		have := &st.Conditions[i]
		if have.Type != c.Type {
			continue
		}
		c.LastTransitionTime = have.LastTransitionTime
		if have.Status != c.Status || have.Reason != c.Reason {
			c.LastTransitionTime = now
		}
		*have = c
		return
	}
	c.LastTransitionTime = now
	st.Conditions = append(st.Conditions, c)
}

// isTrue builds a condition that is True.
func isTrue(t v1.VirtualMachineInstanceMigrationConditionType, r Reason, message string) v1.VirtualMachineInstanceMigrationCondition {
	return v1.VirtualMachineInstanceMigrationCondition{Type: t, Status: corev1.ConditionTrue, Reason: string(r), Message: message}
}

func dropCondition(st *v1.VirtualMachineInstanceMigrationStatus, t v1.VirtualMachineInstanceMigrationConditionType) {
	kept := st.Conditions[:0]
	for _, c := range st.Conditions {
		if c.Type != t {
			kept = append(kept, c)
		}
	}
	st.Conditions = kept
}

// Condition returns the migration's condition of the type, or nil.
func Condition(st v1.VirtualMachineInstanceMigrationStatus, t v1.VirtualMachineInstanceMigrationConditionType) *v1.VirtualMachineInstanceMigrationCondition {
	for i := range st.Conditions {
		if st.Conditions[i].Type == t {
			return &st.Conditions[i]
		}
	}
	return nil
}
