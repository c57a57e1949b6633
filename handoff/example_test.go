// SPDX-License-Identifier: Apache-2.0

package handoff_test

import (
	"context"
	"errors"
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
	fmt.Printf("%s epoch=%d responsible=%s cause=%s\n", l.State, l.Epoch, l.Responsible(), l.Cause)
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
		if errors.Is(err, handoff.ErrRefused) {
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
	// Offered epoch=0 responsible=node cause=WrittenByKubeVirt
	// Owned epoch=0 responsible=node cause=NodeAccepted
	// start/0
}

// A controller asks whether the domain of an unresponsive node is gone, until there is evidence.
func ExampleFencer() {
	powerOff := handoff.FencerFunc(func(_ context.Context, g handoff.Guest, node string) (*handoff.Evidence, error) {
		// Ask the machine's management controller to cut the power, and return nil until it confirms that.
		return &handoff.Evidence{Kind: handoff.FenceConfirmed, Detail: node + " is powered off"}, nil
	})
	lease := handoff.Lease{State: handoff.Lost, Was: handoff.Owned, Epoch: 4, Holder: "node-a"}
	evidence, err := powerOff.Fence(context.Background(), handoff.Guest{Epoch: lease.Epoch}, lease.Holder)
	if err != nil || evidence == nil {
		return
	}
	lease, _, err = handoff.Step(lease, handoff.Event{Kind: handoff.Fence, Epoch: 4, Node: "node-a", Evidence: evidence}, at)
	printLease(lease, err)
	// Output: Fenced epoch=5 responsible=controller cause=FenceConfirmed
}

// after returns the lease after the events, each sent at its epoch.
func after(l handoff.Lease, events ...handoff.Event) handoff.Lease {
	for _, e := range events {
		e.Epoch = l.Epoch
		next, _, err := handoff.Step(l, e, at)
		if err != nil {
			fmt.Println(err)
		}
		l = next
	}
	return l
}

// started returns the lease of a VMI that runs on node-a.
func started() handoff.Lease {
	return after(handoff.Lease{}, handoff.Event{Kind: handoff.Offer, Node: "node-a"},
		handoff.Event{Kind: handoff.Accept, Node: "node-a"}, handoff.Event{Kind: handoff.Started, Node: "node-a"})
}

// A node carries out the open commands of a lease, as long as the API server has confirmed it a moment
// ago. After that, another node may have the VMI.
func ExampleLease_Authorize() {
	lease := after(started(), handoff.Event{Kind: handoff.Stop, Node: "node-a"})
	for _, later := range []time.Duration{10 * time.Second, 2 * handoff.ActWithin} {
		for _, c := range lease.Open {
			if err := lease.Authorize(c, at, at.Add(later)); err != nil {
				fmt.Println(c.ID, "-", err)
				continue
			}
			switch c.Kind {
			case handoff.CommandStart:
				fmt.Println("start the domain")
			case handoff.CommandStop:
				fmt.Println("stop the domain within its grace period")
			case handoff.CommandFinalize:
				fmt.Println("carry out what waited for the end of the migration")
			}
		}
	}
	// Output:
	// stop the domain within its grace period
	// stop/1 - handoff: the lease was not confirmed in time: last at 2026-01-01T00:00:00Z, at most 1m0s ago is needed
}

// After a crash, the parties of a migration read how it ended from the lease.
func ExampleLease_MoveOutcome() {
	explain := func(o handoff.Outcome) string {
		switch o.Result {
		case handoff.ResultMoved:
			return "the target runs the VMI"
		case handoff.ResultReverted, handoff.ResultCancelled:
			return "the holder still runs the VMI, try again: " + o.Message
		case handoff.ResultEnded:
			return "the VMI has ended"
		case handoff.ResultUnknown:
			return "the target is fenced, and cannot be asked"
		}
		return string(o.Result)
	}
	prepared := after(started(), handoff.Event{Kind: handoff.Prepare, Node: "node-b", Tag: "migration-uid"}, handoff.Event{Kind: handoff.Ready, Node: "node-b"})
	moving := after(prepared, handoff.Event{Kind: handoff.Begin, Node: "node-a"})
	for _, lease := range []handoff.Lease{
		after(prepared, handoff.Event{Kind: handoff.Cancel, Tag: "migration-uid", Message: "the drain was canceled"}),
		after(moving, handoff.Event{Kind: handoff.Revert, Node: "node-a", Message: "connection lost"}),
		after(moving, handoff.Event{Kind: handoff.TakeOver, Node: "node-b"}),
		after(moving, handoff.Event{Kind: handoff.Stall, Node: "node-a"}, handoff.Event{Kind: handoff.Fence, Node: "node-b", Evidence: &handoff.Evidence{Kind: handoff.FenceConfirmed}}),
		moving,
	} {
		if o, ended := lease.MoveOutcome("migration-uid"); ended {
			fmt.Println(explain(o))
		} else {
			fmt.Println("not ended")
		}
	}
	// Output:
	// the holder still runs the VMI, try again: the drain was canceled
	// the holder still runs the VMI, try again: connection lost
	// the target runs the VMI
	// the target is fenced, and cannot be asked
	// not ended
}

// An overdue step changes nothing by itself; a monitor reports the responsible component.
func ExampleLease_Responsible() {
	offered := after(handoff.Lease{}, handoff.Event{Kind: handoff.Offer, Node: "node-a", Within: handoff.Offered.Within()})
	preparing := after(started(), handoff.Event{Kind: handoff.Prepare, Node: "node-b", Tag: "migration-uid"})
	stopping := after(started(), handoff.Event{Kind: handoff.Stop, Node: "node-a", Within: handoff.Releasing.Within()})
	for _, lease := range []handoff.Lease{offered, preparing, started(), stopping} {
		fmt.Printf("%s - responsible: %s - overdue in an hour: %t\n", lease.State, lease.Responsible(), lease.Overdue(at.Add(time.Hour)))
	}
	// Output:
	// Offered - responsible: node - overdue in an hour: true
	// Preparing - responsible: target node - overdue in an hour: true
	// Owned - responsible: node - overdue in an hour: false
	// Releasing - responsible: node - overdue in an hour: true
}

// An agent has lost the answer to its patch. It reads the lease again: if it is the one that it sent, the patch was
// stored, and its command is to be carried out.
func ExampleLease_Equal() {
	offered := after(handoff.Lease{}, handoff.Event{Kind: handoff.Offer, Node: "node-a"})
	sent := after(offered, handoff.Event{Kind: handoff.Accept, Node: "node-a"})
	for _, read := range []handoff.Lease{offered, sent} {
		if !read.Equal(sent) {
			fmt.Println("not stored, try again")
		} else if c, open := read.Command(handoff.CommandStart); open {
			fmt.Println("stored:", c.ID)
		}
	}
	// Output:
	// not stored, try again
	// stored: start/1
}
