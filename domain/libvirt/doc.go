// SPDX-License-Identifier: Apache-2.0

// Package libvirt drives a libvirt daemon as a [domain.Hypervisor] with all the
// abilities that package domain knows: [domain.Migrator], [domain.PostCopier],
// [domain.GuestAgent], [domain.StatsReader], [domain.Snapshotter],
// [domain.ConsoleOpener] and [domain.MemoryHotplugger]. What the daemon behind the
// connection cannot do is [domain.ErrUnsupported].
//
// It is the only package that needs cgo; built without, it compiles and [Open] tells
// what is missing. With the build tag libvirt_dlopen neither headers nor pkg-config
// are needed, and libvirt.so.0 is looked for when the first connection is opened.
//
// # Connections
//
// A [Driver] keeps one connection for listing and for events. Operations take
// another one each from a small pool, so that a daemon that lets a client have
// few calls open at a time is not held up by domains that hang; a migration has
// a connection of its own, and so have a conversation with a guest agent, a
// question for statistics and an open console. Operations on one domain run one
// after the other, and so do conversations with one agent, apart from them. To end a
// guest waits for its start only: what is stuck in a guest that hangs ends with it.
//
// A list is one call of the daemon, and statistics are another, however many
// domains there are.
//
//	Open ─▶ connected ◀──events registered, watchers list again── disconnected ─▶ Close
//	            └──────────the daemon is gone, watchers told──────────▶┘
//
// When the daemon goes away the watchers are told, calls fail with
// [domain.ErrDisconnected], and the driver tries again until it is closed. After
// the reconnect, events are registered anew and the watchers list again: a guest
// that ended in between left no event.
//
// The event loop of libvirt belongs to the process. It is started before the
// first connection and never stopped.
package libvirt
