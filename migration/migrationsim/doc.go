// SPDX-License-Identifier: Apache-2.0

// Package migrationsim answers: what would the migrations of a cluster do, and how long would
// they take? It simulates a cluster on a virtual clock but runs the real decisions: Queue,
// Admission, Decide and Fit of package migration and its subpackages, and the lease of package
// handoff, work on real API objects as in the controller.
//
// A [Sim] is filled with existing Nodes, VMIs and migrations, created ([NewNode], [NewGuest]) or
// read from a cluster. Then it can migrate VMIs ([Sim.Migrate]) or drain nodes ([Sim.Drain]), run
// ([Sim.Run]), and report what happened ([Sim.Result]) and how close to the optimum that was
// ([Sim.Bound]).
//
// # Simulated components
//
//   - The controller is event-driven: it decides about a migration when one of its objects
//     changes, when Admission wakes it, or at its deadline, and at no other time. A pass takes no
//     time; a watch event takes [Latency].Watch.
//   - The scheduler binds a Pod to the node with the smallest requested share of memory and CPU
//     among those that placement.NodeUsage.Fit accepts, as kube-scheduler's LeastAllocated does.
//     Unschedulable Pods wait for a node with room.
//   - Node agents react after a latency: the target prepares, the source begins to send, the
//     target takes over. If a migration does not converge, its agent applies the resolved
//     options: post-copy, a pause, or it gives up.
//   - Memory is copied at a rate that is shared with the other migrations of the two nodes, while
//     the VMI continues to write: the rest shrinks by the rate less the rate at which the VMI
//     dirties memory. This is the total duration of the pre-copy rounds.
//
// Random values are drawn from [Options].Seed, so a run can be repeated exactly. A Sim is not
// safe for concurrent use.
package migrationsim
