// SPDX-License-Identifier: Apache-2.0

// Package vmipatch turns a decision about a VirtualMachineInstance into a JSON Patch
// (RFC 6902), which several writers of one object send without its resourceVersion and
// which is refused only if they really touch the same thing.
//
// The definition of VirtualMachineInstance has no status subresource and its lists are
// atomic, so a merge patch that leaves out the resourceVersion loses conditions of other
// writers, server-side apply fights over whole lists, and an optimistic lock fails for every
// unrelated write. [Between] compares two versions instead, changes what differs and
// nothing else, and tests what it changes to be as it was.
//
// # What is tested
//
// First metadata.uid, so that a successor of the same name is never touched; then each
// [Guard]; then, for each change:
//
//   - a label or annotation: its old value, or that it is not there. Where there were no
//     labels at all, that there are none: the patch has to add the map.
//   - finalizers: one that is removed, at its place; all of them when one is added.
//   - a field of the status: its old value, or that it is not there. What is removed
//     as a whole, such as migrationState, is tested field by field.
//   - an element of a list that has a key is changed at its place and field by field, its key
//     and what changes being tested: volumeStatus and interfaces by name, migratedVolumes
//     by volumeName, phaseTransitionTimestamps by phase. Of conditions, by type, also
//     status, reason and message are tested, since they make sense together only: so no
//     condition is a mixture of two writers' words. Of an element that is removed all is
//     tested. Where elements are added, the list must still have just the elements it had, as
//     two writers might add the same one.
//   - any other list is replaced as a whole and tested so: lists of plain values, and
//     those whose keys are missing, not unique, or in another order than before. So are
//     interfaces that nobody has named.
//
// # What cannot be tested
//
// A test compares with the text that is stored, and a typed client does not know it. Times
// and quantities, which may be stored in another form than the one they are encoded in
// ("1024Mi" and "1Gi"), are changed without a test. A zero that is encoded always
// (runtimeUser 0, an empty guestOSInfo) may stand for a missing field, and neither is tested.
// A missing field and one that is null are the same to a test, and whole elements are never
// compared, so that it does not matter whether another writer stored lastProbeTime: null.
//
// There remain texts that differ from what a typed client sees: an empty list or string
// that is stored where KubeVirt's types leave it out. A test of its absence fails for ever.
// And an object may have no status at all, or an empty one, which looks the same. The guard
// [Version] is the way out: with it the patch tests the resourceVersion and nothing else, and
// its changes apply to either form. [Between] chooses it by itself for an empty status, and
// [Write] when the finer patch was refused. A writer that uses Write never waits for ever.
//
// # What a patch does not prove
//
// That such a patch was accepted says that what it tests was as it was; the rest of the
// object may have changed. A decision that depends on more of the object names that as
// guards, or, if it depends on all of it, Version.
package vmipatch
