// SPDX-License-Identifier: Apache-2.0

// Package migrationsim answers: what would the migrations of a cluster do, and how
// long would they take? It plays a cluster on a virtual clock, in which the decisions
// are not played: Queue, Admission, Decide and Fit of package migration, and the lease
// of package handoff, work on real API objects as they do in the controller.
//
// A [Sim] is filled with Nodes, guests and migrations that exist, made by hand
// ([NewNode], [NewGuest]) or read from a cluster. Then it is asked to migrate guests
// ([Sim.Migrate]) or to empty nodes ([Sim.Drain]), run ([Sim.Run]), and asked what
// happened ([Sim.Result]) and how far from the best possible that was ([Sim.Bound]).
//
// # What is played
//
//   - The controller is event-driven: a migration is decided about when an object of it
//     changes, when Admission wakes it, or when its deadline has come, and at no other
//     time. A pass itself takes no time; the word of a change takes [Latency].Watch.
//   - The scheduler puts a Pod on the node with the smallest share of memory and CPU
//     asked for, of those that migration.NodeUsage.Fit finds fit, as kube-scheduler's
//     LeastAllocated does. Pods that no node takes wait for a node with room.
//   - Node agents answer after a while: the target prepares, the source begins to
//     send, the target takes over. An agent whose guest does not converge acts upon the
//     resolved options: post-copy, a pause, or it gives up.
//   - Memory is copied at a rate that is shared with the other migrations of the two
//     nodes, while the guest goes on writing: what is left shrinks by the rate less the
//     rate at which the guest dirties memory. This is how long rounds of pre-copy take
//     in all.
//
// What is random is drawn from [Options].Seed, so a run can be repeated exactly. A Sim is not
// safe for concurrent use.
package migrationsim
