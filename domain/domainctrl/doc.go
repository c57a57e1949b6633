// SPDX-License-Identifier: Apache-2.0

// Package domainctrl is the controller of a node agent: it converges
// the domains of one node to the VirtualMachineInstances (VMIs) assigned to it, and
// reports their status.
//
// [Reconciler] runs in any controller-runtime manager. It watches the VMIs labelled with
// its node, as owner or as target of a migration, the node's Pods (three caches, see
// [NewCaches]), and the domains. A pass is gather, prepare, Decide (package domain/plan,
// pure), store, act:
//
//	VMI, domain ─▶ Snapshot ─▶ plan.Decide ─▶ one patch of the VMI ─▶ actions at the hypervisor
//
// The patch is written before any action of the pass begins. A patch that changes the
// handoff lease or the migration state, or that an action on a domain follows, is guarded
// by the object's resourceVersion; one that only reports status, by lease, phase and labels
// being unchanged, so that it conflicts with no other writer. A decision that starts, ends
// or migrates a domain without a patch is made again on the object read live. So a stale
// cache never starts a second domain and never ends the wrong one. An action depends on the
// API server's answer and on the time of the request: one that starts or migrates a domain
// carries out a command that this answer leaves open, and none that touches a domain begins,
// or continues at the hypervisor, longer than handoff.ActWithin after the request was sent;
// only a live migration that has begun is the hypervisors' to finish. A pass that was too
// slow, because of a slow disk or a paused process, does nothing and is repeated. So a node
// that has lost the API server has stopped acting before its VMI may be declared gone.
//
// A user's write alone starts nothing: the proof is the launcher Pod that a controller made
// for the VMI (plan.Snapshot.Proof), from the cache of the node's Pods, and read live before
// anything is made for a VMI that starts or arrives here.
//
// Missing information is never evidence. A domain without virtloom's metadata is left alone;
// neither an API server that does not serve the kind nor a lease that cannot be read (an
// event reports it) proves anything about a VMI; and a holder that has lost track of a
// migration asks the target, which alone knows its outcome, before it resumes or gives up
// the domain (package handoff, Stall).
//
// An informer.Informer watches the domains; [Source] turns its changes into requests of a
// controller. Besides, all domains are examined when the process starts, when a lost
// connection is restored, and periodically (Reconciler.Resync). That finds domains that
// ended unobserved, and files of VMIs that were deleted while no agent ran.
//
// Every VMI has a keyed worker: a worker waits for its pass a moment (Reconciler.WorkerWait)
// and then serves other VMIs, while the pass continues until its deadline. So any number of
// unresponsive domains delays no other, and there is never more than one pass over a VMI.
// Migrations run beside the workers as well.
//
// [workspace.Workspace] prepares the files of a VMI on the node: disks, kernel, cloud-init data, disks
// made of ConfigMaps and Secrets.
package domainctrl
