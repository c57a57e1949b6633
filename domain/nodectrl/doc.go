// SPDX-License-Identifier: Apache-2.0

// Package nodectrl tells the cluster about a node, as parts of any controller-runtime manager:
//
//	Heartbeat  that its agent lives, and whether guests can be placed on it
//	Labeller   what guests can be given there: CPU models and features, machine types, Hyper-V, …
//
// What the Heartbeat tells from its start to its end, once in DefaultHeartbeat or somewhat more, and as soon as a
// hypervisor answers again:
//
//	               ┌─▶ schedulable      while the hypervisor answers and all devices are there
//	manager begins ┤       ▲│
//	               └─▶     │▼
//	               not schedulable ─▶ manager ends: not schedulable, alive until Drained is closed
//
// A round of the Labeller:
//
//	what hypervisor and KubeVirt object say ─▶ Labels ─▶ what differs from the Node ─▶ one patch, or none
//
// Both write labels and an annotation of the node's own Node, and nothing else of it: keys that
// belong to them, and only those that change. So they race with nobody, and never take back what
// somebody else has written meanwhile.
//
// What the labels say is decided by [Labels], which is pure: the hypervisor's own description in,
// labels out.
package nodectrl
