// SPDX-License-Identifier: Apache-2.0

// Package handoff implements the ownership protocol of a VirtualMachineInstance (VMI):
// which node owns it now, and how ownership passes on. It decides no policy.
//
// A [Lease] travels with the VirtualMachineInstance in the annotation
// [Annotation]. [Step] is the only function that changes it, and it is pure:
// lease, event and time in, lease and commands out. To change a lease, read the object,
// call Step, and write the result back under the object's resourceVersion, or on the
// condition that the annotation, and all other fields that [Of] reads, are unchanged. So
// of two competing writers one always loses and has to read again, and no lease ever
// returns to an earlier value.
//
// # The states
//
// Below each state stand the component that is [Responsible] for the next step, of which
// the node is the holder, and the time limit, then the events that lead out of the
// state, the new state, and the sender. A + marks a new epoch. Any other event is
// refused.
//
//	Unclaimed ─Claim▶ Claimed ─Offer▶ Offered ─Accept▶ Owned
//	    ─Prepare▶ Preparing ─Ready▶ Prepared ─Begin▶ Moving ─TakeOver▶ Arrived
//	    ─Finalize▶ Owned ─Stop▶ Releasing ─Release▶ Released
//
//	Unclaimed
//	    responsible: controller
//	    Claim    ──▶  Claimed    by the controller
//	    Offer    ──▶ +Offered    by the controller
//	    Release  ──▶ +Released   by the controller
//	Claimed
//	    responsible: controller, within 5m
//	    Claim    ──▶  Claimed    by the controller
//	    Offer    ──▶ +Offered    by the controller
//	    Withdraw ──▶ +Unclaimed  by the controller
//	    Release  ──▶ +Released   by the controller
//	Offered
//	    responsible: node, within 5m
//	    Withdraw ──▶ +Unclaimed  by the controller
//	    Accept   ──▶  Owned      by the holder
//	    Release  ──▶ +Released   by the controller
//	Owned
//	    responsible: node, while it gives signs of life
//	    Started  ──▶  Owned      by the holder
//	    Prepare  ──▶ +Preparing  by the controller
//	    Stop     ──▶  Releasing  by the holder
//	    Release  ──▶ +Released   by the holder
//	    Suspect  ──▶ +Lost       by the controller
//	Preparing
//	    responsible: target node, within 5m
//	    Ready    ──▶  Prepared   by the target
//	    Cancel   ──▶ +Owned      by the controller
//	    Revert   ──▶ +Owned      by the holder
//	    Stop     ──▶  Releasing  by the holder
//	    Release  ──▶ +Released   by the holder
//	Prepared
//	    responsible: node, within 5m
//	    Begin    ──▶  Moving     by the holder
//	    Cancel   ──▶ +Owned      by the controller
//	    Revert   ──▶ +Owned      by the holder
//	    Stop     ──▶  Releasing  by the holder
//	    Release  ──▶ +Released   by the holder
//	Moving
//	    responsible: node, within 30m
//	    Abort    ──▶  Moving     by the controller
//	    Revert   ──▶ +Owned      by the holder
//	    TakeOver ──▶ +Arrived    by the target
//	    Stall    ──▶  Moving     by the holder
//	    Decline  ──▶ +Owned      by the target
//	    Suspect  ──▶ +Lost       by the controller
//	    Fence    ──▶ +Fenced     by the controller
//	Arrived
//	    responsible: node, within 5m
//	    Finalize ──▶  Owned      by the holder
//	    Stop     ──▶  Releasing  by the holder
//	    Release  ──▶ +Released   by the holder
//	    Suspect  ──▶ +Lost       by the controller
//	Releasing
//	    responsible: node, within 1m
//	    Release  ──▶ +Released   by the holder
//	    Suspect  ──▶ +Lost       by the controller
//	Lost
//	    responsible: controller, within 3m
//	    TakeOver ──▶ +Arrived    by the target
//	    Release  ──▶ +Released   by the holder
//	    Return   ──▶  as before  by the holder
//	    Fence    ──▶ +Fenced     by the controller
//	Fenced
//	    responsible: controller, within 5m
//	    Offer    ──▶ +Offered    by the controller
//	    TakeOver ──▶ +Arrived    by the target
//	    Decline  ──▶ +Fenced     by the target
//	    Release  ──▶ +Released   by the controller
//	    Fence    ──▶ +Fenced     by the controller
//	Released
//	    responsible: nobody
//
// # Epochs
//
// Every change of owner and every migration attempt has an epoch of its own. An
// event names the epoch its sender acted on; with any other epoch it is
// refused with [ErrFenced], however late it arrives. An event that has already
// been applied is accepted again without effect, so a writer that lost the
// answer to its request simply repeats it.
//
// # Commands
//
// The instructions to a node are part of the lease: a step issues commands, and they
// stay in [Lease.Open], named by kind and epoch, until a later step stores their
// result under the same name ([Lease.Outcome]). So a command leaves the process only
// after it is stored, either side can determine after any crash what was requested and
// how it ended, and none is issued twice. A node carries out a command only if
// [Lease.Authorize] permits it, on a lease that the API server itself has confirmed, and
// inspects its hypervisor before it repeats an action that may predate a crash.
//
// # Never two, never none
//
// That at most one domain of a VMI runs, and none is lost, rests on these rules:
//
//   - a node starts a domain only while [Lease.MayStart] permits it, which needs an
//     accepted lease that names the node, in no migration, with the start still open;
//   - in state Moving the holder's hypervisor transfers the running domain to the
//     target's; the target never starts it, it only receives it;
//   - the controller or the holder can end a migration until Begin is stored, and from
//     then on only the holder, as only its hypervisor knows the state;
//   - a holder that can no longer determine where the domain is sends Stall, and the
//     target answers with TakeOver or Decline;
//   - an unresponsive node (Lost) keeps its domain. It stops acting [ActWithin] after the last
//     confirmation by the API server; after [FenceAfter], and only with [Evidence],
//     the domain may be declared gone (Fenced);
//   - an accepted lease always names an owner until the domain has ended (Released)
//     or is known to run nowhere (Fenced).
//
// All this holds for leases that controllers and nodes write. Any client that may write
// the object can write its lease too: a node trusts a lease that instructs it to start,
// or to await, a domain only together with the launcher Pod that a controller created
// (plan.Snapshot.Proof).
//
// # With stock KubeVirt
//
// A VirtualMachineInstance without the annotation was placed by a stock
// virt-controller; [Of] derives its lease from KubeVirt's own labels and status
// and reports epoch zero. Such a controller does not know the annotation that the
// nodes write from then on, so [Of] also detects a migration that was requested, or
// canceled, in KubeVirt's migration state alone, and a domain that a stock virt-handler
// runs by the VMI's phase, on the node that status.nodeName names. [Put] keeps
// KubeVirt's labels consistent with the lease.
//
// All functions are safe for concurrent use; they share no state.
package handoff
