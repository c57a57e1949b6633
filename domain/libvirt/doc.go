// SPDX-License-Identifier: Apache-2.0

// Package libvirt drives a libvirt daemon as a [domain.Hypervisor] with all the abilities
// of package domain: [domain.Migrator], [domain.PostCopier], [domain.GuestAgent],
// [domain.StatsReader], [domain.Snapshotter], [domain.ConsoleOpener] and
// [domain.MemoryHotplugger]. A feature that the daemon behind the connection lacks is
// [domain.ErrUnsupported].
//
// It is the only package that needs cgo; built without, it compiles and [Open] returns an
// error that explains how to build it. With the build tag libvirt_dlopen neither headers
// nor pkg-config are needed, and libvirt.so.0 is loaded when the first connection is
// opened.
//
// # Connections
//
// A [Driver] keeps one connection for queries and events. Operations use further ones from
// a small pool, so that unresponsive domains do not exhaust the few concurrent calls that a
// daemon permits each client; a migration, an exchange with a guest agent, a query of
// statistics and an open console each have a connection of their own. Operations on one
// domain are serialized, and so are exchanges with one agent, independently. Ending a
// domain waits for its start only: calls that are blocked by an unresponsive domain end
// with it.
//
// A list is one call of the daemon, and statistics are another, however many domains there
// are.
//
//	Open ─▶ connected ◀──events registered, watchers list again── disconnected ─▶ Close
//	            └──────────the daemon is gone, watchers notified──────────▶┘
//
// When the daemon goes away the watchers are notified, calls fail with
// [domain.ErrDisconnected], and the driver reconnects until it is closed. After that,
// events are registered anew and the watchers list again: a domain that ended in between
// left no event.
//
// The event loop of libvirt belongs to the process. It is started before the first
// connection and never stopped.
package libvirt
