// SPDX-License-Identifier: Apache-2.0

// Package handoff answers one question: who owns this guest now, and how does
// ownership move? It decides no policy.
//
// A [Lease] travels with the VirtualMachineInstance in the annotation
// [Annotation]. [Step] is the only function that changes it, and it is pure:
// lease, event and time in, lease out. Whoever wants to change a lease reads
// the object, calls Step, and writes the result back under the object's
// resourceVersion, so that of two competing writers one always loses and has
// to look again.
//
//	           Offer            Accept            Prepare           Ready
//	Unclaimed ───────▶ Offered ───────▶ Owned ───────────▶ Preparing ─────▶ Prepared
//	    ▲      Withdraw  │               │ ▲  Cancel, Revert  │                │ Begin
//	    └────────────────┘       Release │ └──────────────────┴────────────────▼
//	                                     ▼                                   Moving
//	                                 Released ◀── Release (holder)     TakeOver │
//	                                                 Owned by the target ◀──────┘
//
// Two events are for a move that broke off at the switch: the holder that can no
// longer tell where the guest is says Stall, and the target answers with TakeOver
// or Decline.
//
// Every change of owner and every attempt to move has an epoch of its own. An
// event names the epoch its sender acted on; with any other epoch it is
// refused with [ErrFenced], however late it arrives. An event that has already
// been applied is accepted again without effect, so a writer that lost the
// answer to its request simply repeats it.
//
// The promise to the guest, "never two, never none", rests on three rules:
//
//   - a node starts a guest only while [Lease.MayStart] says so, which needs an
//     accepted lease that names it, in no move;
//   - in a move (Moving) the holder's hypervisor passes the running guest to the
//     target's; the target never starts it, it only receives it;
//   - a lease that left Unclaimed never names nobody until the guest has ended
//     (Released).
//
// A VirtualMachineInstance without the annotation was placed by a stock
// virt-controller; [Of] understands it from KubeVirt's own labels and status
// and reports epoch zero. Such a controller does not know the annotation that the
// nodes write from then on, so [Of] also sees a move that was asked for, or taken
// back, in KubeVirt's migration state alone.
//
// All functions are safe for concurrent use; they share no state.
package handoff
