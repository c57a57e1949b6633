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
//	reply    t.Confirm(tok, pod)                      the server said yes; its UID and version sharpen the evidence
//	         t.Exists(tok)                            it refused the creation: something of that name is there
//	         t.Cancel(tok)                            it definitely refused
//	         (nothing)                                the outcome is unknown: the write stays expected
//	observe  t.Observe(gk, obj, expectations.Added)   from the watch; may wake the owner
//	         t.Seen(tok, obj)                         from the cache, in the owner's own pass; never wakes
//	check    t.Check(owner)                           at the start of the owner's next pass
//	answer   t.Answer(pending, live)                  the live read that an Expired verdict asks for
//	forget   t.ForgetKey(key)                         the owner is gone
//
// The life of a write, and what Check says of an owner that has no other:
//
//	           Accepted ─▶ Confirm ─┐
//	Expect… ─▶ Exists   ─▶ Exists  ─┼─▶ Waiting ──evidence──▶ Satisfied
//	           Ambiguous ───────────┘      │ TTL                  ▲
//	           Refused  ─▶ Cancel ─────────┼──────────────────────┤
//	                                       ▼                      │ settled: shown, disproved
//	                                    Expired ─▶ live read ─▶ Answer
//	                                       ▲                      │ not yet: cache behind, server behind, unordered
//	                                       └──────── TTL ─────────┘
//
// Classify tells from the error of a write which of the replies it is. Package expectationsctrl does all of this for
// controller-runtime; the Example with informers shows how little it takes with client-go alone.
//
// # What counts as evidence
//
// In the cache, by events and by what Seen is given:
//
//	creation  an object of that name; once Confirm told its UID, one of that UID or, of another UID, at a version as new:
//	          it has been replaced. If the name was taken, also that the object which had it is removed.
//	update    the object at the version written or a newer one, or its removal.
//	deletion  the object of that UID terminating or removed, or another of its name at a newer version.
//	bookmark  settles creations and updates whose version is known and not newer.
//
// Evidence that comes before the reply counts once the reply tells what to look for. A creation that was settled by an
// object which the reply shows to be another one is awaited again.
//
// Versions are compared as numbers of any length; identical ones are equal whatever they look like. A tombstone, a
// version that cannot be compared, and the passing of time settle nothing: the verdict becomes Expired, which asks the
// caller for a live read, whose reading Answer takes in. A cache miss is no evidence at all.
//
// # What a live read finds
//
// It tells what the server has, not what the cache shows. A write in effect is therefore settled (Shown) only if the
// cache had its time to show it, for instance because the object is outside of what the cache holds. Where the outcome
// was unknown, or a relist has just dropped the object from the cache, the owner goes on waiting, now for exact evidence,
// for one TTL or the rest of it at the most (CacheBehind); giving what the cache has to Seen saves that time. What is not
// in effect is settled as well (Disproved): it was never made, or has been undone or replaced.
//
// A reading older than the write was answered from the past, or the server's store was set back, such as by a restore of
// etcd. It is not believed at once: the owner waits for one more TTL (ServerBehind), and if the reading asked for then
// is older as well, the write is lost and settled as Disproved. A reading that cannot be compared settles nothing,
// however often it comes (Unordered), unless it shows another object in the place of the one written. The way
// out is the caller's: Cancel with the Token of the Pending once the cache is known to be current, or Forget.
//
// # Promises
//
// Any number of writes may be outstanding for an owner; none replaces another. Owners are told apart by UID, so an owner
// that is deleted and comes back under its name starts clean. A Tracker starts no goroutine, holds no global state, reads
// time only through Options.Now, and is safe for concurrent use. An owner is woken by the event that settles the last of
// its writes, never by its own calls, with one exception: Confirm, when what was seen before it cannot be compared. Wake
// and the Observer are never called with a lock held.
//
// Writes of one owner are expected to be made by one worker at a time, as work queues guarantee.
//
// # Beside other guards
//
// controller-runtime v0.25 has the option EnableReadYourWritesConsistency of its client, and controllers of Kubernetes 1.37 have
// a consistency store (pkg/controller/util/consistency of k8s.io/kubernetes). Whoever creates objects whose names follow from
// their owner, and can let a worker wait, does well with the first. What differs:
//
//	                        read your writes            consistency store        Tracker
//	is awaited              the newest version written  the newest version       each write, by its
//	                        to an object, a UID that    written for an owner     object: UID and version
//	                        is deleted
//	from                    the answer on               the answer on            before it is sent
//	an answer is lost       nothing is awaited          nothing is awaited       Ambiguous: awaited, and
//	                                                                             settled by a live read
//	who waits               whoever reads, in its       the owner, by an error   the owner, and is woken
//	                        worker; a list, for the     and its back-off         by the event
//	                        writes of all workers
//	for how long            until its context ends      without end              for the TTL, then a
//	                                                                             live read
//	several namespaces      not told apart              not told apart           told apart
//	with a watch each
//	a version that is no    the write reports an error  is not awaited           Expired: a live read
//	number                  after it was made
//
// The test "beside a client that reads its writes" of package expectationsctrl shows the third and the fourth line on a real API
// server. A write from note to evidence and check, by BenchmarkExpectCycle and its peers on one machine: Tracker 0.56 µs, 24 B; consistency store 0.53 µs, 368 B; classical counts 0.23 µs, 64 B; classical UIDs 0.84 µs, 321 B.
//
// # Cost
//
// A write costs one small allocation from note to evidence, and a Check of an owner that waits for nothing costs none and
// takes no lock. Owners and objects are spread over shards, each in a cache line of its own, so that workers do not get
// in each other's way. Memory is bounded by the writes outstanding and given back with them: ForgetKey drops those of an
// owner that is gone, and Check those of a predecessor under the same key that nobody will ask for.
package expectations
