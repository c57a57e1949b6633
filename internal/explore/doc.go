// SPDX-License-Identifier: Apache-2.0

// Package explore tries to break the promise of package handoff, "never two, never
// none", by looking at everything that can happen to one guest on two nodes.
//
// It runs the real handoff.Step, Of, Put, codec and Authorize, and the real
// expectations.Tracker, in small controllers and node agents, against a model of
// everything else. [Search] goes through all states breadth first, so that what it
// finds is a shortest way to break a rule; [Walk] goes at random, far deeper. Both are
// deterministic: the same scenario and limits give the same report, with any number
// of goroutines. Nothing reads a clock.
//
// # The model
//
//   - An API server: one VirtualMachineInstance, its launcher Pod, two migrations and
//     their target Pods. Updates under resourceVersion, creations by name, deletions by
//     UID, finalizer, deletionTimestamp. Every write may fail before it is carried out,
//     or after, or be carried out later than its sender was told that it failed.
//   - Watches: each process sees each object's versions in order, but late, and those
//     of different objects in any order. A watch may break; the list that follows may
//     come from a server that is behind, and what it lacks is a tombstone. A node sees
//     the guests that its labels select, as the node agent's caches do.
//   - Processes: two controllers, which may both believe to be the leader for any time,
//     and an agent for each node. A process may stop between any two effects and lose
//     its memory: caches, expectations, what it was about to do. What it had sent may
//     still arrive. A process may also be arbitrarily slow between any two effects.
//   - Hypervisors: a domain of the guest on each node, and a move in four steps (target
//     created, source stopped, target resumed, source ended) that may fail, or be
//     forgotten by the source's hypervisor, at any of them. Where guests arrive held the
//     third is: target complete; and after it the source may run on, because its
//     hypervisor has not heard of it.
//   - Nodes: cut off as a whole, or their agent alone; dead for good; their Node object
//     deleted, or the node fenced, after that.
//   - Time, in ticks of a minute: handoff.ActWithin is one, handoff.FenceAfter three.
//
// The controllers and agents make one write in a pass, the real ones several; in what
// they decide they follow vmi, migration and domain. Before it touches a guest an agent
// asks Lease.Authorize, or handoff.Confirmed for a task that no command asks for.
//
// # What is assumed
//
//   - A call to a hypervisor ends within the tick after the one it began in, and an
//     agent that starts again finds no call of its predecessor under way.
//   - A request that is late arrives, or never, before a tick passes.
//   - Of a guest that is not held, hypervisors never let both sides run: the target is
//     resumed by the move alone, and the source only when the target's part is gone.
//     Locks of image files see to that.
//   - A Pod that is bound vanishes only once no domain of the guest that lives in it is
//     on its node, or the node is dead; a Node object is deleted only then.
//   - The garbage collector waits until every controller knows that the object is gone.
//
// Not modelled: a node that comes back after it died, post-copy, hot-plug, guests that
// share a name, other owners' Pods, a stock half beside ours.
//
// # The rules
//
// After every step:
//
//   - at most one domain of the guest runs, none is started while it lives elsewhere, and
//     what stood still while it ran elsewhere never runs again;
//   - the guest is not destroyed, nor its Pod deleted, unless its object was deleted, its
//     node died, it ended by itself, or in a switch that broke off the only one who
//     knew where it is was fenced;
//   - there is at most one launcher Pod; no start is carried out twice and no move
//     attempted twice; the object is not let go while a Pod of it is left, or can
//     still come from a request its own controller knows of;
//   - the lease never says that nobody has a guest that lives, and it can be read;
//   - a lease that waits has a deadline in the future, or there is something to do for
//     whoever has the turn.
//
// And out of a sample of all states, and at the end of every walk: when nothing goes
// wrong any more, the world comes to rest, with the guest running exactly where the
// lease says and in exactly one Pod, or ended for a reason.
//
// # How far it looks
//
// Within a scenario every placement of the stated number of faults is tried, at any
// point and with any interleaving, with processes that lag behind by at most the
// stated number of versions of each object. Where the report says complete, all of
// that was seen; elsewhere all up to its depth. Delivering an event is followed by a
// step of the process that got it: delivering earlier would make no difference, for
// nobody else sees what a process has in its caches. States that differ only in the
// numbers of resourceVersions, not in their order, are one.
//
// # Scripts
//
// What is found is printed as a script, one line for each step, which can be replayed.
// The named replays in testdata are scripts as well: how known troubles of KubeVirt
// come about, and what becomes of them here.
package explore
