// SPDX-License-Identifier: Apache-2.0

package explore

import (
	"slices"

	v1 "kubevirt.io/api/core/v1"
)

// Scripts that lead to where scenarios start.
const (
	// runs: the guest runs on a, all know, nothing is under way.
	runs = "settle\nexpect a=running lease=Owned holder=a\n"
	// stopped: the VirtualMachine ran and was stopped, asleep: it has never run.
	stopped = runs + "user orders Halted\nsettle\nexpect a=none vmi=none\n"
	asleep  = "settle\nexpect a=none vmi=none\n"
	// behind: the VirtualMachine was changed while it was restarted, and the second leader has not seen the change.
	behind = runs + `user orders restart
until vmi=none requests=2
c2 becomes the leader
user orders edit
c1 sees everything
`
	// moves: a migration was asked for and its Pod is on b.
	moves = runs + "user asks for m1\nuntil target1=b\n"
	// begins: the move has begun, memory is being copied.
	begins = moves + `until lease=Moving b=incoming
c1 sees everything
b sees everything
a sees everything
expect lease=Moving holder=a target=b a=running b=incoming
`
)

// plus returns the budget with one more of each.
func (b budget) plus(more ...fault) budget {
	for _, f := range more {
		b[f]++
	}
	return b
}

// many returns the budget with n of one kind.
func (b budget) many(f fault, n uint8) budget {
	b[f] = n
	return b
}

var (
	// messages is what may go wrong between the processes and the API server.
	messages = budget{}.plus(crash, answerLoss, requestLoss, delay, relist, oldList)
	// nodes is what may go wrong with nodes.
	nodes = budget{}.plus(crash, deafness, cut, death, eviction)
)

// Scenarios are what is explored: every way in which the stated number of faults
// can fall, at any point, of any process.
func Scenarios() []Scenario {
	return slices.Clone([]Scenario{
		{Name: "boot, deletion", Faults: 2, lag: 1, allow: messages.plus(deletion)},
		{Name: "boot, deletion, two leaders", Faults: 2, lag: 1, allow: budget{}.plus(leaderChange, answerLoss, delay, deletion)},
		{Name: "boot, silent nodes", Faults: 2, lag: 1, allow: nodes.plus(answerLoss).many(timePassing, 4)},
		{Name: "deletion", Start: runs, Faults: 2, lag: 2, allow: messages.plus(deletion, guestEnd)},
		{Name: "move", Start: runs, Faults: 1, lag: 1, allow: messages.plus(moveWish)},
		{Name: "boot, unprepared", Faults: 3, lag: 1, allow: budget{}.plus(crash, answerLoss, deletion).many(preparationFailure, 2)},
		{Name: "move, unprepared", Start: moves, Faults: 2, lag: 1, allow: budget{}.plus(crash, cancellation).many(preparationFailure, 2)},
		{Name: "move, long lag", Start: moves, Faults: 1, lag: 4, allow: budget{}.plus(moveFailure, moveBreak)},
		{Name: "move, abort", Start: runs, Faults: 1, lag: 1, allow: budget{}.plus(moveWish, cancellation, moveFailure, moveBreak)},
		{Name: "move, abort, two leaders", Start: moves, Faults: 1, lag: 1, allow: budget{}.plus(leaderChange, cancellation)},
		{Name: "move, deletion", Start: moves, Faults: 1, lag: 1, allow: budget{}.plus(deletion, crash, moveBreak)},
		{Name: "move onto the same node", Start: runs, Faults: 2, lag: 1, allow: budget{}.plus(moveWish, misplacement, crash)},
		{Name: "switch", Start: begins, Faults: 2, lag: 1, allow: messages.plus(moveFailure, moveBreak, guestEnd, cancellation)},
		{Name: "switch, silent nodes", Start: begins, Faults: 2, lag: 1, allow: nodes.plus(moveBreak).many(timePassing, 4)},
		{Name: "switch, held", Start: begins, Faults: 2, lag: 1, holding: true, allow: messages.plus(moveFailure, moveBreak, guestEnd, cancellation)},
		{Name: "switch, held, silent nodes", Start: begins, Faults: 2, lag: 1, holding: true, allow: nodes.plus(moveFailure, moveBreak).many(timePassing, 4)},
		{Name: "switch, held, deletion", Start: begins, Faults: 2, lag: 1, holding: true, allow: budget{}.plus(deletion, crash, moveBreak, moveFailure)},
		{Name: "switch, held, guest ends", Start: begins, Faults: 2, lag: 1, holding: true, settle: 20, allow: budget{}.plus(moveFailure, guestEnd)},
		{Name: "switch, held, node dies", Start: begins, Faults: 2, lag: 1, holding: true, settle: 20, allow: budget{}.plus(moveFailure, death).many(timePassing, 4)},
		{Name: "move, silent nodes", Start: moves, Faults: 1, lag: 1, allow: nodes.plus(moveBreak).many(timePassing, 3)},
		{Name: "node loss", Start: runs, Faults: 2, lag: 1, allow: nodes.plus(guestEnd, deletion).many(timePassing, 5)},
		{Name: "node loss, two leaders, clocks apart", Start: runs, Faults: 2, lag: 1, skew: 1, allow: nodes.plus(leaderChange).many(timePassing, 5)},
		{Name: "VM, boot", machine: v1.RunStrategyAlways, orders: ordersOf(halted, restart), Faults: 2, lag: 1, settle: vmSettle, allow: messages.plus(ordering, deletion)},
		{Name: "VM, boot, two leaders", machine: v1.RunStrategyAlways, orders: ordersOf(halted), Faults: 2, lag: 2, settle: vmSettle, allow: budget{}.plus(leaderChange, answerLoss, delay, ordering)},
		{Name: "VM, restart", machine: v1.RunStrategyAlways, Start: runs, orders: ordersOf(restart), Faults: 2, lag: 2, settle: vmSettle, allow: messages.plus(ordering)},
		{Name: "VM, restart, two leaders", machine: v1.RunStrategyAlways, Start: runs, orders: ordersOf(restart, halted), Faults: 2, lag: 2, settle: vmSettle, allow: budget{}.plus(leaderChange, leaderChange, answerLoss, delay, ordering)},
		{Name: "VM, stopped and started", machine: v1.RunStrategyAlways, Start: stopped, orders: ordersOf(always, halted), Faults: 2, lag: 2, settle: vmSettle, allow: messages.many(ordering, 2)},
		{Name: "VM, stopped and started, two leaders", machine: v1.RunStrategyAlways, Start: stopped, orders: ordersOf(always, halted), Faults: 2, lag: 3, settle: vmSettle, allow: budget{}.plus(leaderChange, crash, oldList).many(ordering, 2)},
		{Name: "VM, live update", machine: v1.RunStrategyAlways, Start: runs, orders: ordersOf(edit, tolerate), Faults: 2, lag: 2, settle: vmSettle, allow: messages.many(ordering, 2)},
		{Name: "VM, one leader is behind", machine: v1.RunStrategyAlways, Start: behind, orders: ordersOf(edit, restart), Faults: 1, lag: 6, settle: vmSettle, allow: budget{}.plus(crash, answerLoss)},
		{Name: "VM, Manual", machine: v1.RunStrategyManual, Start: asleep, orders: ordersOf(start, stop, restart), Faults: 2, lag: 1, settle: vmSettle, allow: messages.plus(guestEnd, deletion).many(ordering, 2)},
		{Name: "VM, RerunOnFailure", machine: v1.RunStrategyRerunOnFailure, Start: runs, orders: ordersOf(start, stop, restart), Faults: 2, lag: 1, settle: vmSettle, allow: messages.plus(guestEnd, death, ordering).many(timePassing, 5)},
		{Name: "VM, Once", machine: v1.RunStrategyOnce, Start: runs, orders: ordersOf(stop), Faults: 2, lag: 1, settle: vmSettle, allow: messages.plus(guestEnd, deletion, ordering)},
		{Name: "VM, node loss", machine: v1.RunStrategyAlways, Start: runs, orders: ordersOf(restart), Faults: 2, lag: 1, settle: vmSettle, allow: nodes.plus(guestEnd, ordering).many(timePassing, 5)},
		{Name: "VM, deletion", machine: v1.RunStrategyAlways, Start: runs, orders: ordersOf(restart), Faults: 2, lag: 2, settle: vmSettle, allow: messages.plus(deletion, ordering)},
	})
}

// WildVM is that of random walks of a VirtualMachine.
func WildVM() Scenario {
	s := Wild(false)
	s.Name, s.machine, s.Start, s.orders = "everything, VM", v1.RunStrategyAlways, runs, ^orderSet(0)
	s.allow = s.allow.many(moveWish, 0).many(ordering, 20).many(guestEnd, 4)
	return s
}

// Wild is the scenario of random walks: everything may happen, again and again, to a guest
// that has begun to move. With holding, guests that move arrive held.
func Wild(holding bool) Scenario {
	all := messages.plus(leaderChange, deafness, cut, death, moveFailure, moveBreak, guestEnd, misplacement, preparationFailure, cancellation, deletion)
	for _, f := range []fault{crash, answerLoss, requestLoss, delay, relist, deafness, cut, moveFailure, moveBreak, misplacement, preparationFailure, leaderChange} {
		all[f] = wildly
	}
	name := "everything"
	if holding {
		name += ", held"
	}
	return Scenario{Name: name, Start: begins, Faults: wildly, holding: holding, skew: 1, allow: all.many(timePassing, wildly).many(moveWish, 2)}
}

// vmSettle is out of how many states of a VirtualMachine one is let settle.
const vmSettle = 100

// wildly is how often in a walk what may happen again and again does at most.
const wildly = 60
