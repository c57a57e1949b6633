// SPDX-License-Identifier: Apache-2.0

// Package informer answers which domains a hypervisor has, at any time and without a call to it.
//
// An [Informer] keeps a cache of [domain.State] values. The events of a hypervisor are only hints and
// its bulk listing is authoritative, so the informer reads single domains for a hint or a difference,
// and lists again at intervals and after each reconnect: an event that is late, duplicate or missing
// loses nothing. An unresponsive domain delays no other and keeps its last known state, marked as
// stale. [Informer.Watch] streams each [Change], merged per domain for slow receivers, and
// [Informer.Connection] reports whether the hypervisor answers.
//
// The package never changes a domain, and never interprets one: package domain/plan does. Cached
// states may be out of date; a caller that acts on a domain reads it from the hypervisor first.
//
//	i := &informer.Informer{Hypervisor: driver}
//	go i.Run(ctx)
//	for change := range i.Watch(ctx) {
//		enqueue(change.Name)
//	}
package informer
