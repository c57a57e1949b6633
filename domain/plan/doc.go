// SPDX-License-Identifier: Apache-2.0

// Package plan decides what a node has to do for a VirtualMachineInstance (VMI): which status and
// lease to store, which actions to carry out at the hypervisor after that, and when to decide again.
//
// [Decide] makes this decision for a pass of the node's controller, from a [Snapshot] of the VMI, its
// domain and its lease (package handoff); the result is a [Plan]. [DecideRequest] does the same for
// an imperative [Request] of a user: to pause, reset or freeze a VMI. [MigrationSteps] names the
// points between the effects of a live migration, for tests that crash there.
//
// The package has no effects: it reads no clock, file, cluster or hypervisor, and changes none of its
// arguments, so that the same snapshot always yields the same plan. The caller, domain/domainctrl,
// stores [Plan.VMI] in one write, and carries out [Plan.Actions] in order only if that succeeds:
//
//	events, listings ─▶ informer ─▶ State ──┐
//	VirtualMachineInstance, lease ──────────┴▶ Snapshot ─▶ Decide ─▶ Plan ─▶ one patch of the VMI ─▶ Actions ─▶ Hypervisor
//	                                              ▲                                                               │
//	                                              └─────────────────────── observed State ◀──────────────────────┘
//
// The role of a node ([handoff.RoleOf]; blank is RoleNone) follows from the lease alone, and its plan
// from its role and the state of its hypervisor:
//
//	lease      holder   target  others
//	Unclaimed
//	Claimed
//	Offered    offered                  accepts the VMI and starts it, or reports why not
//	Owned      holder                   keeps the domain as in the spec, and reports its status
//	Preparing  holder   target          the target prepares to receive the VMI
//	Prepared   holder   target          the holder starts the migration
//	Moving     holder   target          the holder migrates the VMI, or aborts if requested; the target receives it
//	Arrived    holder                   the holder, which was the target, finalizes the migration
//	Releasing  holder                   stops the domain, within the grace period
//	Released
//	Lost       holder   target          the holder returns, and stores that first; the target of a migration may have the VMI
//	Fenced              target          as above, without the holder
//
// A pass is the same for all roles and may be interrupted at any point: the data that an action needs
// after a crash are stored, in the lease or in the domain's metadata, before the action starts.
//
// A user who may write a VMI can write its lease, unless admission prevents that. So a node accepts,
// starts or prepares to receive a VMI only with the launcher Pod that a controller has created for its
// UID on this node ([Snapshot.Proof]). A running domain is never stopped for the lack of it.
//
// # Differences from KubeVirt
//
// All are on purpose; any other difference is a bug.
//
//   - The pause of a user, the grace deadline and the epoch are in the domain's metadata, not in the
//     memory of a launcher, so that they survive a restart of the agent.
//   - If the node label and status.nodeName differ and there is no lease, the node in status.nodeName
//     neither starts nor stops the VMI, since both nodes acting might start it twice.
//   - A migration that was attempted before, or during a backup, is rejected before it starts, not
//     by the hypervisor later.
//   - A domain that no lock on a disk image keeps from running twice arrives with its CPUs stopped. Its
//     target resumes it once the source has stored that the domain has left, which costs the time of
//     two writes. libvirt alone resumes it at the source, beside the one at the target, when it misses
//     the outcome of the switch. With post-copy allowed this is left to libvirt.
//   - A post-copy migration that has lost its connection may resume for five minutes. It has failed
//     only after that, or once one of its halves is known to be gone.
//   - Changes that wait for the end of a migration are retried for a minute, then reported, and do not
//     delay its completion any longer.
//   - An unresponsive hypervisor is no evidence that the VMI has failed: the domain may run.
package plan
