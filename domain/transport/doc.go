// SPDX-License-Identifier: Apache-2.0

// Package transport is how the live migrations of a node reach another one: what a node agent needs from a
// [Transport], and the data that the two ends of a migration exchange.
//
// A [Tunnel] is one migration, as one of its nodes sees it; [TunnelOf] reads it from the
// VirtualMachineInstance. The target listens and publishes the [Endpoint] in the status of the VMI, by KubeVirt's
// fields and channels, so that an agent of KubeVirt understands it; the source dials it, and gives the [Route] to
// its hypervisor.
//
// [Direct] leaves all of that to the hypervisors, on a network that is trusted. domain/migrationproxy carries
// migrations over mutual TLS, between unix sockets ([domain.SocketMigrator]) that [SocketName] names as KubeVirt
// does.
package transport
