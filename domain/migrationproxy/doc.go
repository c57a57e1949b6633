// SPDX-License-Identifier: Apache-2.0

// Package migrationproxy carries live migrations between the agents of two nodes, over
// mutual TLS 1.3, so that the hypervisors themselves listen on local sockets only. A
// [Proxy] is a [transport.Transport].
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
// # Authentication
//
// Both ends present a certificate that the cluster's CA has signed, and each checks that
// the other is the expected node: by an [Identity], which by default requires the node's
// name among the certificate's DNS names ([NodeIdentity]). A connection that fails the
// check is closed before a byte of it reaches a hypervisor. [Files] reads certificates
// from files and follows their rotation, which does not disturb open streams.
//
// Sockets are made with mode 0600 from their first moment, for the owner of their folder,
// which has to be the user that QEMU runs as, for QEMU makes its own sockets there. Neither
// symbolic links nor files that are not sockets are followed or removed in their folder.
//
// # Streams
//
// A stream has a bounded buffer in each direction and reads no more than it can pass on: a
// slow end slows down the other. The end of one direction is passed on while the other
// continues, and a truncated stream is never taken for one that ended. A stream that does
// not end by itself is ended by a limit of [Options].
//
// Streams of the guest's memory reach the target's hypervisor in the order in which the
// source's began them, as QEMU before 8.0 requires, which takes the first for the main one
// of several. Nothing is added to a stream for that: the source connects to the target
// sequentially, each time when the previous handshake is complete, and the target connects
// to its hypervisor in the order of arrival. Either end may therefore be another proxy that
// only passes streams on over TLS, such as KubeVirt's virt-handler; streams that such a
// proxy begins concurrently have no order.
package migrationproxy
