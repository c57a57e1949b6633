// SPDX-License-Identifier: Apache-2.0

// Package instancetype resolves the instance type and the preference of a VirtualMachine (VM) and applies them to the
// VirtualMachineInstance (VMI) made from it.
//
// It is pure. What has to be read is returned as a list of [Ref], and what was read comes back as [Objects], so each
// question is asked again until nothing is missing:
//
//	Find   ─▶ which instance type and which preference, or what to read next
//	Infer  ─▶ which ones the labels of a volume or of its boot source name (admission)
//	Sync   ─▶ which ControllerRevisions are created, what the status refers to, or the expanded VM (controller)
//	Apply  ─▶ the VMI with both, or all fields that conflict
//	Check  ─▶ whether the requirements of the preference are met (admission)
//
// Kinds, names, labels, messages and precedence are KubeVirt's. Intentional differences:
//
//   - all conflicts are named at once: KubeVirt names those of memory one by one;
//   - the content of an existing ControllerRevision is compared after decoding, so that one that an older release
//     stored is equal to the same object today;
//   - a revision is used only if the VM controls it, or the user names it in revisionName: a status that a user
//     wrote does not select another VM's revision;
//   - a name that would be too long for a ControllerRevision is reported with field and remedy before anything is created;
//   - an old revision is not deleted with its upgrade: while the VMI exists, the spec it was started with refers to it;
//   - chains of DataSources are followed to a bounded depth.
package instancetype
