// SPDX-License-Identifier: Apache-2.0

// Package explore tries to break the promise of package handoff, "never two, never
// none", by looking at everything that can happen to one guest on two nodes, or to one VirtualMachine
// and the guests it has one after the other.
//
// It drives the shipped deciders: vm.Decide, vmi.Decide, migration.Decide, plan.Preparations and
// plan.Decide, which step the lease by handoff.Step themselves, Lease.Authorize and handoff.Confirmed,
// expectations.Tracker, and the patches of internal/vmipatch, against a model of
// everything else. Search goes through all states breadth first, so that what it
// finds is a shortest way to break a rule; Walk goes at random, far deeper. Both are
// deterministic: the same scenario and limits give the same report, with any number
// of goroutines. Nothing reads a clock.
//
// # How a decision is driven
//
// An object of the model is what the API server would store, as JSON, and each content
// exists once, so that two versions are compared by a pointer. A pass takes what its
// process has in its caches and makes the Snapshot of it that the real
// controller would gather. The real Decide answers. Its actions become requests of the
// model, one at a time, then the object as it shall be, as a patch with the real
// controller's guards; the tasks of a node become calls to the model's hypervisor, one
// at a time, each authorized at the last moment. Between any two of them anything else
// may happen, and the process may stop. Since deciders are pure, what they answered is
// remembered: a question is a comparable value, and most steps ask one that was asked.
//
// The drivers (agent_test.go, prepare_test.go, controller_test.go, controller_move_test.go,
// controller_vm_test.go) are not the shipped
// reconcilers: in which order those gather, act and store, which guards their patches
// have, and that they read live what Snapshot.NeedsProof and NeedsEvidence of package vmi
// and Snapshot.NeedsProof of package plan name, and the VirtualMachine where Precondition.OwnerLive of
// package vm asks for it, is restated here. Tests of vmctrl, vmictrl, migrationctrl and domainctrl, and
// internal/soak, run those.
//
// # The model
//
//   - An API server: one VirtualMachineInstance, its launcher Pod, two migrations and
//     their target Pods; or a VirtualMachine, its start revisions, and the guest it has now. Patches under guards or resourceVersion, creations by name,
//     deletions by UID, finalizers, deletionTimestamp. Every write may fail before it is
//     carried out, or after, or be carried out later than its sender got the answer that it
//     failed.
//   - Watches: each process sees each object's versions in order, but late, and those
//     of different objects in any order. A watch may break; the list that follows may
//     come from a server that is behind, and what it lacks is a tombstone. A node sees
//     the guests that its labels select, as the node agent's caches do.
//   - Processes: two processes with the controllers of VirtualMachines, guests and migrations, which may
//     both believe to be the leader for any time, and an agent for each node. A process
//     may stop between any two effects and lose its memory: caches, expectations, what
//     it was about to do. What it had sent may still arrive. A process may also be
//     arbitrarily slow between any two effects.
//   - Hypervisors: a domain of the guest on each node, with its metadata, and a move in
//     four steps (target created, source stopped, target resumed, source ended) that may
//     fail, or be forgotten by the source's hypervisor, at any of them. Where guests
//     arrive held the third is: target complete; and after it the source may run on,
//     because its hypervisor has not heard of it.
//   - Preparations: in each pass an agent prepares what plan.Preparations asks for. Files,
//     and the domain made of them, are there or fail; sockets are there until the agent
//     stops, or fail. A source that dials a target without them may find no listener.
//   - Nodes: cut off as a whole, or their agent alone; dead for good; their Node object
//     deleted, or the node fenced, after that.
//   - The user of a VirtualMachine: starts, stops and restarts it as KubeVirt's subresources do, changes
//     its run strategy, its host name, which needs a restart, and its tolerations, which are updated
//     live; deletes it, or its guest.
//   - Time, in ticks of a minute: handoff.ActWithin is one, handoff.FenceAfter three.
//
// # What is assumed
//
//   - The objects are written by our processes alone. A tenant who writes status, labels
//     or annotations of the guest, or labels of its Pods, is not modelled: that the API
//     server and the webhooks refuse that is assumed here, and docs/security.md says
//     what holds where they do not.
//   - The hypervisor's answers are true. A launcher that lies about its guest is not
//     modelled, nor is a hypervisor that does not answer (Snapshot.SilentSince).
//   - Evidence is true: a Node object is deleted, and a Pod of the guest gone, only if
//     the guest does not run there any more. Whoever may delete Node objects may break it.
//   - A call to a hypervisor ends within the tick after the one it began in, and an
//     agent that starts again finds no call of its predecessor under way.
//   - A request that is late arrives, or never, before a tick passes.
//   - Of a guest that is not held, hypervisors never let both sides run: the target is
//     resumed by the move alone, and the source only when the target's part is gone.
//     Locks of image files see to that.
//   - A Pod that is bound vanishes only once no domain of the guest that lives in it is
//     on its node, or the node is dead; a Node object is deleted only then.
//   - The garbage collector waits until every controller knows that the object is gone.
//   - A process makes one pass at a time. The real ones work on a guest and on its
//     migrations side by side; two leaders do so here.
//   - A Pod is ready when it is bound, and has its name and labels for ever; there is
//     always a slot for a migration. When conditions and past phases changed is left out.
//
// Not modelled: a node that comes back after it died, post-copy, hotplug, volumes,
// graceful shutdown, migration to another cluster, other
// owners' Pods, a stock half beside ours; and of VirtualMachines: instance types, DataVolumes, memory dumps,
// a second one of the same name, migrations, and more than six generations.
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
//   - a target says that it is ready only while it listens;
//   - a guest has at most one launcher Pod; no start is carried out twice and no move
//     attempted twice; the object is not let go while a Pod of it is left, or can
//     still come from a request its own controller knows of;
//   - the lease never says that no node has a guest that lives, and it can be read;
//   - a lease that waits has a deadline in the future, or there is something to do, or to
//     look at again, for the responsible component;
//   - no guest of a VirtualMachine is started, on whatever node, while an earlier one lives; none is
//     created more often than its user, its run strategy and the ends of earlier ones give cause to; and
//     no creation or deletion of one is sent that the VirtualMachine, as it is stored then, does not want.
//
// And out of a sample of all states, and at the end of every walk: when nothing goes
// wrong any more, the world comes to rest, with the guest running exactly where the
// lease says and in exactly one Pod, or ended for a reason. A VirtualMachine has a guest then that runs, or
// none, as its run strategy wants, no request that is left, the one start revision that its guest names,
// live updates have arrived, and that it needs a restart is said if and only if it does.
//
// # How far it looks
//
// Within a scenario every placement of the stated number of faults is tried, at any
// point and with any interleaving, with processes that lag behind by at most the
// stated number of versions of each object. Where the report says complete, all of
// that was seen; elsewhere all up to its depth, which is a small part: the start of a guest
// without any fault is over after 27 steps at the latest, a migration takes more, and the
// default run looks at all that is within 5 to 25 steps of where a scenario starts. What
// lies deeper only the random walks and the samples that are let settle reach. The state
// of real objects is larger than one made up for the purpose, so that fewer are seen. Delivering an event is followed by a
// step of the process that got it: delivering earlier would make no difference, for
// no other process sees its caches. States that differ only in the
// numbers of resourceVersions, not in their order, are one.
//
// # Scripts
//
// What is found is printed as a script, one line for each step, which can be replayed.
// The named replays in testdata are scripts as well: how known troubles of KubeVirt
// come about, and what becomes of them here.
package explore
