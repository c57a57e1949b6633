// SPDX-License-Identifier: Apache-2.0

// Package migrationctrl is package migration as a controller: it takes every
// VirtualMachineInstanceMigration from its creation through queue, target Pod and
// hand-off, follows the nodes while they move the guest, and tidies up.
//
// [Reconciler] runs in any controller-runtime manager, beside other controllers.
// A pass over a migration is:
//
//	own writes are seen ─▶ gather ─▶ migration.Snapshot ─▶ claim capacity ─▶ migration.Decide ─▶ act
//	                                                                                              │
//	                  one patch of the status ◀─ migration.Decide with what came of it ◀──────────┘
//
// Own writes are noted in an expectations.Tracker before they are sent; until the caches show them nothing is decided. What
// becomes of a migration, phase by phase, is in the documentation of package migration.
//
// It writes: the migration's status, selector label and finalizer; the target
// Pod; and of the guest status.migrationState, the label
// kubevirt.io/migrationTargetNodeName and the handoff lease, together, and only if these,
// the guest's phase and its owner are as they were (internal/vmipatch). A lost race is no error: the pass is repeated.
//
// [Evacuator] and [Updater] make migrations, and delete them: for nodes that are drained and guests
// that are asked to leave theirs, and for guests whose Pods are outdated. [Evictions] answers API
// servers that ask whether a guest's Pod may be evicted. All three share client, caches, indexes and
// configuration with the Reconciler that is set up before them.
//
// Where KubeVirt's webhooks are in force they freeze some of these fields for
// everybody but KubeVirt's own service accounts; the controller has to run as, or
// be configured as, one of them.
package migrationctrl
