// SPDX-License-Identifier: Apache-2.0

// Package nodectrl reports a node to the cluster, as parts of any controller-runtime manager:
//
//	Heartbeat  whether its agent is alive, and whether the node is schedulable
//	Labeller   the capabilities of its hypervisor: CPU models and features, machine types, Hyper-V, …
//
// The Heartbeat's reports from its start to its end, once in DefaultHeartbeat or somewhat more, and as soon as a
// hypervisor is responsive again:
//
//	               ┌─▶ schedulable      while the hypervisor answers and all devices are there
//	manager begins ┤       ▲│
//	               └─▶     │▼
//	               not schedulable ─▶ manager ends: not schedulable, alive until Drained is closed
//
// A pass of the Labeller:
//
//	capabilities, KubeVirt object ─▶ Labels ─▶ differences from the Node ─▶ one patch, or none
//
// Both write labels and an annotation of the node's own Node, and nothing else of it: keys that
// belong to them, and only those that change. So they conflict with no other writer, and never
// revert another writer's change.
//
// [Labels] computes the labels and is pure: the hypervisor's own description in, labels out.
package nodectrl
