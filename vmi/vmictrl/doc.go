// SPDX-License-Identifier: Apache-2.0

// Package vmictrl is the controller of VirtualMachineInstances (VMIs): it gathers the input of
// package vmi and executes its plans.
//
//	gather ─▶ vmi.Snapshot ─▶ vmi.Decide ─▶ vmi.Plan ─▶ act ─▶ vmi.Decide with the results ─▶ one patch
//
// A [Reconciler] runs in any manager, beside other controllers; its [Scope] limits it to
// namespaces, labels or a shard of the VMIs. Parts of it are replaceable by fields: the
// renderer and the annotators of Pods, and in Config the spec validator, the network status,
// the migration evaluator and the topology hints.
//
// # Reads and watches
//
// All reads are from caches and by index, with two exceptions: live reads that confirm own
// writes (see package expectationsctrl), and the absence of a Pod where a VMI would fail or
// lose its finalizer because of it. Every kind that is read is watched, and mapped to the VMIs
// it concerns:
//
//	VirtualMachineInstances      itself
//	Pods                         their controller, and for a Pod controlled by a Pod, that one's; for a
//	                             foreign Pod, the VMI that waits for its name
//	migrations                   the VMI they name
//	PersistentVolumeClaims,      the VMIs whose volumes or backend storage they are
//	DataVolumes
//	profiles, quotas,            VMIs without a Pod
//	namespaces' labels
//	Nodes                        their labels: VMIs that wait for topology hints; their heartbeats: the VMIs
//	                             of an unresponsive node
//	KubeVirt, StorageClasses     all VMIs; those that have a Pod one by one
//	VirtualMachines              the VMI of their name
//
// A change of CDI's own configuration triggers no pass: it is a number that is reported with
// the next change. Other inputs of a Pod, or of API server plugins that reject it, are not
// watched: ConfigMaps of hook sidecars, NetworkAttachmentDefinitions, LimitRanges,
// ServiceAccounts, priority and runtime classes. A VMI that waits for one of those, or for
// room for an attachment Pod, is retried after a minute at most.
//
// CDI's kinds and VirtualMachines are optional. They are watched as long as the cluster serves
// them, without a restart. The scheme of the manager must contain core, storage, kubevirt.io
// and cdi.kubevirt.io; see [AddToScheme].
//
// # Writes
//
// Pods and the backend storage claim, under names derived from their purpose; one patch of a
// Pod that must follow the VMI; and per pass at most one patch of the VMI with the changed
// fields. A start consists of the creation of the Pod, a patch of its readiness gate and
// labels, and three patches of the VMI: Scheduling, handoff, Ready.
//
// A failed action is repeated with back-off, and reported with the text of its first failure as long as it continues: a
// new text at each attempt would be a write, whose event would repeat the pass at once. A creation that was answered with
// a 5xx status is repeated too: a live read finds the object or its absence, and in the latter case the creation is
// repeated under the same name; until the first request has expired, the VMI keeps its finalizer.
//
// The label kubevirt.io/schedulable of a Node is set to false when its agent has sent no heartbeat for three minutes.
//
// Controller and node agent write one object, which has no status subresource and whose lists
// are atomic. The patch therefore is a JSON Patch of the entries that change, each with a test
// of its old value, and without a resourceVersion (see package internal/vmipatch): it
// conflicts with the node agent only where both change the same entry, and each entry has one
// writer. A write that changes ownership (lease, phase or finalizers) also tests everything
// that the decision depended on: of two such writes one is rejected.
package vmictrl
