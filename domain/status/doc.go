// SPDX-License-Identifier: Apache-2.0

// Package status answers what a node writes into the status of a VirtualMachineInstance (VMI) that it
// runs: phase, conditions, interfaces, volumes, CPUs and memory, guest OS, and whether it can migrate.
//
// [Reflect] returns a copy of the VMI with the status of an [Observation]: the domain as its hypervisor
// reports it, the last report of the guest agent, the facts of the node, and the actions that failed.
// [Phase], [Interfaces], [VolumeStatus] and [LiveMigratable] compute their parts alone. [CopyDisks],
// [ClaimsAt] and [ReplaceVolumes] answer which volumes a live migration copies or replaces, and
// [ProgressOf] parses the condition [MigrationProgress].
//
// The functions are pure and idempotent. They change only fields and conditions that the node owns,
// never those of controllers, and change nothing in a VMI whose phase is final. They never set a final
// phase, read a hypervisor, or write to the cluster: package domain/plan decides about the end of a
// VMI and includes the status in its plan.
//
//	o := status.Observation{Node: node, State: &state, Guest: &info, Facts: facts}
//	vmi = status.Reflect(vmi, o, now)
//
// # Differences from KubeVirt
//
// All are on purpose; any other difference is a bug.
//
//   - Disks that the guest cannot write and that every node generates from the same objects are not
//     copied by a migration: its target has generated them already.
//   - The condition Paused has the reason of now, not that of the first pause.
//   - The reason of the condition AgentVersionNotSupported is a word; the missing commands are in its
//     message.
package status
