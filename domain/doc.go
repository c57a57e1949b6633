// SPDX-License-Identifier: Apache-2.0

// Package domain is the node plane as a library: which libvirt domain is a
// VirtualMachineInstance, what differs between the two, and how the one is
// brought to match the other.
//
// The parts, in the order data flows through them:
//
//   - [Facts] are all of a node and its cluster that a conversion depends on, the
//     [Layout] of a guest that runs among it; [AssumeFacts] makes up a node that has
//     everything, for tools that are not on one.
//   - [Convert] turns a VirtualMachineInstance and facts into a libvirt domain, by an
//     ordered list of [Pass] values. It reads nothing but its arguments.
//   - [Informer] knows the domains of a hypervisor at any time, each as a [State]:
//     events are hints to it, listings the truth, and one domain that hangs delays no
//     other.
//   - [Diff] compares the wanted domain with the running one, and with what was wanted
//     before, and tells for each difference when it can take effect.
//   - [Decide] says what a node does about a guest, from what it sees of it, a [Sight],
//     and from the lease of package handoff: a [Plan] of what to store, and what to do
//     after that.
//   - [DecideRequest] says what a node does when a user asks for something now: to
//     pause the guest, to reset it, to freeze its file systems.
//   - [Hypervisor] is what a virtualisation daemon has to offer, and what carries out
//     the [Operation] values of a plan. Further abilities, such as [Migrator] and
//     [GuestAgent], are found by type assertion.
//   - [Reflect] brings what was found back into the status of the
//     VirtualMachineInstance, by [Phase], [Interfaces], [VolumeStatus],
//     [LiveMigratable] and others that can be called alone.
//
// What a node is to a guest follows from the lease alone ([RoleOf]; blank is [RoleNone]), and what it does from its
// role and from what its hypervisor has:
//
//	lease      holder   target  others
//	Unclaimed
//	Claimed
//	Offered    offered                  accepts the guest and starts it, or says why not
//	Owned      holder                   keeps the domain as the object wants it, and tells its status
//	Preparing  holder   target          the target makes ready to receive
//	Prepared   holder   target          the holder begins to move the guest
//	Moving     holder   target          the holder moves it, aborts if asked; the target receives it
//	Arrived    holder                   the holder, which was the target, settles what the move has changed
//	Releasing  holder                   ends the guest, in the time it is given
//	Released
//	Lost       holder   target          the holder comes back, and says so first; a target, if it was lost in a move, may have the guest
//	Fenced              target          as above, without the holder
//
// A pass is the same for all of them, and is safe to break off anywhere: what a task needs after a crash is stored
// before the task begins.
//
// A lease is a user's to write where nothing keeps him from it. So a node accepts, starts or makes ready to receive a
// guest only together with the launcher Pod that a controller made for its UID on this node ([Sight.Proof]); a guest
// that runs is not ended for the lack of one.
//
//	events, listings ─▶ Informer ─▶ State ─┐
//	VirtualMachineInstance, lease ─────────┴▶ Sight ─▶ Decide ─▶ Plan ─▶ one patch of the object ─▶ Tasks ─▶ Hypervisor
//	                                            ▲                                                              │
//	                                            └───────────────────────── what it shows ◀────────────────────┘
//
// The package has no cgo and knows no cluster: the driver for libvirt is
// domain/libvirt, the controller that gathers facts and carries out plans is
// domain/domainctrl, an in-memory hypervisor and the suite every driver has to
// pass are in domain/domaintest.
//
// What has to survive a restart of the node agent, the epoch and the grace
// deadline among it, is kept in the domain itself, as [Metadata].
//
// # Differences from KubeVirt
//
// These are on purpose; all else that differs is a fault.
//
//   - A value that cannot be converted is an error with its field, where KubeVirt takes
//     a default, logs a line or leaves it to libvirt: a guest never is another one than
//     was asked for. This goes for architectures, disk buses, and protection too.
//   - The domain has the UUID that the guest reads in its system information, since
//     libvirt insists that they are the same.
//   - Addresses of PCI devices and ports are computed, not read back from libvirt: they
//     are known before there is a domain, and the same on every node.
//   - The chain of images below a disk is always closed, so that QEMU follows no path
//     that an image names itself.
//   - Secure boot needs system management mode, or the guest could write its UEFI
//     variables by itself.
//   - An unset CPU model keeps mpx if the host has it: what follows the host is not taken
//     apart.
//   - Guests with an isolated emulator thread start like any other, for libvirt has
//     pinned all threads before the first instruction; all their I/O threads are pinned,
//     so that none runs on CPUs the guest was promised for itself.
//   - Hotplugged disks share the I/O threads there are, since threads cannot be added
//     while the guest lives.
//   - Files of a guest are in its directory of the node, not in fixed places of a Pod, and
//     KubeVirt's private elements in disks are left out: no libvirt reads them.
//   - Differences are found by alias, serial number and every setting, with the last wish
//     as the third side, where KubeVirt compares target names only; what cannot be changed
//     now is told with its class instead of forgotten.
//   - Sockets and memory are plugged as soon as they are wished for, not at the end of a
//     migration: limits of a Pod are not known here, and who sets them has to let them
//     grow first. CPUs of the guest's own still need a migration.
//   - Devices go to the hypervisor as they are spelled, not in lower case: serial numbers
//     and paths may have capitals.
//   - A pause, the grace deadline and the epoch are in the domain's metadata, not in the
//     memory of a launcher, so that a restart of the agent loses none of them.
//   - Where KubeVirt's label names another node than status.nodeName, the latter waits and
//     neither starts nor ends the guest, for both acting might start it twice.
//   - Disks that the guest cannot write and that every node makes of the same objects are
//     not copied when it moves: its target has made them already.
//   - A migration is refused before it begins, not by the hypervisor later, where it was
//     tried before or a backup runs.
//   - A guest that no lock on a disk image keeps from running twice arrives with its CPUs
//     stopped, and its target lets it run when the source has stored that it has left
//     it. That costs it the time of two writes. libvirt alone lets it run on at the source,
//     beside the one at the target, when it does not hear how the switch went. A guest
//     that post-copy is allowed for is spared, and left to libvirt.
//   - A guest whose post-copy migration has lost its connection is given five minutes in
//     which its halves look for each other. Only then, or once one of them is known to be
//     gone, has it failed.
//   - What waits for the end of a migration is tried for a minute, then told, and holds
//     up nothing any more.
//   - A hypervisor that does not answer is no reason to call a guest failed: it may run.
package domain
