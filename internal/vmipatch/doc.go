// SPDX-License-Identifier: Apache-2.0

// Package vmipatch turns a decision about a VirtualMachineInstance into a JSON Patch
// (RFC 6902) that several writers of one object send without its resourceVersion, and
// that is rejected only if they change the same entry.
//
// The CustomResourceDefinition of VirtualMachineInstance has no status subresource and its lists
// are atomic, so a merge patch without a resourceVersion loses conditions of other writers,
// server-side apply conflicts over whole lists, and optimistic locking fails for every
// unrelated write. [Between] compares two versions instead, patches the differences only, and
// tests the old value of everything it changes.
//
// # Tests
//
// First metadata.uid, so that a successor with the same name is never modified; then each
// [Guard]; then, for each change:
//
//   - a label or annotation: its old value or absence. If there were no labels at all, the
//     absence of the map, which the patch has to add.
//   - finalizers: a removed one, at its index; all of them when one is added.
//   - a field of the status: its old value or absence. A struct that is removed as a
//     whole, such as migrationState, is tested field by field.
//   - an element of a keyed list is changed at its index and field by field; its key and the
//     changed fields are tested: volumeStatus and interfaces by name, migratedVolumes by
//     volumeName, phaseTransitionTimestamps by phase. Of conditions, by type, status, reason
//     and message are always tested, since they belong together: so no condition mixes the
//     text of two writers. Of a removed element all fields are tested. Where elements are
//     added, the list must still have exactly its old elements, as two writers might add the
//     same one.
//   - any other list is replaced and tested as a whole: lists of plain values, and those
//     whose keys are missing, not unique, or in another order than before, such as
//     interfaces without a name.
//
// # Limits of tests
//
// A test compares with the stored encoding, which a typed client does not know. Times and
// quantities, which may be stored in another form than they are encoded in ("1024Mi" and
// "1Gi"), are changed without a test. A zero that is always encoded (runtimeUser 0, an empty
// guestOSInfo) may stand for a missing field, and neither is tested. A test does not
// distinguish a missing field from null, and whole elements are never compared, so it does not
// matter whether another writer stored lastProbeTime: null.
//
// Some stored values still differ from what a typed client sees: an empty list or string that
// KubeVirt's types omit. A test of its absence fails forever. And an object may have no status
// at all, or an empty one, which look the same. The guard [Version] solves this: with it the
// patch tests the resourceVersion and nothing else, and its changes apply to either form.
// [Between] selects it automatically for an empty status, and [Write] after the finer patch was
// rejected. A writer that uses Write never fails forever.
//
// # Guarantees
//
// An accepted patch proves the old values that it tests; the rest of the object may have
// changed. A decision that depends on more of the object passes that as guards, or, if it
// depends on all of it, Version.
package vmipatch
