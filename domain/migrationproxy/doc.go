// SPDX-License-Identifier: Apache-2.0

// Package migrationproxy carries live migrations between the agents of two nodes, over
// mutual TLS 1.3, so that the hypervisors themselves listen on local sockets only. A
// [Proxy] is a [domain.Transport].
//
//	source node                                      target node
//	hypervisor ── unix socket ──▶ Proxy ══ TLS ══▶ Proxy ── unix socket ──▶ hypervisor
//
// The target's agent calls [Proxy.Listen]: a TCP port for each channel of the migration,
// the hypervisor's control connection, the guest's memory, and disks that are copied.
// The addresses travel in the status of the VirtualMachineInstance, in KubeVirt's form.
// The source's agent calls [Proxy.Dial]: a unix socket for each channel, named by
// KubeVirt's convention, and a hypervisor that connects to it reaches the one at the
// target.
//
// # Who may connect
//
// Both ends show a certificate that the cluster's CA has signed, and each checks that
// the other is the node the migration is about: by an [Identity], which by default
// wants the node's name among the certificate's DNS names ([NodeIdentity]). A
// connection that does not pass is closed before a byte of it reaches a hypervisor.
// [Files] reads certificates from files and follows their rotation; streams that flow
// are not disturbed by it.
//
// Sockets are made with mode 0600 from their first moment, for the owner of their folder:
// QEMU makes its own there, so whoever it runs as has to be that. Neither symbolic links nor anything else that is not a socket is
// followed or removed in their folder.
//
// # Streams
//
// A stream has a bounded buffer in each direction and reads no more than it could pass
// on: a slow end slows down the other. That one side has finished sending is passed on
// while the other still sends, and a stream that was cut off is never taken for one
// that ended. What does not end by itself does so by a limit of [Options].
//
// Streams of the guest's memory reach the target's hypervisor in the order in which the
// source's began them, as QEMU before 8.0 needs it, which takes the first for the main
// one of several. Nothing is added to a stream for that: the source makes its
// connections to the target one after the other, each when the handshake of the one
// before is complete, and the target connects to its hypervisor in the order in which
// they came. Either end may therefore be another that only passes streams on over TLS,
// as KubeVirt's virt-handler does; what such a one begins at the same time has no order.
package migrationproxy
