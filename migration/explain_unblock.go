// SPDX-License-Identifier: Apache-2.0

package migration

import (
	"fmt"
	"strings"

	v1 "kubevirt.io/api/core/v1"
)

// unblockedBy tells, for reasons whose remedy is always the same, which event lets
// the migration go on.
var unblockedBy = map[Reason]string{
	ReasonWaitingForGuest:      "its guest is running on a node that owns it, in no move",
	ReasonWaitingForSourcePod:  "the Pod in which the guest runs is seen",
	ReasonUtilityVolumes:       "the utility volumes are detached",
	ReasonPlugging:             "the guest's volumes are settled",
	ReasonWaitingForAttachment: "the Pod that brings plugged volumes to the target runs",
	ReasonWaitingForState:      "the claim for the guest's state is there",
	ReasonStateClaim:           "the claim with the guest's state is labelled",
	ReasonBackup:               "the backup of the guest ends",
	ReasonBackoff:              "the back-off after failed attempts is over",
	ReasonNoNode:               "a node is added or labelled so that it matches",
	ReasonCancelling:           "the guest is as it was before",
	ReasonQuota:                "a ResourceQuota of the namespace is raised or deleted, or what it counts becomes less",
	ReasonCreateFailed:         "the API server accepts the target Pod, which is tried again and again",
	ReasonWaitingForTargetPod:  "the target Pod is ready on a node",
	ReasonUnschedulable:        "a node takes the target Pod: one joins, is uncordoned, or has room again",
	ReasonWaitingForTargetNode: "the agent of the target node is ready to receive",
	ReasonWaitingForSourceNode: "the agent of the source node begins to send",
	ReasonMoving:               "a node reports how the move has ended",
	ReasonCompleting:           "the agent of the target node completes the migration",
	ReasonLiveUpdate:           "the live update of the guest is finished",
	ReasonAborting:             "a node reports that the move has ended",
	ReasonSynchronizing:        "the synchronization controllers of both clusters have carried over what the other side says",
	ReasonWaitingForReceiver:   "the receiving migration gets its turn there, and its target Pod a node",
	ReasonLeaseUnreadable:      "the guest's handoff annotation is restored",
}

// unblocks returns the event that lets the migration go on.
func unblocks(s Snapshot, e *Explanation) string {
	if e.Phase == v1.MigrationSucceeded || e.Phase == v1.MigrationFailed {
		return ""
	}
	switch e.Reason {
	case ReasonWaitingForSlot:
		return freed(e)
	case ReasonWaitingForMigration:
		for _, o := range []*v1.VirtualMachineInstanceMigration{s.Older(), s.owner()} {
			if o != nil {
				return fmt.Sprintf("migration %q of the same guest ends or is deleted", o.Name)
			}
		}
	}
	for _, c := range e.Checks {
		if c.Blocked && c.Reason == e.Reason && c.Unblock != "" {
			return c.Unblock
		}
	}
	return unblockedBy[e.Reason]
}

// freed tells which slots are to become free.
func freed(e *Explanation) string {
	if len(e.Blockers) == 0 {
		return "those ahead of it in the queue have their slots, and one more is free"
	}
	var parts []string
	for _, b := range e.Blockers {
		parts = append(parts, b.lifted())
	}
	return strings.Join(parts, ", and ")
}

// lifted says what takes the limit out of the way.
func (o Obstacle) lifted() string {
	which := "migrations"
	switch {
	case o.Max <= 0:
		return string(o.Limit) + " is raised"
	case o.Limit == LimitBandwidth:
		return fmt.Sprintf("migrations take less of the bandwidth of node %s (one ends, or %s is raised)", o.Node, o.Limit)
	case o.Limit == LimitOutbound:
		which += " leaving node " + o.Node
	case o.Limit == LimitInbound:
		which += " entering node " + o.Node
	case o.Limit == LimitCluster:
		which += " of the cluster"
	}
	return fmt.Sprintf("fewer than %d %s hold slots (one ends, or %s is raised)", o.Max, which, o.Limit)
}
