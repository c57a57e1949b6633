// SPDX-License-Identifier: Apache-2.0

package mutation

// moves are bugs of package migration.
var moves = []Plant{
	{
		Name: "decides on caches that do not show its writes", File: "migration/decide.go", Package: "migration", Run: "^TestPendingWrites_DecideNothing$",
		Old: "case s.Pending != \"\":\n", New: "case s.Pending == \"never\":\n",
	},
	{
		Name: "a late handoff is not prevented", File: "migration/stop.go", Package: "migration", Run: "^TestEndedMigration_RejectsLateHandoff$",
		Old: "if position(d).handoffMayFollow() {", New: "if position(d).handoffMayFollow() && d.ms != nil {",
	},
	{
		Name: "the abort is forgotten", File: "migration/stop.go", Package: "migration", Run: "^TestAbort_EveryPhase$",
		Old: "\t\td.askToAbort()\n", New: "",
	},
	{
		Name: "a move that has begun is called off", File: "migration/position.go", Package: "migration", Run: "^TestCrash_AbortLeavesOneOwner$",
		Old: "case d.lease.Switching():\n\t\treturn true, begunMoving", New: "case d.lease.Switching():\n\t\treturn true, prepared",
	},
	{
		Name: "the target Pod goes with the guest in it", File: "migration/finish.go", Package: "migration", Run: "^TestTidyUp_CurrentPodIsKept$",
		Old: "p.DeletionTimestamp == nil && !d.runsIn(p) {", New: "p.DeletionTimestamp == nil {",
	},
	{
		Name: "source for target when a migration is tidied up", File: "migration/finish.go", Package: "migration", Run: "^TestCrash_OutcomeUnchanged$",
		Old: "d.lease.MayRun(node) && !d.lease.MayRun(p.Spec.NodeName)", New: "d.lease.MayRun(p.Spec.NodeName) && !d.lease.MayRun(node)",
	},
	{
		Name: "the source Pod goes while its node may run the guest", File: "migration/finish.go", Package: "migration", Run: "^TestTidyUp_SourcePodStaysWhileItsNodeMayRunTheGuest$",
		Old: "d.lease.Holder == node && d.lease.MayRun(node) && !d.lease.MayRun(p.Spec.NodeName)", New: "true",
	},
	{
		Name: "finalizer goes before the actions are done", File: "migration/conclude.go", Package: "migration", Run: "^TestStateClaim_LabeledAfterEnd$",
		Old: "d.plan.Release = d.plan.Release && len(d.plan.Actions) == 0", New: "d.plan.Release = d.plan.Release || len(d.plan.Actions) == 99",
	},
	{
		Name: "finalizer goes before the prepared move is called off", File: "migration/finish.go", Package: "migration", Run: "^TestTidyUp_FailedMigrationRollsBackState$",
		Old: "\t\tcase prepared:\n\t\t\tr, message := ReasonAborted", New: "\t\tcase standing(99):\n\t\t\tr, message := ReasonAborted",
	},
	{
		Name: "a guest moves to the node that it is on", File: "migration/phases.go", Package: "migration", Run: "^TestEndedMigration_RejectsLateHandoff$",
		Old: "case target == d.s.VMI.Status.NodeName && !d.receives():", New: "case target == \"\":",
	},
	{
		Name: "the handoff is sent before its phase is stored", File: "migration/phases.go", Package: "migration", Run: "^TestHandOff_AfterPhaseIsStored$",
		Old: "case !position(d).mayHandOff():\n", New: "case d.plan.Status.Phase == \"\":\n",
	},
	{
		Name: "<= for < in when a phase is overdue", File: "migration/decide.go", Package: "migration", Run: "^TestDeadlines$",
		Old: "return at, !at.IsZero() && !d.now.Before(at)", New: "return at, !at.IsZero() && d.now.After(at)",
	},
	{
		Name: "another migration's outcome counts", File: "migration/position.go", Package: "migration", Run: "^TestForestall_OnlyWithPossibleHandoff$",
		Old: "case d.lease.Tag != uid:\n", New: "case d.lease.Tag == \"\":\n",
	},
}
