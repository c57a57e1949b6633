// SPDX-License-Identifier: Apache-2.0

// Package handoff answers one question: who owns this guest now, and how does
// ownership move? It decides no policy.
//
// A [Lease] travels with the VirtualMachineInstance in the annotation
// [Annotation]. [Step] is the only function that changes it, and it is pure:
// lease, event and time in, lease and commands out. Whoever wants to change a
// lease reads the object, calls Step, and writes the result back under the
// object's resourceVersion, or on the condition that the annotation, and all else that
// [Of] reads, is as it was. So of two competing writers one always loses and has to look
// again, and no lease is ever again what it was before.
//
// # The states
//
// Below each state stand whose turn it is and how long that may take, then the
// events that lead out of it, who sends them, and where they lead. A + marks a new
// epoch. Any other event is refused.
//
//	Unclaimed ─Claim▶ Claimed ─Offer▶ Offered ─Accept▶ Owned
//	    ─Prepare▶ Preparing ─Ready▶ Prepared ─Begin▶ Moving ─TakeOver▶ Arrived
//	    ─Finalize▶ Owned ─Stop▶ Releasing ─Release▶ Released
//
//	Unclaimed
//	    turn: controller
//	    Claim    ──▶  Claimed    by the controller
//	    Offer    ──▶ +Offered    by the controller
//	    Release  ──▶ +Released   by the controller
//	Claimed
//	    turn: controller, within 5m
//	    Claim    ──▶  Claimed    by the controller
//	    Offer    ──▶ +Offered    by the controller
//	    Withdraw ──▶ +Unclaimed  by the controller
//	    Release  ──▶ +Released   by the controller
//	Offered
//	    turn: holder, within 5m
//	    Withdraw ──▶ +Unclaimed  by the controller
//	    Accept   ──▶  Owned      by the holder
//	    Release  ──▶ +Released   by the controller
//	Owned
//	    turn: holder, while it gives signs of life
//	    Started  ──▶  Owned      by the holder
//	    Prepare  ──▶ +Preparing  by the controller
//	    Stop     ──▶  Releasing  by the holder
//	    Release  ──▶ +Released   by the holder
//	    Suspect  ──▶ +Lost       by the controller
//	Preparing
//	    turn: target, within 5m
//	    Ready    ──▶  Prepared   by the target
//	    Cancel   ──▶ +Owned      by the controller
//	    Revert   ──▶ +Owned      by the holder
//	    Stop     ──▶  Releasing  by the holder
//	    Release  ──▶ +Released   by the holder
//	Prepared
//	    turn: holder, within 5m
//	    Begin    ──▶  Moving     by the holder
//	    Cancel   ──▶ +Owned      by the controller
//	    Revert   ──▶ +Owned      by the holder
//	    Stop     ──▶  Releasing  by the holder
//	    Release  ──▶ +Released   by the holder
//	Moving
//	    turn: holder, within 30m
//	    Abort    ──▶  Moving     by the controller
//	    Revert   ──▶ +Owned      by the holder
//	    TakeOver ──▶ +Arrived    by the target
//	    Stall    ──▶  Moving     by the holder
//	    Decline  ──▶ +Owned      by the target
//	    Suspect  ──▶ +Lost       by the controller
//	    Fence    ──▶ +Fenced     by the controller
//	Arrived
//	    turn: holder, within 5m
//	    Finalize ──▶  Owned      by the holder
//	    Stop     ──▶  Releasing  by the holder
//	    Release  ──▶ +Released   by the holder
//	    Suspect  ──▶ +Lost       by the controller
//	Releasing
//	    turn: holder, within 1m
//	    Release  ──▶ +Released   by the holder
//	    Suspect  ──▶ +Lost       by the controller
//	Lost
//	    turn: controller, within 3m
//	    TakeOver ──▶ +Arrived    by the target
//	    Release  ──▶ +Released   by the holder
//	    Return   ──▶  as before  by the holder
//	    Fence    ──▶ +Fenced     by the controller
//	Fenced
//	    turn: controller, within 5m
//	    Offer    ──▶ +Offered    by the controller
//	    TakeOver ──▶ +Arrived    by the target
//	    Decline  ──▶ +Fenced     by the target
//	    Release  ──▶ +Released   by the controller
//	    Fence    ──▶ +Fenced     by the controller
//	Released
//	    turn: nobody
//
// # Epochs
//
// Every change of owner and every attempt to move has an epoch of its own. An
// event names the epoch its sender acted on; with any other epoch it is
// refused with [ErrFenced], however late it arrives. An event that has already
// been applied is accepted again without effect, so a writer that lost the
// answer to its request simply repeats it.
//
// # Commands
//
// What a node has to do is part of the lease: a step issues commands, and they
// stay in [Lease.Open], named by kind and epoch, until a later step stores how they
// ended under the same name ([Lease.Outcome]). So a command leaves the process only
// after it is stored, either side can tell after any crash what was asked and how
// it ended, and none is issued twice. A node carries one out only if
// [Lease.Authorize] lets it, on a lease it has the API server's own word for, and
// looks at its hypervisor before it does again what it may have done before a crash.
//
// # Never two, never none
//
// The promise to the guest rests on these rules:
//
//   - a node starts a guest only while [Lease.MayStart] says so, which needs an
//     accepted lease that names it, in no move, with the start still open;
//   - in a move (Moving) the holder's hypervisor passes the running guest to the
//     target's; the target never starts it, it only receives it;
//   - a move can be called off by anybody until Begin is stored, and from then on
//     only by the holder, whose hypervisor alone knows;
//   - a holder that can no longer tell where the guest is says Stall, and the target
//     answers with TakeOver or Decline;
//   - a node that is silent (Lost) keeps its guest. It stops to act [ActWithin] after
//     its last word from the API server; after [FenceAfter], and only with
//     [Evidence], may the guest be declared gone (Fenced);
//   - a lease that left Unclaimed never names nobody until the guest has ended
//     (Released) or is known to run nowhere (Fenced).
//
// All this holds for leases that controllers and nodes write. Whoever may write the
// object can write its lease as well: a node believes one that tells it to start, or to
// await, a guest only together with the launcher Pod that a controller made for it
// (domain.Sight.Proof).
//
// # Beside stock KubeVirt
//
// A VirtualMachineInstance without the annotation was placed by a stock
// virt-controller; [Of] understands it from KubeVirt's own labels and status
// and reports epoch zero. Such a controller does not know the annotation that the
// nodes write from then on, so [Of] also sees a move that was asked for, or taken
// back, in KubeVirt's migration state alone, and a guest that a stock virt-handler
// runs by its phase, on the node that status.nodeName names. [Put] keeps KubeVirt's
// labels in step with the lease.
//
// All functions are safe for concurrent use; they share no state.
package handoff
