// SPDX-License-Identifier: Apache-2.0

package migration

import (
	"strings"

	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
)

// position says how far the handoff has come, by the lease or by KubeVirt's protocol.
type position struct{ *decision }

// standing reads the lease where there is one, else KubeVirt's own fields.
func (d position) standing() standing {
	if d.decentralized() {
		return d.standingApart()
	}
	if d.leased {
		if known, s := d.leaseStanding(); known {
			return s
		}
	}
	switch ms := d.ms; {
	case ms == nil:
		return notHandedOff
	case ms.Failed:
		return stayed
	case ms.Completed:
		return arrived
	case ms.StartTimestamp != nil && !d.leased:
		return begunMoving
	}
	return prepared
}

// leaseStanding reads this migration's part of the lease, if it has one.
func (d position) leaseStanding() (known bool, s standing) {
	uid := d.s.uid()
	switch {
	case d.lease.Tag != uid:
	case d.lease.Switching():
		return true, begunMoving
	case d.lease.InMove():
		return true, prepared
	}
	switch last, known := d.lease.MoveOutcome(uid); {
	case !known:
		return false, notHandedOff
	case last.Result == handoff.ResultMoved:
		return true, arrived
	}
	return true, stayed
}

// standingApart returns how far a decentralized migration has come. The shared state comes
// first: the lease of a VMI that has left the cluster ends as if it had not been migrated.
func (d position) standingApart() standing {
	ms := d.ms
	switch {
	case ms == nil:
		return notHandedOff
	case ms.Failed, closedEarly(ms):
		return stayed
	case ms.Completed, d.sends() && reported(ms):
		return arrived
	case d.receives() && (ms.TargetNodeAddress != "" || sighted(ms)):
		// The source may begin at any moment, and reports it later.
		return begunMoving
	}
	return d.standingHere()
}

// standingHere reads the lease, which a node that supports leases updates before it begins; other
// nodes report the begin in the migration state alone.
func (d position) standingHere() standing {
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

func (d position) handedOff() bool {
	if d.receives() {
		return d.ms != nil && d.ms.MigrationUID == d.s.uid()
	}
	return d.standing() != notHandedOff
}

func (d position) begun() bool { s := d.standing(); return s == begunMoving || s == arrived }

// moved reports whether the VMI is known to run on the target, with its
// migration state still there to report it.
func (d position) moved() bool { return d.ms != nil && d.standing() == arrived }

// movedByLease reports whether the VMI has migrated by its lease, whatever its migration
// state says.
func (d position) movedByLease() bool {
	return d.leased && (d.ms == nil || d.ms.Failed) && d.lease.Holder == d.s.VMI.Status.NodeName
}

// mayHandOff reports whether the stored phase is one in which a handoff may be in flight when
// the migration ends.
func (d position) mayHandOff() bool {
	p := d.s.Migration.Status.Phase
	return p == v1.MigrationScheduling || p == v1.MigrationScheduled
}

// handoffMayFollow reports whether a handoff, sent by a crashed process or an earlier leader,
// may be in flight to the VMI as observed here. Handoffs are sent in the stored phases
// Scheduling and Scheduled alone, and to no VMI whose migration state or lease is another
// migration's.
func (d position) handoffMayFollow() bool {
	return d.mayHandOff() && d.leased && !d.lease.InMove() && d.s.Owner() == nil
}

// stored returns why the migration failed by its state on the VMI.
func (d position) stored() cause {
	text := d.ms.FailureReason
	if head, tail, found := strings.Cut(text, ": "); found && d.ms.TargetNode == "" && !strings.Contains(head, " ") {
		// Without a target no node has read it: the text is forestall's.
		return cause{Reason(head), tail}
	}
	r, message := splitFailure(text)
	if message == "" {
		return interrupt(d).unexplained()
	}
	return cause{r, message}
}
