// SPDX-License-Identifier: Apache-2.0

// Package vmictrl is the controller of VirtualMachineInstances: it gathers what
// package vmi decides upon, and does what that decides.
//
//	gather ─▶ vmi.Snapshot ─▶ vmi.Decide ─▶ vmi.Plan ─▶ act ─▶ vmi.Decide with what came of it ─▶ one patch
//
// A [Reconciler] runs in any manager, beside other controllers; its [Scope] limits it
// to namespaces, labels or a shard of the guests. Parts of it are replaced by fields:
// what renders Pods, what annotates them, and in Config what validates specs, computes
// the status of interfaces, tells when a guest must migrate and on which clock it
// counts.
//
// # What is read, and what wakes a guest
//
// All reads are from caches and by index, but for two: what one's own writes need to
// be believed (see package expectationsctrl), and the absence of a Pod where a guest
// would fail or its object go because of it. Every kind that is read is watched, and
// maps to the guests it concerns:
//
//	VirtualMachineInstances      itself
//	Pods                         their controller, and for a Pod controlled by a Pod, that one's; for a
//	                             foreign Pod, who waits for its name
//	migrations                   the guest they name
//	PersistentVolumeClaims,      the guests whose volumes name them, and whose state they keep
//	DataVolumes
//	profiles, quotas,            guests without a Pod
//	namespaces' labels
//	Nodes                        their labels: guests that wait for a clock; their heartbeats: the guests of
//	                             one that has fallen silent
//	KubeVirt, StorageClasses     all guests; those that have a Pod one by one
//	VirtualMachines              the guest of their name
//
// CDI's own configuration wakes nobody: it is a number that is told with the next
// change. What a Pod is rendered from beside, or is refused for by other plugins of the
// API server, is not watched: ConfigMaps of hook sidecars, NetworkAttachmentDefinitions,
// LimitRanges, ServiceAccounts, classes of priority and runtime. Who waits for one of
// those, or for room for a Pod that brings volumes, tries again after a minute at most.
//
// CDI's kinds and VirtualMachines need not be served. They are watched from when they
// are to when they no longer are, without a restart. The scheme of the manager must
// know core, storage, kubevirt.io and cdi.kubevirt.io; see [AddToScheme].
//
// # What is written
//
// Pods and the claim of a guest's state, under names that follow from their purpose;
// one patch of a Pod when it has to follow the guest; and at most one patch of the
// guest in a pass, of what has changed, or none. A start is the creation of the Pod, a
// patch of its readiness gate and labels, and three patches of the guest: scheduling,
// handed over, ready.
//
// An action that fails is repeated with the back-off of errors, and told in the words of its first failure as long as
// it goes on: a text that is new at each attempt would be a write, whose event repeats the pass at once. So is a creation
// that was answered by a 5xx status: a live read tells whether there is an object, and if not the creation is repeated
// under the same name; until the first request is too late to be carried out, the guest keeps its finalizer.
//
// The label kubevirt.io/schedulable of a Node is written, to false, when its agent has been silent for three minutes.
//
// Two halves write one object, which has no status subresource and whose lists are
// atomic. The patch therefore is a JSON Patch of the entries that change, each tested
// to be as it was, and without a resourceVersion (see package internal/vmipatch): it
// meets the writes of the node half only where both change the same entry, and of
// those each entry has one writer. What decides on who has the guest, its lease, its
// phase, its finalizers, is in addition tested to be all as it was decided upon: of
// two such writes one is refused.
package vmictrl
