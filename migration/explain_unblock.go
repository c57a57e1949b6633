// SPDX-License-Identifier: Apache-2.0

package migration

import (
	"fmt"
	"strings"

	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/migration/queue"
)

// unblockedBy holds, for reasons with a fixed remedy, the event that lets the migration
// continue.
var unblockedBy = map[Reason]string{
	ReasonWaitingForGuest:      "the VMI runs on a node that owns it, with no migration under way",
	ReasonWaitingForSourcePod:  "the Pod in which the VMI runs is observed",
	ReasonUtilityVolumes:       "the utility volumes are detached",
	ReasonPlugging:             "the VMI's volumes are neither being unplugged nor dumped into",
	ReasonWaitingForAttachment: "the Pod that brings hotplugged volumes to the target runs",
	ReasonWaitingForState:      "the claim for the VMI's state exists",
	ReasonStateClaim:           "the claim with the VMI's state is labelled",
	ReasonBackup:               "the backup of the VMI ends",
	ReasonBackoff:              "the back-off after failed attempts is over",
	ReasonNoNode:               "a node is added or labelled so that it matches",
	ReasonCancelling:           "the migration state of the VMI is rolled back",
	ReasonQuota:                "a ResourceQuota of the namespace is raised or deleted, or usage decreases",
	ReasonCreateFailed:         "the API server accepts the target Pod; its creation is retried",
	ReasonWaitingForTargetPod:  "the target Pod is ready on a node",
	ReasonUnschedulable:        "a node fits the target Pod: one joins, is uncordoned, or has free resources again",
	ReasonWaitingForTargetNode: "the agent of the target node is ready to receive",
	ReasonWaitingForSourceNode: "the agent of the source node begins to send",
	ReasonMoving:               "a node reports how the migration has ended",
	ReasonCompleting:           "the agent of the target node completes the migration",
	ReasonLiveUpdate:           "the live update of the VMI is finished",
	ReasonAborting:             "a node reports that the migration has ended",
	ReasonSynchronizing:        "the synchronization controllers of both clusters have copied the other side's state",
	ReasonWaitingForReceiver:   "the receiving migration is admitted, and its target Pod is scheduled",
	ReasonLeaseUnreadable:      "the VMI's handoff annotation is restored",
}

// unblocks returns the event that lets the migration continue.
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
				return fmt.Sprintf("migration %q of the same VMI ends or is deleted", o.Name)
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

// freed returns which slots must become free.
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

// lifted returns what lifts the limit.
func (o Obstacle) lifted() string {
	which := "migrations"
	switch {
	case o.Max <= 0:
		return string(o.Limit) + " is raised"
	case o.Limit == queue.LimitBandwidth:
		return fmt.Sprintf("migrations take less of the bandwidth of node %s (one ends, or %s is raised)", o.Node, o.Limit)
	case o.Limit == queue.LimitOutbound:
		which += " leaving node " + o.Node
	case o.Limit == queue.LimitInbound:
		which += " entering node " + o.Node
	case o.Limit == queue.LimitCluster:
		which += " of the cluster"
	}
	return fmt.Sprintf("fewer than %d %s hold slots (one ends, or %s is raised)", o.Max, which, o.Limit)
}
