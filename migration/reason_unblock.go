// SPDX-License-Identifier: Apache-2.0

package migration

// unblockedBy holds, for reasons with a fixed remedy, the event that lets the migration
// continue.
var unblockedBy = map[Reason]string{
	ReasonWaitingForGuest:      "the VMI runs on a node that owns it, with no migration under way",
	ReasonWaitingForSourcePod:  "the Pod in which the VMI runs is observed",
	reasonUtilityVolumes:       "the utility volumes are detached",
	reasonPlugging:             "the VMI's volumes are neither being unplugged nor dumped into",
	reasonWaitingForAttachment: "the Pod that brings hotplugged volumes to the target runs",
	reasonWaitingForState:      "the claim for the VMI's state exists",
	reasonStateClaim:           "the claim with the VMI's state is labelled",
	ReasonBackup:               "the backup of the VMI ends",
	ReasonBackoff:              "the back-off after failed attempts is over",
	ReasonNoNode:               "a node is added or labelled so that it matches",
	reasonCancelling:           "the migration state of the VMI is rolled back",
	ReasonQuota:                "a ResourceQuota of the namespace is raised or deleted, or usage decreases",
	ReasonCreateFailed:         "the API server accepts the target Pod; its creation is retried",
	reasonWaitingForTargetPod:  "the target Pod is ready on a node",
	ReasonUnschedulable:        "a node fits the target Pod: one joins, is uncordoned, or has free resources again",
	reasonWaitingForTargetNode: "the agent of the target node is ready to receive",
	reasonWaitingForSourceNode: "the agent of the source node begins to send",
	ReasonMoving:               "a node reports how the migration has ended",
	reasonCompleting:           "the agent of the target node completes the migration",
	reasonLiveUpdate:           "the live update of the VMI is finished",
	reasonAborting:             "a node reports that the migration has ended",
	reasonSynchronizing:        "the synchronization controllers of both clusters have copied the other side's state",
	reasonWaitingForReceiver:   "the receiving migration is admitted, and its target Pod is scheduled",
	ReasonLeaseUnreadable:      "the VMI's handoff annotation is restored",
}

// Unblock returns the event that lets a migration continue that waits for the reason; empty where that depends on more
// than the reason.
func (r Reason) Unblock() string { return unblockedBy[r] }
