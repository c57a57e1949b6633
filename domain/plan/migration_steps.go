// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"slices"
)

// MigrationStep is a point of a live migration at one of its two nodes, between two effects: a
// crash at this point must do no harm.
type MigrationStep string

// The steps, in their order at the source and at the target. Each is reached after the effect
// in its comment, and before any other.
const (
	// SourceAsked: the source has observed that the target is ready.
	SourceAsked MigrationStep = "source/asked"
	// SourceBegun: the source has stored the start of the migration.
	SourceBegun MigrationStep = "source/begun"
	// SourceDialled: the route to the target is open ([transport.Transport.Dial]).
	SourceDialled MigrationStep = "source/dialled"
	// SourceMoving: the source has observed that the hypervisor migrates the domain.
	SourceMoving MigrationStep = "source/moving"
	// SourceDisrupting: the advice of the monitor is carried out: post-copy, or a pause.
	SourceDisrupting MigrationStep = "source/disrupting"
	// SourceReturned: the hypervisor has returned the outcome, which is not stored.
	SourceReturned MigrationStep = "source/returned"
	// SourceReverted: the source has stored that the VMI stays.
	SourceReverted MigrationStep = "source/reverted"
	// SourceLeft: the source has observed that the VMI is another node's; its domain and files
	// here are not removed.
	SourceLeft MigrationStep = "source/left"

	// TargetAsked: the target has observed that it has to prepare.
	TargetAsked MigrationStep = "target/asked"
	// TargetPrepared: the VMI's files are in place.
	TargetPrepared MigrationStep = "target/prepared"
	// TargetListening: the target listens ([transport.Transport.Listen]); nothing is stored.
	TargetListening MigrationStep = "target/listening"
	// TargetReady: the target has stored that it is ready.
	TargetReady MigrationStep = "target/ready"
	// TargetDetected: the target has observed a domain for the VMI.
	TargetDetected MigrationStep = "target/detected"
	// TargetArrived: the target has observed that the domain runs; nothing is stored.
	TargetArrived MigrationStep = "target/arrived"
	// TargetTaken: the target has stored that the VMI is its own; the pending changes are not
	// done.
	TargetTaken MigrationStep = "target/taken"
	// TargetFinalizing: the pending changes are done; nothing is stored.
	TargetFinalizing MigrationStep = "target/finalizing"
	// TargetCompleted: the end of the migration is stored; the tunnel is not closed.
	TargetCompleted MigrationStep = "target/completed"
)

var migrationSteps = []MigrationStep{
	SourceAsked, SourceBegun, SourceDialled, SourceMoving, SourceDisrupting, SourceReturned, SourceReverted, SourceLeft,
	TargetAsked, TargetPrepared, TargetListening, TargetReady, TargetDetected, TargetArrived, TargetTaken, TargetFinalizing, TargetCompleted,
}

// MigrationSteps returns all steps, those of the source first.
func MigrationSteps() []MigrationStep { return slices.Clone(migrationSteps) }
