// SPDX-License-Identifier: Apache-2.0

package domain

import "slices"

// MigrationStep is a point in the life of a live migration at one of its two nodes,
// between two effects: a crash there must do no harm.
type MigrationStep string

// The steps, in their order at the source and at the target. Each is reached after what
// its comment says, and before anything else is done.
const (
	// SourceAsked: the source has seen that the target is ready.
	SourceAsked MigrationStep = "source/asked"
	// SourceBegun: that the move begins is stored.
	SourceBegun MigrationStep = "source/begun"
	// SourceDialled: the way to the target is open ([Transport.Dial]).
	SourceDialled MigrationStep = "source/dialled"
	// SourceMoving: the hypervisor was seen to move the guest.
	SourceMoving MigrationStep = "source/moving"
	// SourceDisrupting: the monitor's help has been given: post-copy, or the guest was
	// paused.
	SourceDisrupting MigrationStep = "source/disrupting"
	// SourceReturned: the hypervisor says how the move ended; nothing is stored.
	SourceReturned MigrationStep = "source/returned"
	// SourceReverted: that the guest stays is stored.
	SourceReverted MigrationStep = "source/reverted"
	// SourceLeft: the guest was seen to be another node's; what is left of it here is
	// not removed.
	SourceLeft MigrationStep = "source/left"

	// TargetAsked: the target has seen that it shall get ready.
	TargetAsked MigrationStep = "target/asked"
	// TargetPrepared: the guest's files are in place.
	TargetPrepared MigrationStep = "target/prepared"
	// TargetListening: the target can be reached ([Transport.Listen]); nothing is
	// stored.
	TargetListening MigrationStep = "target/listening"
	// TargetReady: that it is ready is stored.
	TargetReady MigrationStep = "target/ready"
	// TargetDetected: a domain for the guest was seen.
	TargetDetected MigrationStep = "target/detected"
	// TargetArrived: the guest was seen to run here; nothing is stored.
	TargetArrived MigrationStep = "target/arrived"
	// TargetTaken: that the guest is this node's is stored; what waited for it is not
	// done.
	TargetTaken MigrationStep = "target/taken"
	// TargetFinalizing: what waited is done; nothing is stored.
	TargetFinalizing MigrationStep = "target/finalizing"
	// TargetCompleted: the end of the migration is stored; the way from the source is
	// not closed.
	TargetCompleted MigrationStep = "target/completed"
)

var migrationSteps = []MigrationStep{
	SourceAsked, SourceBegun, SourceDialled, SourceMoving, SourceDisrupting, SourceReturned, SourceReverted, SourceLeft,
	TargetAsked, TargetPrepared, TargetListening, TargetReady, TargetDetected, TargetArrived, TargetTaken, TargetFinalizing, TargetCompleted,
}

// MigrationSteps returns all steps, those of the source first.
func MigrationSteps() []MigrationStep { return slices.Clone(migrationSteps) }
