// SPDX-License-Identifier: Apache-2.0

package handoff_test

import (
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
)

// at is the time of the examples.
var at = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func printLease(l handoff.Lease, err error) {
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%s epoch=%d turn=%s cause=%s\n", l.State, l.Epoch, l.Turn(), l.Cause)
}

// A VMI starts on one node and migrates to another. Each event carries the epoch that its
// sender saw; an event from a node that may not send it is refused.
func ExampleStep() {
	var lease handoff.Lease
	for _, e := range []handoff.Event{
		{Kind: handoff.Offer, Node: "node-a"},
		{Kind: handoff.Accept, Node: "node-b", Epoch: 1},
		{Kind: handoff.Accept, Node: "node-a", Epoch: 1},
		{Kind: handoff.Started, Node: "node-a", Epoch: 1},
		{Kind: handoff.Prepare, Node: "node-b", Epoch: 1, Tag: "migration-uid"},
		{Kind: handoff.Ready, Node: "node-b", Epoch: 2},
		{Kind: handoff.Begin, Node: "node-a", Epoch: 2},
		{Kind: handoff.TakeOver, Node: "node-b", Epoch: 2},
		{Kind: handoff.Finalize, Node: "node-b", Epoch: 3},
	} {
		next, commands, err := handoff.Step(lease, e, at)
		if err != nil {
			fmt.Printf("%s by %s is refused\n", e.Kind, e.Node)
			continue
		}
		lease = next
		fmt.Printf("%s: %s, epoch %d, held by %s", e.Kind, lease.State, lease.Epoch, lease.Holder)
		for _, c := range commands {
			fmt.Printf("; %s shall %s", c.Node, c.ID)
		}
		fmt.Println()
	}
	move, _ := lease.MoveOutcome("migration-uid")
	fmt.Println("the migration has", move.Result)
	// Output:
	// Offer: Offered, epoch 1, held by node-a
	// Accept by node-b is refused
	// Accept: Owned, epoch 1, held by node-a; node-a shall start/1
	// Started: Owned, epoch 1, held by node-a
	// Prepare: Preparing, epoch 2, held by node-a; node-b shall migrate-in/2
	// Ready: Prepared, epoch 2, held by node-a
	// Begin: Moving, epoch 2, held by node-a; node-a shall migrate-out/2
	// TakeOver: Arrived, epoch 3, held by node-b; node-b shall finalize/3
	// Finalize: Owned, epoch 3, held by node-b
	// the migration has Moved
}

// A VMI that stock KubeVirt placed has no annotation; the lease is derived from its labels.
func ExampleOf() {
	vmi := &v1.VirtualMachineInstance{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{v1.NodeNameLabel: "node-a"}},
		Status:     v1.VirtualMachineInstanceStatus{Phase: v1.Scheduled},
	}
	lease, err := handoff.Of(vmi)
	printLease(lease, err)

	lease, commands, err := handoff.Step(lease, handoff.Event{Kind: handoff.Accept, Node: "node-a", Epoch: lease.Epoch}, at)
	printLease(lease, err)
	if err := handoff.Put(vmi, lease); err != nil {
		fmt.Println(err)
	}
	// Store vmi under its resourceVersion; only then carry out the commands.
	fmt.Println(commands[0].ID)
	// Output:
	// Offered epoch=0 turn=holder cause=WrittenByKubeVirt
	// Owned epoch=0 turn=holder cause=NodeAccepted
	// start/0
}
