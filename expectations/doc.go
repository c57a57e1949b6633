// SPDX-License-Identifier: Apache-2.0

// Package expectations answers one question for a controller: does its cache already show its own writes?
//
// A controller that reads from a watch cache and writes to an API server acts on state that lags behind its own
// writes. Acting on stale state creates a second Pod, deletes the wrong one, or undoes a status. A Tracker records
// every write until there is evidence that the cache has caught up, and holds back an owner whose state is still stale.
//
// # The cycle
//
//	note     tok := t.ExpectCreate(owner, ref)        before the request leaves the process
//	write    err := client.Create(ctx, pod)
//	reply    t.Confirm(tok, pod)                      the server accepted; its UID and version make the evidence exact
//	         t.Exists(tok)                            it refused the creation: an object of that name exists
//	         t.Cancel(tok)                            it definitely refused
//	         (nothing)                                the outcome is unknown: the write stays expected
//	observe  t.Observe(gk, obj, expectations.Added)   from the watch; may wake the owner
//	         t.Seen(tok, obj)                         from the cache, in the owner's own pass; never wakes
//	check    t.Check(owner)                           at the start of the owner's next pass
//	answer   t.Answer(pending, live)                  the live read that an Expired verdict asks for
//	forget   t.ForgetKey(key)                         the owner was deleted
//
// The life of a write, and the state that Check returns for an owner with no other write:
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
// Classify returns, from the error of a write, which of the replies applies. Package expectationsctrl does all of this for
// controller-runtime; the Example with informers shows how little code it takes with client-go alone.
//
// # What counts as evidence
//
// In the cache, by events and by the readings passed to Seen:
//
//	creation  an object of that name; once Confirm set its UID, one of that UID or, of another UID, at a version as new:
//	          it has been replaced. If the name was taken, also the removal of the object that had it.
//	update    the object at the version written or a newer one, or its removal.
//	deletion  the object of that UID terminating or removed, or another of its name at a newer version.
//	bookmark  settles creations and updates whose version is known and not newer.
//
// Evidence that arrives before the reply counts once the reply names the UID and version needed. A creation that was
// settled by an object which the reply shows to be a different one is awaited again.
//
// Versions are compared as numbers of any length; identical ones are equal whatever their form. A tombstone, a
// version that cannot be compared, and the passing of time settle nothing: the verdict becomes Expired, which requests a
// live read from the caller, whose result Answer evaluates. A cache miss is no evidence at all.
//
// # What a live read finds
//
// It returns the state of the server, not of the cache. A write in effect is therefore settled (Shown) only if the cache
// had its time to show it, for instance because the object is outside the cache's scope. Where the outcome was unknown,
// or a relist has just dropped the object from the cache, the owner continues to wait, now for exact evidence, for at
// most one TTL or the rest of it (CacheBehind); passing the cached object to Seen saves that time. A write that is not in
// effect is settled too (Disproved): it was never made, or has been undone or replaced.
//
// A live read older than the write was answered from stale state, or the server's store was reset, such as by a restore
// of etcd. It is not trusted at once: the owner waits for one more TTL (ServerBehind), and if the live read requested
// then is older too, the write is lost and settled as Disproved. A live read that cannot be compared settles nothing,
// however often it recurs (Unordered), unless it shows a different object in the place of the one written. Then the
// caller must decide: Cancel with the Token of the Pending once the cache is known to be current, or Forget.
//
// # Promises
//
// Any number of writes may be outstanding for an owner; none replaces another. Owners are distinguished by UID, so an
// owner that is deleted and recreated under its name starts clean. A Tracker starts no goroutine, holds no global state, reads
// time only through Options.Now, and is safe for concurrent use. An owner is woken by the event that settles the last of
// its writes, never by its own calls, with one exception: Confirm, when a version seen before it cannot be compared. Wake
// and the Observer are never called with a lock held.
//
// Writes of one owner are expected to be made by one worker at a time, as work queues guarantee.
//
// # Compared with other guards
//
// controller-runtime v0.25 has the option EnableReadYourWritesConsistency of its client, and controllers of Kubernetes 1.37 have
// a consistency store (pkg/controller/util/consistency of k8s.io/kubernetes). Whoever creates objects whose names follow from
// their owner, and can block a worker, is well served by the first. The differences:
//
//	                        read your writes            consistency store        Tracker
//	awaited                 the newest version written  the newest version       each write, by its
//	                        to an object, a UID that    written for an owner     object: UID and version
//	                        is deleted
//	from                    the answer on               the answer on            before it is sent
//	if an answer is lost    nothing is awaited          nothing is awaited       Ambiguous: awaited, and
//	                                                                             settled by a live read
//	waiting party           every reader, in its        the owner, by an error   the owner, and is woken
//	                        worker; a list, for the     and its back-off         by the event
//	                        writes of all workers
//	duration                until its context ends      unlimited                for the TTL, then a
//	                                                                             live read
//	several namespaces      counted as one              counted as one           distinguished
//	with a watch each
//	a version that is not   the write reports an error  not awaited              Expired: a live read
//	a number                after it was made
//
// The test "beside a client that reads its writes" of package expectationsctrl shows the third and the fourth row on a real API
// server. A write from note to evidence and check, by BenchmarkExpectCycle and its peers on one machine: Tracker 0.56 µs, 24 B; consistency store 0.53 µs, 368 B; classical counts 0.23 µs, 64 B; classical UIDs 0.84 µs, 321 B.
//
// # Cost
//
// A write costs one small allocation from note to evidence, and a Check of an owner that waits for nothing costs none and
// takes no lock. Owners and objects are spread over shards, each in a cache line of its own, so that workers do not
// contend. Memory is bounded by the outstanding writes and released with them: ForgetKey drops those of a deleted owner,
// and Check those of a predecessor under the same key that no caller will check for.
package expectations
