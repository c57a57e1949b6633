// SPDX-License-Identifier: Apache-2.0

package nodestandin_test

import (
	"context"
	"testing"
	"time"

	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/internal/nodestandin"
)

// guests has one guest. The client for tests cannot patch those of KubeVirt.
type guests struct {
	client.Client
	only *v1.VirtualMachineInstance
}

func (g *guests) Get(_ context.Context, _ client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	g.only.DeepCopyInto(o.(*v1.VirtualMachineInstance))
	return nil
}

func (g *guests) Patch(_ context.Context, o client.Object, _ client.Patch, _ ...client.PatchOption) error {
	g.only = o.(*v1.VirtualMachineInstance).DeepCopy()
	return nil
}

// lead takes a lease through events.
func lead(t *testing.T, l handoff.Lease, events ...handoff.Event) handoff.Lease {
	t.Helper()
	for _, e := range events {
		var err error
		e.Epoch = l.Epoch
		if l, _, err = handoff.Step(l, e, time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	return l
}

func TestNodes(t *testing.T) {
	offer := handoff.Event{Kind: handoff.Offer, Node: "a"}
	prepare := []handoff.Event{offer, {Kind: handoff.Accept, Node: "a"}, {Kind: handoff.Started, Node: "a"}, {Kind: handoff.Prepare, Node: "b", Tag: "uid-1"}}
	move := append(prepare[:len(prepare):len(prepare)], handoff.Event{Kind: handoff.Ready, Node: "b"}, handoff.Event{Kind: handoff.Begin, Node: "a"})
	for name, test := range map[string]struct {
		events []handoff.Event
		abort  bool
		takes  time.Duration
		hold   nodestandin.Step
		state  handoff.State
		node   string
		ended  bool
	}{
		"nothing is offered":                  {},
		"an offered guest runs":               {events: []handoff.Event{offer}, state: handoff.Owned, node: "a"},
		"an offer that nobody takes":          {events: []handoff.Event{offer}, hold: nodestandin.Accept, state: handoff.Offered, node: "a"},
		"a guest that is to move arrives":     {events: prepare, state: handoff.Owned, node: "b", ended: true},
		"the target does not get ready":       {events: prepare, hold: nodestandin.Ready, state: handoff.Preparing, node: "a"},
		"the source does not begin":           {events: prepare, hold: nodestandin.Begin, state: handoff.Prepared, node: "a"},
		"it moves and moves":                  {events: prepare, hold: nodestandin.TakeOver, state: handoff.Moving, node: "a"},
		"it moves for an hour":                {events: prepare, takes: time.Hour, state: handoff.Moving, node: "a"},
		"it moves for an hour and is aborted": {events: move, takes: time.Hour, abort: true, state: handoff.Owned, node: "a", ended: true},
	} {
		t.Run(name, func(t *testing.T) {
			vmi := &v1.VirtualMachineInstance{}
			vmi.Namespace, vmi.Name, vmi.Status.Phase = "ns", "guest", v1.Scheduled
			if len(test.events) > 1 {
				vmi.Status.Phase, vmi.Status.MigrationState = v1.Running, &v1.VirtualMachineInstanceMigrationState{MigrationUID: "uid-1", AbortRequested: test.abort}
			}
			if len(test.events) > 0 {
				if err := handoff.Put(vmi, lead(t, handoff.Lease{}, test.events...)); err != nil {
					t.Fatal(err)
				}
			}
			c := &guests{only: vmi}
			n := &nodestandin.Nodes{
				Client: c, Takes: func() time.Duration { return test.takes },
				Holds: func(_ *v1.VirtualMachineInstance, s nodestandin.Step) bool { return s == test.hold },
			}
			for range 10 { // more than there are steps
				if _, err := n.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(vmi)}); err != nil {
					t.Fatal(err)
				}
			}
			vmi = c.only
			l, err := handoff.Of(vmi)
			if err != nil || l.State != test.state || vmi.Status.NodeName != test.node {
				t.Errorf("the lease is %+v on %q, %v; want %s on %q", l, vmi.Status.NodeName, err, test.state, test.node)
			}
			if m := vmi.Status.MigrationState; m != nil && (m.Completed != test.ended || m.Failed != (test.abort && test.ended)) {
				t.Errorf("the move: %+v", m)
			}
			if running := vmi.Status.Phase == v1.Running; running != (len(test.events) > 0 && test.hold != nodestandin.Accept) {
				t.Errorf("phase %s", vmi.Status.Phase)
			}
		})
	}
}

func TestNodes_WithoutClient(t *testing.T) {
	if err := (&nodestandin.Nodes{}).SetupWithManager(nil); err == nil {
		t.Error("nodes without a client were set up")
	}
}
