// SPDX-License-Identifier: Apache-2.0

// Package soak lets a control plane run for a long time under random operations and faults, and judges whether it
// leaks anything or writes without end.
//
// User does what users do, at random: it starts, moves, changes, ends and deletes guests. Judge looks at Samples
// that were taken whenever everything had come to rest, and at how often objects were written. Both serve two soaks:
//
// The simulated one is World: the real controllers (packages vmictrl and migrationctrl, with evacuation and updates)
// and a real agent of each node (package domainctrl, with hypervisors in memory) with their managers, informers and
// queues, at an API server in memory (package memapi), in a bubble of testing/synctest. No sleep is real: a day takes
// minutes. Requests fail before or after they were carried out, or are carried out late; watch events are late and watches break;
// others write to the same objects; controllers are killed, nodes die and come back, or are silent for a while. After
// every write the world checks what must hold at any time, and whenever it has let everything come to rest what must
// hold then. The seed says what is done and what goes wrong; which of several goroutines goes first it does not say,
// so that a failure may need a few runs to show again.
//
// The real one is Real: the daemon in a process of its own at a real API server.
package soak
