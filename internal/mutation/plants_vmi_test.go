// SPDX-License-Identifier: Apache-2.0

package mutation

// guests are bugs of package vmi.
var guests = []Plant{
	{
		Name: "no Pod in the cache is proof that there is none", File: "vmi/snapshot.go", Package: "vmi", Run: "^TestNeedsProof_AbsentPod$",
		Old: "return len(s.Pending) == 0 && s.Launcher() == nil", New: "return false",
	},
	{
		Name: "finalizer goes before the Pods", File: "vmi/snapshot.go", Package: "vmi", Run: "^TestDecide$",
		Old: "if !s.ended() || len(s.Pods) > 0 || s.unsure() ||", New: "if !s.ended() || s.unsure() ||",
	},
	{
		Name: "finalizer goes while own writes are unseen", File: "vmi/snapshot.go", Package: "vmi", Run: "^TestNeedsProof_AbsentPod$",
		Old: "if !s.ended() || len(s.Pods) > 0 || s.unsure() ||", New: "if !s.ended() || len(s.Pods) > 0 ||",
	},
	{
		Name: "a fenced guest counts as held by nobody", File: "vmi/snapshot.go", Package: "vmi", Run: "^TestDecide$",
		Old: "case handoff.Released, handoff.Unclaimed, handoff.Claimed, handoff.Offered:\n\t\treturn true",
		New: "case handoff.Released, handoff.Unclaimed, handoff.Claimed, handoff.Offered, handoff.Lost, handoff.Fenced, handoff.Owned:\n\t\treturn true",
	},
	{
		Name: "another owner's Pods count as the guest's", File: "vmi/snapshot.go", Package: "vmi", Run: ".",
		Old: "if metav1.IsControlledBy(&pods[i], vmi) {", New: "if metav1.IsControlledBy(&pods[i], vmi) || pods[i].Namespace == vmi.Namespace {",
	},
	{
		Name: "the Pod that a guest moves to counts as its Pod", File: "vmi/snapshot.go", Package: "vmi", Run: "^TestDecide$",
		Old: "return p.Spec.NodeName != node", New: "return node == \"\"",
	},
	{
		Name: "acts while own writes are unseen", File: "vmi/decide.go", Package: "vmi", Run: "^TestDecide$",
		Old: "case len(d.Pending) > 0:\n", New: "case len(d.Unseen) > 99:\n",
	},
	{
		Name: "the Pod of a guest that may run is hurried", File: "vmi/cleanup.go", Package: "vmi", Run: "^TestDecide$",
		Old: "ended := unheld(d.lease)", New: "ended := true",
	},
	{
		Name: "an offer is withdrawn before its deadline", File: "vmi/offer.go", Package: "vmi/diagnose", Run: "^TestOf$",
		Old: "if !d.lease.Overdue(d.now) {", New: "if d.lease.Epoch == 0 {",
	},
	{
		Name: "a guest that switches nodes fails for want of its Pod", File: "vmi/phases.go", Package: "vmi", Run: "^TestDecide_SourcePodEndsDuringSwitchover$",
		Old: "{handed, in(ownership.switching), \"\", nil},\n", New: "",
	},
	{
		Name: "a guest fails for want of a Pod while own writes are unseen", File: "vmi/phases.go", Package: "vmi", Run: "^TestDecide_MissingPodWhileWritesUnseen$",
		Old: "{handed, (*decision).blind, \"\", nil},\n", New: "",
	},
	{
		Name: "the source is suspected when the target is to answer", File: "vmi/silence.go", Package: "vmi", Run: "^TestSilence_StalledSource$",
		Old: "if l.Stalled {\n\t\t\treturn false, nil\n\t\t}\n", New: "",
	},
	{
		Name: "evidence about the source for evidence about the target", File: "vmi/silence.go", Package: "vmi", Run: "^TestSilence_Evidence$",
		Old: "l.State == handoff.Moving && l.Stalled:\n\t\treturn l.Target", New: "l.State == handoff.Moving && l.Stalled:\n\t\treturn l.Holder",
	},
	{
		Name: "a fence that comes too early gives the guest up", File: "vmi/silence.go", Package: "vmi", Run: "^TestSilence_Evidence$",
		Old: "if d.next.Target != \"\" { // the domain may have arrived there", New: "if d.next.Target == \"no\" {",
	},
}
