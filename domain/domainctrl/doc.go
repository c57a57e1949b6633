// SPDX-License-Identifier: Apache-2.0

// Package domainctrl is the node half of the control plane as a controller: it
// keeps the domains of one node in line with the VirtualMachineInstances that
// are handed to it, and reports back.
//
// [Reconciler] runs in any controller-runtime manager. It watches the objects
// labelled with its node, as owner or as target of a migration, and the node's Pods
// (three caches, see [NewCaches]), and the domains. A pass is gather, prepare, Decide
// (package domain, pure), store, act:
//
//	VMI, domain ─▶ Sight ─▶ domain.Decide ─▶ one patch of the VMI ─▶ tasks at the hypervisor
//
// The patch is made before any task of the pass is begun. One that changes the
// hand-over lease or the migration state, or that a task follows which touches a
// guest, is made under the object's resourceVersion; one that only reports how the guest
// is, on the condition that lease, phase and labels are as they were, so that it meets
// no other writer. A decision that starts, ends or moves a guest without a patch is made
// again on the object read live. So a stale cache never starts a second guest and never ends the wrong
// one. A task is begun by what the API server answered, and by when it was asked:
// one that starts or moves a guest carries out a command that this answer has open,
// and none that touches a guest is begun, or goes on at the hypervisor, longer than
// handoff.ActWithin after the request was sent; only a live migration that has begun
// is the hypervisors' to finish. A pass that was too slow, because a
// disk took its time or the process was paused, does nothing and looks again. So a
// node that has lost the API server has stopped to act when its guest may be declared
// gone.
//
// What a user can write starts nothing: beside the object stands the launcher Pod that a
// controller made for it (domain.Sight.Proof), from the cache of the node's Pods, and read
// live before anything is made for a guest that is to start or to come.
//
// What runs is never judged by silence. A domain without our metadata is left
// alone, an API server that does not serve the kind says nothing about a guest,
// neither does a lease that cannot be read (an event tells of it),
// and a holder that has lost track of a move asks the target, which alone can
// tell, before it resumes or gives up the guest (package handoff, Stall).
//
// A domain.Informer knows the domains; [Source] makes its changes requests of a
// controller. Besides, everything is looked at when the process starts, when a lost
// connection is back, and from time to time (Reconciler.Resync). That finds guests that
// ended unseen, and files of guests that went while no agent ran.
//
// Every pass has a lane of its own: a worker waits for it a moment (Reconciler.LaneAfter)
// and then serves others, while the pass goes on to its deadline. So any number of
// domains that hang delays no other, and there is never more than one pass over a
// guest. Migrations run beside the workers as well.
//
// [Workspace] prepares the files a guest needs on the node: disks, kernel,
// cloud-init data, disks made of ConfigMaps and Secrets.
package domainctrl
