// SPDX-License-Identifier: Apache-2.0

package mutation

// nodes are bugs of package domain.
var nodes = []Plant{
	{
		Name: "a domain of an earlier object counts as the guest", File: "domain/plan/decide.go", Package: "domain/plan", Run: "^TestDecide_HeldAwaitsSource$",
		Old: "earlier := d.State != nil && d.State.Metadata.UID != d.VMI.UID", New: "earlier := d.State != nil && d.State.Metadata.UID == \"\"",
	},
	{
		Name: "somebody else's domain counts as the guest", File: "domain/plan/decide.go", Package: "domain/plan", Run: "^TestDecide_ForeignDomain$",
		Old: "if m := d.State.Metadata; d.State.Ours() && domain.Name(m.Namespace, m.Name) == d.State.Name {", New: "if d.State.Name != \"\" {",
	},
	{
		Name: "a domain of the epoch before counts as begun", File: "domain/plan/decide.go", Package: "domain/plan", Run: "^TestDecide_DomainOfEarlierHandoff$",
		Old: "d.State.Metadata.Epoch >= epoch", New: "d.State.Metadata.Epoch+1 >= epoch",
	},
	{
		Name: "files of a guest that may run on them are removed", File: "domain/plan/decide_stray.go", Package: "domain/plan", Run: "^TestDecide_DomainWithoutMetadataOrVMI$",
		Old: "|| d.State != nil && d.State.Metadata.UID == uid {", New: "{",
	},
	{
		Name: "a guest that two nodes claim is ended", File: "domain/plan/decide_stray.go", Package: "domain/plan", Run: "^TestDecide_OwnerByLabels$",
		Old: "if d.disputed() {", New: "if d.disputed() && d.State == nil {",
	},
	{
		Name: "a guest that may run elsewhere is asked to shut down", File: "domain/plan/decide_stray.go", Package: "domain/plan", Run: "^TestDecide_HeldAwaitsSource$",
		Old: "|| source(d).handingOver() || d.State.Held() {", New: "{",
	},
	{
		Name: "starts without the lease's leave", File: "domain/plan/decide_holder.go", Package: "domain/plan", Run: "^TestDecide_StopIsStoredFirst$",
		Old: "|| !d.lease.MayStart(d.Node) {", New: "{",
	},
	{
		Name: "starts again a guest that has ended", File: "domain/plan/decide_holder.go", Package: "domain/plan", Run: "^TestDecide_StartsOnce$",
		Old: "case domain.ReasonUnknown, domain.ReasonFailed, \"\":\n\t\treturn true\n\t}\n\treturn false", New: "case domain.ReasonUnknown, domain.ReasonFailed, \"\":\n\t\treturn true\n\t}\n\treturn d.State.Reason != domain.ReasonMigrated",
	},
	{
		Name: "a source that ran on gives the guest away", File: "domain/plan/decide_holder.go", Package: "domain/plan", Run: "^TestDecide_HeldAwaitsSource$",
		Old: "if d.ranOn() {", New: "if d.ranOn() && d.now.IsZero() {",
	},
	{
		Name: "stopped for the switch and resumed during it", File: "domain/plan/decide_pause.go", Package: "domain/plan", Run: "^TestDecide_PausedForSwitch$",
		Old: "d.State.Reason == domain.ReasonMigration &&\n\t\t!d.Migrating && !d.MigrationActive && !d.meta.Paused", New: "d.State.Reason == domain.ReasonMigration &&\n\t\t!d.meta.Paused",
	},
	{
		Name: "the source runs on while the target is to answer", File: "domain/plan/decide_source.go", Package: "domain/plan", Run: "^TestDecide_StalledHolderWaits$",
		Old: "case d.lease.Stalled:\n\t\treturn d.rejoin()", New: "case d.lease.Stalled && d.torn():\n\t\treturn d.rejoin()",
	},
	{
		Name: "a move is tried twice", File: "domain/plan/decide_source.go", Package: "domain/plan", Run: "^TestDecide_MigrationSafety$",
		Old: "known || d.lease.Tag != \"\" && d.meta.MigrationUID == d.lease.Tag {", New: "known {",
	},
	{
		Name: "the abort is not passed on", File: "domain/plan/decide_source.go", Package: "domain/plan", Run: "^TestDecide_AbortsMigration$",
		Old: "case abort || d.abortRequested():", New: "case abort && d.abortRequested():",
	},
	{
		Name: "a held guest is let go before its source has left it", File: "domain/plan/decide_target.go", Package: "domain/plan", Run: "^TestDecide_HeldAwaitsSource$",
		Old: "return !d.mayBeHeld() || d.lease.Stalled", New: "return true",
	},
	{
		Name: "a held guest is let go before that, by the explorer", File: "domain/plan/decide_target.go",
		Package: "internal/explore", Run: "^TestSmall$/^switch,_held$",
		Old: "return !d.mayBeHeld() || d.lease.Stalled", New: "return true",
	},
	{
		Name: "a held guest is kept although its source is gone", File: "domain/plan/decide_target.go", Package: "domain/plan", Run: "^TestDecide_HeldAwaitsSource$",
		Old: "case d.mayBeHeld() && !d.lease.Stalled:\n", New: "case d.mayBeHeld() && d.lease.Stalled && d.now.IsZero():\n",
	},
	{
		Name: "the target takes over before it has arrived", File: "domain/plan/decide_target.go", Package: "domain/plan", Run: "^TestDecide_TargetAwaitsSwitch$",
		Old: "if d.State == nil || d.MigrationActive {\n\t\treturn false", New: "if d.State == nil {\n\t\treturn false",
	},
	{
		Name: "a node prepares what only its own object says is its", File: "domain/plan/prepare.go", Package: "domain/plan", Run: "^TestPreparations_ForgedOwnership$",
		Old: "if !s.alive() {", New: "if s.State != nil && !s.alive() {",
	},
	{
		Name: "a target is ready and does not listen", File: "domain/plan/prepare.go", Package: "internal/explore", Run: "^TestSmall$/^move$",
		Old: "if target {", New: "if target && !asked {",
	},
	{
		Name: "a target is ready although it cannot listen", File: "domain/plan/prepare.go", Package: "internal/explore", Run: "^TestSmall$/^move,_unprepared$",
		Old: "transport.TunnelOf(s.VMI, s.Node), Needed: asked,", New: "transport.TunnelOf(s.VMI, s.Node), Needed: !target,",
	},
	{
		Name: "some tasks need no word from the API server", File: "domain/action/action.go", Package: "domain/plan", Run: "^TestDecide_StartsOnce$",
		Old: "return a.Verb != Apply || a.Operation.Verb != domain.SetMetadata", New: "return a.Verb != Apply",
	},
	{
		Name: "the target is a target in no state", File: "handoff/role.go", Package: "domain/plan", Run: "^TestDoc_Roles$",
		Old: "case l.Target == node && (l.InMove() || l.Switching()):", New: "case l.Target == node && l.InMove():",
	},
}
