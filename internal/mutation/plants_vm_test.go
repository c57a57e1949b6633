// SPDX-License-Identifier: Apache-2.0

package mutation

// machines are bugs of package vm and of its controller.
var machines = []Plant{
	{
		Name: "VM: a restart request is not cleared", File: "vm/status.go", Package: "internal/explore", Run: "^TestExplore$/^VM,_restart$",
		Old: "d.requests.fulfilled(d.vmi, d.strategy) {", New: "d.requests.fulfilled(d.vmi, d.strategy) && !d.requests.startQueued() {",
	},
	{
		Name: "VM: a VMI is created on the word of a cache", File: "vm/start.go", Package: "internal/explore", Run: "^TestExplore$/^VM,_stopped_and_started,_two_leaders$",
		Old: "VMI: vmi, If: Precondition{OwnerLive: true}, Why:", New: "VMI: vmi, Why:",
	},
	{
		Name: "VM: a VMI is deleted on the word of a cache", File: "vm/start.go", Package: "internal/explore", Run: "^TestExplore$/^VM,_stopped_and_started",
		Old: "live := d.VM.DeletionTimestamp == nil", New: "live := false",
	},
	{
		Name: "VM: a revision is deleted on the word of a cache", File: "vm/start.go", Package: "internal/explore", Run: "^TestExplore$/^VM,_one_leader_is_behind$",
		Old: "If: Precondition{UID: rev.UID, OwnerLive: true}", New: "If: Precondition{UID: rev.UID}",
	},
	{
		Name: "VM: an earlier generation is remembered", File: "vm/start.go", Package: "internal/explore", Run: "^TestExplore$/^VM,_one_leader_is_behind$",
		Old: "Name: rev.Name, If: Precondition{OwnerLive: true}, Why: \"it remembers", New: "Name: rev.Name, Why: \"it remembers",
	},
	{
		Name: "VM: revisions of earlier generations stay", File: "vm/revision.go", Package: "internal/explore", Run: "^TestExplore$/^VM,_stopped_and_started$",
		Old: "if rev.Name != r.current() && strings", New: "if rev.Name == \"\" && strings",
	},
	{
		Name: "VM: it acts while own writes are unseen", File: "vm/decide.go", Package: "vm", Run: "^TestSpecCases$",
		Old: "case len(s.Pending) == 0:", New: "case len(s.Pending) < 99:",
	},
	{
		Name: "VM: a start whose VMI has ended blocks all requests", File: "vm/statechange.go", Package: "vm", Run: "^TestSpecCases$",
		Old: "return running(vmi) || r.overtaken(vmi, s)", New: "return running(vmi)",
	},
	{
		Name: "VM: its finalizer goes before its VMI", File: "vm/ownership.go", Package: "vm", Run: ".",
		Old: "if d.vmi == nil && len(d.Pending) == 0 || orphan {", New: "if len(d.Pending) == 0 || orphan {",
	},
	{
		Name: "VM: a VMI is released before its failure is counted", File: "vm/ownership.go", Package: "vm", Run: ".",
		Old: "counted := lastFailedVMI(d.plan.VM.Status.StartFailure) == lastFailedVMI(d.VM.Status.StartFailure)", New: "counted := true",
	},
	{
		Name: "VM: a VMI is its own by the name of its controller", File: "vm/decide.go", Package: "vm", Run: ".",
		Old: "if metav1.IsControlledBy(s.VMI, s.VM) {", New: "if c := metav1.GetControllerOf(s.VMI); c != nil && c.Name == s.VM.Name {",
	},
	{
		Name: "VM: that it starts is stored late without need", File: "vm/vmctrl/postpone.go", Package: "vm/vmctrl", Run: "^TestDeferStatus$",
		Old: "case seen, left <= 0:", New: "case left <= 0:",
	},
	{
		Name: "VM: a request that was carried out is forgotten late", File: "vm/vmctrl/postpone.go", Package: "vm/vmctrl", Run: "^TestDeferStatus$",
		Old: "return equality.Semantic.DeepEqual(rest, want) && !equality", New: "return !equality",
	},
	{
		Name: "VM: a live read that shows another version is enough", File: "vm/vmctrl/act.go", Package: "vm/vmctrl", Run: "^TestController$/^a_cache_of_VMs_that_lags",
		Old: "live.DeletionTimestamp != nil, live.ResourceVersion != g.VM.ResourceVersion:", New: "live.DeletionTimestamp != nil:",
	},
}
