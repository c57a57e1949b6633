// SPDX-License-Identifier: Apache-2.0

// Package expectationsctrl connects package expectations to controller-runtime.
//
// A [Gate] does all of this for one controller:
//
//	NewGate(mgr, Options{})   once, beside the controller
//	gate.Attach(builder)      every event of the controller's watches is observed, and waiting owners are enqueued
//	gate.Check(ctx, owner)    at the start of Reconcile: may this owner act on what the cache shows?
//	gate.For(owner)           a client.Client; its writes are awaited automatically
//	gate.Forget(key)          when the owner is not found
//
// # What a write waits for
//
// Each write is noted before it is sent and waits for its own object and version, by group and kind: whether the
// controller reads its own types, unstructured objects or metadata alone, and writes in another of these forms, does
// not matter. A kind should be watched and read in one form, as two forms are two caches of which one may lag.
//
//	create                       an object of the UID that the server answered, or newer than that
//	create of existing object    that object, from a live read; nothing, if it is gone by then
//	update, patch, apply         the version that the server answered; one that the cache shows already, if nothing changed
//	status, other subresources   likewise, where the answer is the object itself: not scale, eviction, binding, token
//	the last finalizer           the removal of the object
//	delete                       the object of that UID terminating or gone
//	delete of terminating object the version that the server then has, from a live read
//	create, outcome unknown      a live read by the next Check: it can be repeated at once if nothing is found
//	other outcome unknown        any of these, or a live read after the TTL
//	refused, dry run             nothing
//
// A write to an object that the cache leaves out, by its selectors or namespaces, is seen by no event: it waits for the
// TTL and is then settled by a live read, or at once if Options.Hidden reports it. Writes that no event identifies are
// not sent: creations with a generated name, deletions without a UID, deletions of collections.
//
// # Creations that arrive late
//
// A creation that was answered by a 5xx status, or not at all, may be carried out after a live read found no object.
// Names are intents, so repeating it is safe: of two creations under a name one is refused. It is not safe to conclude
// that the object does not exist, as it would be orphaned when it appears: [Gate.Late] lists such creations until their
// TTL has passed, for a caller that is about to release the owner.
//
// # Observability
//
// [Metrics], as Options.Observer, counts for Prometheus: outstanding writes, their time to evidence, the evidence, the
// expired ones, and live reads. Check adds events to the OpenTelemetry span of its context: expectations.held, with all
// writes that a pass waits for, and expectations.live_read.
package expectationsctrl
