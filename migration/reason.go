// SPDX-License-Identifier: Apache-2.0

package migration

import (
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"
)

// Reason says why a migration waits or failed. It is the reason of the
// conditions [ConditionWaiting] and [ConditionFailed].
type Reason string

// Reasons to wait. Each is told together with the owner of the next step.
const (
	// ReasonWaitingForSlot: a limit of parallel migrations is reached.
	ReasonWaitingForSlot Reason = "WaitingForSlot"
	// ReasonWaitingForMigration: an older migration of the same guest is not
	// finished.
	ReasonWaitingForMigration Reason = "WaitingForMigration"
	// ReasonWaitingForGuest: the guest does not run on an owner yet.
	ReasonWaitingForGuest Reason = "WaitingForGuest"
	// ReasonWaitingForSourcePod: the guest's Pod is not known yet.
	ReasonWaitingForSourcePod Reason = "WaitingForSourcePod"
	// ReasonWaitingForPod: the guest has another Pod, left behind by something.
	ReasonWaitingForPod Reason = "WaitingForOtherPod"
	// ReasonUtilityVolumes: utility volumes must be detached first.
	ReasonUtilityVolumes Reason = "UtilityVolumesPresent"
	// ReasonPlugging: a volume of the guest is being unplugged, or memory dumped.
	ReasonPlugging Reason = "VolumesChanging"
	// ReasonWaitingForAttachment: the Pod that brings plugged volumes to the target
	// does not run yet.
	ReasonWaitingForAttachment Reason = "WaitingForAttachmentPod"
	// ReasonWaitingForState: a claim with the guest's state is not there.
	ReasonWaitingForState Reason = "WaitingForStateClaim"
	// ReasonStateClaim: the guest moved, the claim with its state is not marked yet.
	ReasonStateClaim Reason = "StateClaimHandOff"
	// ReasonBackup: a backup of the guest must end first.
	ReasonBackup Reason = "BackupInProgress"
	// ReasonBackoff: the last automatic migrations of the guest have failed.
	ReasonBackoff Reason = "BackingOff"
	// ReasonPolicyInvalid: the MigrationPolicy in force has a value that cannot be
	// carried out, see [PolicyError].
	ReasonPolicyInvalid Reason = "MigrationPolicyInvalid"
	// ReasonQuota: a ResourceQuota refused the target Pod.
	ReasonQuota Reason = "ResourceQuotaExceeded"
	// ReasonCreateFailed: the API server refused the target Pod; it is retried.
	ReasonCreateFailed Reason = "TargetPodCreateFailed"
	// ReasonWaitingForTargetPod: the target Pod is being scheduled or started.
	ReasonWaitingForTargetPod Reason = "WaitingForTargetPod"
	// ReasonWaitingForTargetNode: the target node gets ready to receive.
	ReasonWaitingForTargetNode Reason = "WaitingForTargetNode"
	// ReasonWaitingForSourceNode: the source node has not begun to send.
	ReasonWaitingForSourceNode Reason = "WaitingForSourceNode"
	// ReasonMoving: the hypervisors move the guest.
	ReasonMoving Reason = "Moving"
	// ReasonCompleting: the guest runs on the target, which tidies up.
	ReasonCompleting Reason = "Completing"
	// ReasonLiveUpdate: the guest moved, a live update of it is not finished.
	ReasonLiveUpdate Reason = "WaitingForLiveUpdate"
	// ReasonAborting: the nodes were asked to abort and have not answered.
	ReasonAborting Reason = "Aborting"
	// ReasonCancelling: the move is being called off before it began.
	ReasonCancelling Reason = "Cancelling"
	// ReasonLeaseUnreadable: the guest's handoff annotation is damaged, so
	// nothing is known of its owner and nothing is touched.
	ReasonLeaseUnreadable Reason = "LeaseUnreadable"
)

// Reasons to fail.
const (
	// ReasonGuestNotFound: the VirtualMachineInstance does not exist.
	ReasonGuestNotFound Reason = "GuestNotFound"
	// ReasonGuestFinal: the guest has ended.
	ReasonGuestFinal Reason = "GuestEnded"
	// ReasonGuestAway: the node that was to be evacuated has no such guest any more.
	ReasonGuestAway Reason = "GuestHasLeft"
	// ReasonGuestDeleted: the guest is being deleted.
	ReasonGuestDeleted Reason = "GuestDeleted"
	// ReasonNotMigratable: the guest's LiveMigratable condition is False.
	ReasonNotMigratable Reason = "NotLiveMigratable"
	// ReasonInvalidSpec: the migration contradicts itself.
	ReasonInvalidSpec Reason = "InvalidSpec"
	// ReasonUnsupported: the migration needs something not supported yet.
	ReasonUnsupported Reason = "NotSupportedYet"
	// ReasonConflict: another migration of the guest is running.
	ReasonConflict Reason = "AnotherMigrationRunning"
	// ReasonAborted: the migration was deleted before it finished.
	ReasonAborted Reason = "Aborted"
	// ReasonPendingTimeout: the migration was not admitted in time.
	ReasonPendingTimeout Reason = "PendingTimeout"
	// ReasonNoNode: no node can ever match the target Pod.
	ReasonNoNode Reason = "NoNodeMatches"
	// ReasonUnschedulable: no node took the target Pod in time.
	ReasonUnschedulable Reason = "TargetPodUnschedulable"
	// ReasonTargetPodTimeout: the target Pod was not ready in time.
	ReasonTargetPodTimeout Reason = "TargetPodTimeout"
	// ReasonTargetPodLost: the target Pod was deleted or ended.
	ReasonTargetPodLost Reason = "TargetPodLost"
	// ReasonAttachmentLost: the Pod that brings plugged volumes to the target was
	// deleted or ended.
	ReasonAttachmentLost Reason = "AttachmentPodLost"
	// ReasonTargetPodForeign: a Pod of the target's name belongs to somebody
	// else.
	ReasonTargetPodForeign Reason = "TargetPodForeign"
	// ReasonRender: the target Pod cannot be rendered from the guest.
	ReasonRender Reason = "TargetPodRenderFailed"
	// ReasonSameNode: the target Pod was put on the source node.
	ReasonSameNode Reason = "TargetIsSource"
	// ReasonHandOffTimeout: the guest could not be handed over in time.
	ReasonHandOffTimeout Reason = "HandOffTimeout"
	// ReasonPrepareTimeout: the target node was not ready in time.
	ReasonPrepareTimeout Reason = "PrepareTimeout"
	// ReasonBeginTimeout: the source node did not begin in time.
	ReasonBeginTimeout Reason = "BeginTimeout"
	// ReasonMoveTimeout: the move took longer than its budget.
	ReasonMoveTimeout Reason = "MoveTimeout"
	// ReasonNodeReported: a node reported that the move failed.
	ReasonNodeReported Reason = "NodeReportedFailure"
	// ReasonStateLost: the guest's migration state was cleared or taken over.
	ReasonStateLost Reason = "MigrationStateLost"
)

// failures are the reasons that may stand in front of a failure text on the
// guest, so that the reason survives a crash between two writes.
var failures = map[Reason]bool{
	ReasonAborted: true, ReasonGuestDeleted: true, ReasonTargetPodLost: true, ReasonAttachmentLost: true, ReasonHandOffTimeout: true,
	ReasonPrepareTimeout: true, ReasonBeginTimeout: true, ReasonMoveTimeout: true, ReasonStateLost: true,
	ReasonSameNode: true, ReasonNodeReported: true,
	// Of migrations between clusters any reason may come from the other side.
	ReasonSynchronizeTimeout: true, ReasonReceiverTimeout: true, ReasonPendingTimeout: true, ReasonUnschedulable: true,
	ReasonTargetPodTimeout: true, ReasonGuestFinal: true, ReasonGate: true, ReasonNotMigratable: true, ReasonRender: true,
	ReasonUnsupported: true, ReasonNotReceivable: true, ReasonGuestAway: true, ReasonUtilityVolumes: true,
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

// Condition types of the migration that are ours; those of KubeVirt keep their
// names.
const (
	// ConditionWaiting is True while the migration is unfinished and tells who
	// has to do what next. It is absent on a finished migration.
	ConditionWaiting v1.VirtualMachineInstanceMigrationConditionType = "migrationWaiting"
	// ConditionNoNode is True from when no node matched the target Pod until the Pod is
	// made; see [Config.AwaitNodes].
	ConditionNoNode v1.VirtualMachineInstanceMigrationConditionType = "virtloom.dev/NoNodeMatches"
	// ConditionFailed is True on a failed migration; its reason is typed.
	ConditionFailed v1.VirtualMachineInstanceMigrationConditionType = "migrationFailed"
)

// setCondition puts the condition, touching its transition time only when
// status or reason change, and nothing at all when all is as it was.
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
