// SPDX-License-Identifier: Apache-2.0

// Package vm decides what must happen next to a VirtualMachine (VM): which VirtualMachineInstance (VMI) it should have now.
//
// A [Snapshot] holds the complete input of one decision. [Decide] is pure: it takes the snapshot and the time and returns a
// [Plan]: the actions in order, the new object, the events to emit, the pending waits and when to requeue. [Explain]
// returns the waits alone.
//
//	gather ─▶ Snapshot ─▶ Decide ─▶ Plan ─▶ read what it needs, or act ─▶ one patch of the status
//
// While an own write is pending, nothing is created, deleted or patched; and names are intents: that of a start revision holds the UID and the
// generation of the VM, that of the VMI is the VM's, so a creation that is repeated after a crash conflicts with the first.
// A controller whose creation is refused with AlreadyExists reads the object: one of its own UID is a success.
//
// Strategies, requests, conditions, reasons, messages, and the order of the values of printableStatus are KubeVirt's.
// Intentional differences:
//
//   - an update of the VM's spec is stored before a VMI is created from it, so that the VMI has the generation of what it runs;
//   - a VM gets its finalizer, the observed API versions and its firmware UUID in one update;
//   - a VMI of another controller is reported with its owner, instead of being created in vain on each attempt;
//   - a failed VMI under RerunOnFailure is deleted after its start request is stored, not beside it;
//   - a VMI and its start revision are created and deleted only if a live read of the VM shows the version that the decision rests on;
//   - a start request is also over once its VMI has ended, unless that is started again: it would block all that follow;
//   - a start request for a halted VM is no failure; an unknown request is dropped, as it would block all that follow;
//   - all changes of a VMI are one patch, all of a status one patch;
//   - a VM whose VMI was created is Created from then on, not once the cache has the VMI;
//   - RestartRequired that a CPU or memory change sets keeps its time, and ManualRecoveryRequired outlives a final VMI;
//   - the random part of the back-off follows from the UID of the VMI that failed;
//   - the memory limit of a VMI grows with its memory, whatever became of the request;
//   - a VM that has to start under RerunOnFailure is recorded as such once its VMI exists: a failed start, or DataVolumes
//     that take their time, do not leave it stopped;
//   - DataVolumes that are not ready delay a start, not a stop;
//   - condition Failure is kept while own writes are pending;
//   - revisions of instance types are deleted once there is no VMI that was started with them;
//   - removal of a memory dump that is complete does not rely on its phase being changed by the API;
//   - WaitingForReceiver is also shown before there is a VMI;
//   - events about DataVolumes are emitted with a change, not in each pass.
//
// Not part of it yet: hotplug of interfaces, declarative hotplug of volumes, migration of volumes, and changed block tracking.
package vm
