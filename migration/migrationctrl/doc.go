// SPDX-License-Identifier: Apache-2.0

// Package migrationctrl is the controller of package migration: it takes every
// VirtualMachineInstanceMigration from its creation through queue, target Pod and
// handoff, follows the nodes while they migrate the VMI, and cleans up.
//
// [Reconciler] runs in any controller-runtime manager, beside other controllers.
// A pass over a migration is:
//
//	own writes observed ─▶ gather ─▶ migration.Snapshot ─▶ claim capacity ─▶ migration.Decide ─▶ act
//	                                                                                              │
//	                  one patch of the status ◀─ migration.Decide with the results ◀──────────────┘
//
// Own writes are recorded in an expectations.Tracker before they are sent; nothing is decided until the
// caches show them. The phases of a migration are described in package migration.
//
// It writes: the migration's status, selector label and finalizer; the target
// Pod; and of the VMI status.migrationState, the label
// kubevirt.io/migrationTargetNodeName and the handoff lease, together, and only if these,
// the VMI's phase and its owner are unchanged (internal/vmipatch). A lost race is not an error: the pass is repeated.
//
// [Evacuator] and [Updater] create and delete migrations: for nodes that are drained and VMIs
// that are requested to leave theirs, and for VMIs whose Pods are outdated. [Evictions] answers API
// servers whether a VMI's Pod may be evicted. All three share client, caches, indexes and
// configuration with the Reconciler that is set up before them.
//
// KubeVirt's webhooks, where deployed, freeze some of these fields for all but KubeVirt's own
// service accounts; the controller must run as, or be configured as, one of them.
package migrationctrl
