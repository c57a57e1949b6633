// SPDX-License-Identifier: Apache-2.0

// Package launcher is the way from the agent of a node to guests that each have a
// hypervisor of their own, in their launcher Pod: a command channel, gRPC over a unix
// socket in a folder that the Pod shares with its node.
//
// A [Server] serves any [domain.Hypervisor] beside the guest. A [Client] is a
// [domain.Hypervisor] with all abilities, which reaches one over the socket: what the
// hypervisor behind it lacks is [domain.ErrUnsupported], and errors arrive with their
// text and what they mean. A [Connector] finds the sockets of a node's Pods by the
// Pods' UIDs and keeps a [domain.Fleet] of clients complete.
//
//	agent on the node                             launcher in the Pod
//	Connector ─▶ Fleet ─▶ Client ══ launcher-sock ══▶ Server ─▶ domain.Hypervisor ─▶ the guest
//
// # The socket
//
//	launcher-init-sock ──the guest can be served──▶ launcher-sock ──its domain is undefined, the answer sent──▶ Server.Undefined
//
// It is called launcher-init-sock while the launcher boots and is renamed to
// launcher-sock when guests can be served, by KubeVirt's names and in KubeVirt's place
// in the Pod's folder on the node.
//
// A Pod is not to be trusted. Whose launcher is in it, its controller reference says, as
// the API server has it ([Connector].Find); any Pod can have a folder and a socket of
// these names. Symbolic links and whatever is no socket are refused. What a launcher says
// of guests other than its own is left out. Answers are measured before they are read:
// bytes, fields, elements of XML and how deep they are nested; events are heard at a
// bounded rate.
//
// Sockets of migrations are in a folder beside it. So the agent needs no access to the
// Pod's processes, whose /proc would have been the other way to see them.
//
// # Versions
//
// Every connection begins with Info: each side tells the versions it speaks, the highest
// of both is used. A guest's definition, devices and metadata travel as XML. A launcher
// that does not know an element of one refuses it, as [domain.ErrUnsupported], before
// anything of it is lost.
//
// # Time
//
// A call ends with its context, and without a deadline there after
// [ShortTimeout], [LongTimeout] or [ExtendedTimeout], by what it asks for. The
// server has a limit of its own ([Server].Longest). A migration has none: it goes on
// without the channel, under an identifier that begins it only once.
package launcher
