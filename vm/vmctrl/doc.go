// SPDX-License-Identifier: Apache-2.0

// Package vmctrl is the controller of VirtualMachines (VMs): it gathers the input of package vm and executes its plans.
//
//	gather ─▶ vm.Snapshot ─▶ vm.Decide ─▶ vm.Plan ─▶ act ─▶ one patch of the status
//
// A [Reconciler] runs in any manager, beside other controllers, and beside any controller of VirtualMachineInstances
// (VMIs): this one's or KubeVirt's.
//
// # Reads and watches
//
// All reads are from caches and by index, with these exceptions: the VM itself is read live before a VMI, a start revision or a DataVolume is
// created or adopted, and before a VMI is stopped; an object whose creation is refused because it exists; DataSources, and claims of other namespaces, while a DataVolume has to be created; and what confirms
// own writes (see package expectationsctrl). Every other kind is watched, and mapped to the VMs it concerns:
//
//	VirtualMachines                    itself
//	VMIs                               the VM of their name, and the one that controls them
//	DataVolumes, claims                the VMs whose templates or volumes name them, and the one that controls them
//	ControllerRevisions                the VM that controls them
//	instance types, preferences        the VMs that name them
//	KubeVirt                           all VMs
//
// DataVolumes, instance types and preferences are optional: they are watched as long as the cluster serves them. The
// scheme of the manager must contain what [AddToScheme] adds.
//
// # Writes
//
// The actions of a plan are executed in order up to the first that fails, each as an expectation: as long as the caches have not
// observed it, the VM's status may change and nothing else. Names are intents: a creation that finds an
// object of the VM's own is a success. A write that lost a race is repeated from a new snapshot. Any other failure is
// condition Failure of the VM, and repeated with back-off; it is reported with the text of its first occurrence as long
// as it continues.
//
// The status is one merge patch with the resourceVersion of the VM that the decision rests on, or of the update in the same
// pass: requests that arrive in the meantime are not lost.
//
// The status that a created VMI leads to is stored in the pass that creates it. While the VMI starts, what the status says of it may
// be stored late: under load, of VMs or of the VMIs beside ([Reconciler.Beside]), that the VM is Starting, for 30 seconds at most; without
// load, conditions that do not change what is printed, for 5 seconds. Both are derived from the VMI again in each pass, of any
// replica, and what is deferred is reconsidered at a deadline, with or without an event. Nothing else of a status is deferred.
//
// A DataVolume that copies another volume is created only if the service account of the VM may copy that
// (create on datavolumes/source, or on pods, in its namespace): the controller's own rights are not lent to tenants.
// It is created with the source that was checked, not with a reference to it.
package vmctrl
