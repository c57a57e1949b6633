// SPDX-License-Identifier: Apache-2.0

package mutation

import "slices"

// Plants returns the bugs that are planted.
func Plants() []Plant {
	return slices.Concat(leases, writes, guests, machines, moves, nodes, controllers)
}

// leases are bugs of who may act, and when.
var leases = []Plant{
	{
		Name: "epoch of an event not compared", File: "handoff/step.go", Package: "handoff", Run: "^TestStep_Invariants$",
		Old: "if e.Epoch != l.Epoch {", New: "if e.Epoch > l.Epoch {",
	},
	{
		Name: "fence before the deadline", File: "handoff/step.go", Package: "handoff", Run: "^TestFence_RequiresEvidence$",
		Old: "e.Evidence.Kind != FenceConfirmed && !l.Overdue(now)", New: "e.Evidence.Kind != FenceConfirmed && l.Epoch == 0",
	},
	{
		Name: "revert after a stall", File: "handoff/table.go", Package: "handoff", Run: "^TestStep_Refused$",
		Old: "sender: fromHolder, epoch: true,\n\t\twhen: notStalled, change: migrationEnds(ResultReverted)},",
		New: "sender: fromHolder, epoch: true,\n\t\tchange: migrationEnds(ResultReverted)},",
	},
	{
		Name: "decline without a stall", File: "handoff/table.go", Package: "handoff", Run: "^TestStep_Refused$",
		Old: "when: stalled, change: migrationEnds(ResultReverted)},", New: "change: migrationEnds(ResultReverted)},",
	},
	{
		Name: "offer under the epoch of before", File: "handoff/table.go", Package: "handoff", Run: "^TestDiagram_MatchesTable$",
		Old: "to: Offered, cause: causeOffered, sender: fromController, epoch: true,", New: "to: Offered, cause: causeOffered, sender: fromController,",
	},
	{
		Name: "source for target when the guest arrives", File: "handoff/table.go", Package: "handoff", Run: "^TestMarshalJSON_Stable$",
		Old: `l.Holder, l.Target, l.Tag, l.Was, l.Stalled = e.Node, "", "", "", false`,
		New: `l.Target, l.Tag, l.Was, l.Stalled = "", "", "", false`,
	},
	{
		Name: "release of a guest that may be at the target", File: "handoff/table.go", Package: "handoff", Run: "^TestRelease_NotWhileTheTargetMayHaveTheGuest$",
		Old: "sender: fromHolder, epoch: true, when: notSwitching, change: release},", New: "sender: fromHolder, epoch: true, change: release},",
	},
	{
		Name: "holder suspected after it has stalled", File: "handoff/table.go", Package: "handoff", Run: "^TestStep_Invariants$",
		Old: "case l.Stalled:\n\t\treturn \"the holder does not run the VMI; the answer of the target is awaited\"\n", New: "",
	},
	{
		Name: "a silence shorter than the fence allows", File: "handoff/table.go", Package: "handoff", Run: "^TestSuspect_MinimumWait$",
		Old: "within: FenceAfter, least: FenceAfter}", New: "within: FenceAfter}",
	},
	{
		Name: "a lease without deadline counts as overdue", File: "handoff/lease.go", Package: "handoff", Run: "^TestOverdue_NeedsADeadline$",
		Old: "return !l.Deadline.IsZero() && !now.Before(l.Deadline.Time)", New: "return l.Deadline.IsZero() || !now.Before(l.Deadline.Time)",
	},
	{
		Name: "overdue a moment after the deadline, not at it", File: "handoff/lease.go", Package: "handoff", Run: "^TestFence_RequiresEvidence$",
		Old: "!now.Before(l.Deadline.Time)", New: "now.After(l.Deadline.Time)",
	},
	{
		Name: "start outside of state Owned", File: "handoff/lease.go", Package: "handoff", Run: "^TestMayStart_OnlyAsItsOwner$",
		Old: "return open && l.State == Owned && l.Holder == node", New: "return open && l.Holder == node",
	},
	{
		Name: "< for <= in how long a word counts", File: "handoff/command.go", Package: "handoff", Run: "^TestAuthorize$",
		Old: "since >= ActWithin", New: "since > ActWithin",
	},
	{
		Name: "a command that is not open any more is authorized", File: "handoff/command.go", Package: "handoff", Run: "^TestAuthorize$",
		Old: "case !slices.Contains(l.Open, c):", New: "case len(l.Open) > 99:",
	},
}
