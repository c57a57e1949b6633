// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"fmt"
	"strings"

	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/migration"
	"github.com/virtloom/virtloom/migration/queue"
)

// unblocks returns the event that lets the migration continue.
func unblocks(s migration.Snapshot, e *Explanation) string {
	if e.Phase == v1.MigrationSucceeded || e.Phase == v1.MigrationFailed {
		return ""
	}
	switch e.Reason {
	case migration.ReasonWaitingForSlot:
		return freed(e)
	case migration.ReasonWaitingForMigration:
		for _, o := range []*v1.VirtualMachineInstanceMigration{s.Older(), s.Owner()} {
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
	return e.Reason.Unblock()
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
func (o ExhaustedLimit) lifted() string {
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
