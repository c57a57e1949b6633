// SPDX-License-Identifier: Apache-2.0

// Package expectations answers one question for a controller: does my cache already show what I wrote?
//
// A controller that reads from a watch cache and writes to an API server works on a picture that lags behind its own
// writes. Acting on such a picture creates a second Pod, deletes the wrong one, or undoes a status. A Tracker
// remembers every write until there is evidence that the cache has caught up, and tells an owner whose picture is
// still old to wait.
//
// # The cycle
//
//	note     tok := t.ExpectCreate(owner, ref)        before the request leaves the process
//	write    err := client.Create(ctx, pod)
//	reply   t.Confirm(tok, pod)                       the server said yes; its UID and version sharpen the evidence
//	        t.Exists(tok)                             the server refused the creation: something of that name is there
//	        t.Cancel(tok)                             the server definitely refused
//	        (nothing)                                 the outcome is unknown: it stays expected
//	observe t.Observe(gk, obj, expectations.Added)    from the watch; may wake the owner
//	        t.Seen(tok, obj)                          from the cache, in the owner's own pass; never wakes
//	check   t.Check(owner)                            at the start of the owner's next pass
//	answer  t.Answer(pending, live)                   the live read that an Expired verdict asks for
//
// # What counts as evidence
//
// A creation is settled when an object of that name is seen (of that UID once the server told it), an update when a
// version equal to or newer than the one written is seen or its object is seen removed, a deletion when the object of that
// UID is seen terminating or its removal is seen. A bookmark settles writes whose version is known. A tombstone, a version
// that cannot be compared, or the passing of time settle nothing: the verdict becomes Expired, which asks the caller for a
// live read; Answer feeds that reading back and tells what it found.
//
// A live read tells what the server has, not what the cache shows. So a write that it finds in effect is settled only if
// the cache had its time to show it; otherwise the owner goes on waiting, now for exact evidence (CacheBehind). A reading
// older than the write is believed when a second one, a TTL later, is older as well (ServerBehind): the server's store was
// set back. A reading that cannot be compared settles nothing, ever; see Unordered for the way out.
//
// # Promises
//
// Any number of writes may be outstanding for an owner; none replaces another. Owners are told apart by UID, so an owner
// that is deleted and comes back under its name starts clean. A Tracker starts no goroutine, holds no global state, reads
// time only through Options.Now, and is safe for concurrent use. Wake and the Observer are never called with a lock held.
// Memory is bounded by the writes outstanding; ForgetKey drops those of an owner that is gone.
//
// Writes of one owner are expected to be made by one worker at a time, as work queues guarantee.
package expectations
