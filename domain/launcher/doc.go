// SPDX-License-Identifier: Apache-2.0

// Package launcher connects the agent of a node with hypervisors that serve one VMI each, in
// its launcher Pod: a command channel, gRPC over a unix socket in a folder that the Pod
// shares with its node.
//
// A [Server] serves any [domain.Hypervisor] in the launcher. A [Client] is a
// [domain.Hypervisor] with all abilities, which calls one over the socket: an ability that
// the hypervisor behind it lacks is [domain.ErrUnsupported], and errors keep their text and
// their sentinels. A [Connector] finds the sockets of a node's Pods by the Pods' UIDs and
// keeps a [fleet.Fleet] of clients complete.
//
//	agent on the node                             launcher in the Pod
//	Connector ─▶ Fleet ─▶ Client ══ launcher-sock ══▶ Server ─▶ domain.Hypervisor ─▶ the guest
//
// # The socket
//
//	launcher-init-sock ──the guest can be served──▶ launcher-sock ──its domain is undefined, the answer sent──▶ Server.Undefined
//
// It is called launcher-init-sock while the launcher boots and is renamed to launcher-sock
// when the launcher is ready, with KubeVirt's names and in KubeVirt's place in the Pod's
// folder on the node.
//
// A Pod is not trusted. The VMI of its launcher is that of its controller reference, as the
// API server has it ([Connector].Find); any Pod can have a folder and a socket of these
// names. Symbolic links and files that are not sockets are refused. A launcher's reports
// about other domains than its own are left out. Answers are measured before they are
// decoded: bytes, fields, elements of XML and their depth; events are received at a bounded
// rate.
//
// Sockets of migrations are in a folder beside it. So the agent needs no access to the
// Pod's processes, through whose /proc it would otherwise reach them.
//
// # Versions
//
// Every connection begins with Info: each side sends the versions it supports, and the
// highest common one is used. Definitions, devices and metadata of a domain travel as XML. A
// launcher that does not know an element of one refuses it, as [domain.ErrUnsupported],
// before anything of it is lost.
//
// # Time
//
// A call ends with its context, and without a deadline there after 5, 20 or 60 seconds,
// by its kind. The server has a limit of its own ([Server].Longest). A migration has none:
// it continues without the channel, under an identifier that begins it only once.
package launcher
