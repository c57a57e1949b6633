// SPDX-License-Identifier: Apache-2.0

package handoff_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/virtloom/virtloom/handoff"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

const (
	nodeA = "a"
	nodeB = "b"
	tag   = types.UID("migration-1")
)

func TestStepFollowsAGuestThroughItsLife(t *testing.T) {
	deadline := metav1.NewTime(now.Add(time.Minute))
	steps := []struct {
		event handoff.Event
		want  handoff.Lease
	}{
		{handoff.Event{Kind: handoff.Offer, Node: nodeA, Within: time.Minute},
			handoff.Lease{State: handoff.Offered, Epoch: 1, Holder: nodeA, Deadline: &deadline}},
		{handoff.Event{Kind: handoff.Accept, Node: nodeA, Epoch: 1},
			handoff.Lease{State: handoff.Owned, Epoch: 1, Holder: nodeA}},
		{handoff.Event{Kind: handoff.Prepare, Node: nodeB, Epoch: 1, Tag: tag, Within: time.Minute},
			handoff.Lease{State: handoff.Preparing, Epoch: 2, Holder: nodeA, Target: nodeB, Tag: tag, Deadline: &deadline}},
		{handoff.Event{Kind: handoff.Ready, Node: nodeB, Epoch: 2},
			handoff.Lease{State: handoff.Prepared, Epoch: 2, Holder: nodeA, Target: nodeB, Tag: tag}},
		{handoff.Event{Kind: handoff.Begin, Node: nodeA, Epoch: 2},
			handoff.Lease{State: handoff.Moving, Epoch: 2, Holder: nodeA, Target: nodeB, Tag: tag}},
		{handoff.Event{Kind: handoff.TakeOver, Node: nodeB, Epoch: 2},
			handoff.Lease{State: handoff.Owned, Epoch: 3, Holder: nodeB,
				Last: &handoff.Outcome{Epoch: 2, Tag: tag, Result: handoff.ResultMoved}}},
		{handoff.Event{Kind: handoff.Release, Node: nodeB, Epoch: 3, Message: "powered off"},
			handoff.Lease{State: handoff.Released, Epoch: 4,
				Last: &handoff.Outcome{Epoch: 3, Result: handoff.ResultEnded, Message: "powered off"}}},
	}
	var lease handoff.Lease
	for _, s := range steps {
		got, err := handoff.Step(lease, s.event, now)
		if err != nil {
			t.Fatalf("%s: %v", s.event.Kind, err)
		}
		if diff := cmp.Diff(s.want, got); diff != "" {
			t.Fatalf("%s (-want +got):\n%s", s.event.Kind, diff)
		}
		again, err := handoff.Step(got, s.event, now.Add(time.Hour))
		if err != nil || !cmp.Equal(got, again) {
			t.Fatalf("%s repeated: %+v, %v; want it to change nothing", s.event.Kind, again, err)
		}
		lease = got
	}
}

func TestStepRefuses(t *testing.T) {
	owned := handoff.Lease{State: handoff.Owned, Epoch: 5, Holder: nodeA}
	moving := handoff.Lease{State: handoff.Moving, Epoch: 6, Holder: nodeA, Target: nodeB, Tag: tag}
	stalled := moving
	stalled.Stalled = true
	for name, tt := range map[string]struct {
		lease handoff.Lease
		event handoff.Event
		want  error
	}{
		"an old epoch":                 {owned, handoff.Event{Kind: handoff.Release, Node: nodeA, Epoch: 4}, handoff.ErrFenced},
		"a future epoch":               {owned, handoff.Event{Kind: handoff.Release, Node: nodeA, Epoch: 6}, handoff.ErrFenced},
		"release by another node":      {owned, handoff.Event{Kind: handoff.Release, Node: nodeB, Epoch: 5}, handoff.ErrRefused},
		"a move to the same node":      {owned, handoff.Event{Kind: handoff.Prepare, Node: nodeA, Epoch: 5, Tag: tag}, handoff.ErrRefused},
		"a move without a tag":         {owned, handoff.Event{Kind: handoff.Prepare, Node: nodeB, Epoch: 5}, handoff.ErrRefused},
		"cancelling what has begun":    {moving, handoff.Event{Kind: handoff.Cancel, Epoch: 6, Tag: tag}, handoff.ErrRefused},
		"take-over by the holder":      {moving, handoff.Event{Kind: handoff.TakeOver, Node: nodeA, Epoch: 6}, handoff.ErrRefused},
		"a decline nobody asked for":   {moving, handoff.Event{Kind: handoff.Decline, Node: nodeB, Epoch: 6}, handoff.ErrRefused},
		"a decline by the holder":      {stalled, handoff.Event{Kind: handoff.Decline, Node: nodeA, Epoch: 6}, handoff.ErrRefused},
		"a stall by the target":        {moving, handoff.Event{Kind: handoff.Stall, Node: nodeB, Epoch: 6}, handoff.ErrRefused},
		"revert by the target":         {moving, handoff.Event{Kind: handoff.Revert, Node: nodeB, Epoch: 6}, handoff.ErrRefused},
		"an offer of an owned guest":   {owned, handoff.Event{Kind: handoff.Offer, Node: nodeB, Epoch: 5}, handoff.ErrRefused},
		"a kind nobody knows":          {owned, handoff.Event{Kind: "Steal", Node: nodeB, Epoch: 5}, handoff.ErrRefused},
		"cancel of another migration":  {handoff.Lease{State: handoff.Preparing, Epoch: 6, Holder: nodeA, Target: nodeB, Tag: tag}, handoff.Event{Kind: handoff.Cancel, Epoch: 6, Tag: "other"}, handoff.ErrRefused},
		"accept by a node not offered": {handoff.Lease{State: handoff.Offered, Epoch: 1, Holder: nodeA}, handoff.Event{Kind: handoff.Accept, Node: nodeB, Epoch: 1}, handoff.ErrRefused},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := handoff.Step(tt.lease, tt.event, now)
			if !errors.Is(err, tt.want) {
				t.Fatalf("error %v, want %v", err, tt.want)
			}
			if diff := cmp.Diff(tt.lease, got); diff != "" {
				t.Fatalf("a refused event changed the lease:\n%s", diff)
			}
		})
	}
}

func TestAStalledMoveIsSettledByTheTarget(t *testing.T) {
	moving := handoff.Lease{State: handoff.Moving, Epoch: 6, Holder: nodeA, Target: nodeB, Tag: tag}
	stalled, err := handoff.Step(moving, handoff.Event{Kind: handoff.Stall, Node: nodeA, Epoch: 6}, now)
	if err != nil || !stalled.Stalled || !stalled.MayRun(nodeB) {
		t.Fatalf("%+v, %v", stalled, err)
	}
	for kind, want := range map[handoff.Kind]struct {
		holder string
		result handoff.Result
	}{
		handoff.TakeOver: {nodeB, handoff.ResultMoved},
		handoff.Decline:  {nodeA, handoff.ResultReverted},
	} {
		e := handoff.Event{Kind: kind, Node: nodeB, Epoch: 6}
		got, err := handoff.Step(stalled, e, now)
		if err != nil || got.State != handoff.Owned || got.Holder != want.holder || got.Last.Result != want.result || got.Stalled {
			t.Errorf("%s: %+v, %v", kind, got, err)
		}
		again, err := handoff.Step(got, e, now)
		if err != nil || !cmp.Equal(got, again) {
			t.Errorf("%s repeated: %+v, %v", kind, again, err)
		}
	}
}

// TestStepNeverLetsTwoNodesStart explores every lease reachable within a few
// epochs by any event from any sender, in any order, stale and future ones
// included.
func TestStepNeverLetsTwoNodesStart(t *testing.T) {
	kinds := []handoff.Kind{handoff.Offer, handoff.Withdraw, handoff.Accept, handoff.Prepare, handoff.Ready, handoff.Begin,
		handoff.TakeOver, handoff.Revert, handoff.Stall, handoff.Decline, handoff.Cancel, handoff.Release}
	nodes := []string{"", nodeA, nodeB, "c"}
	const epochs = 6
	id := func(l handoff.Lease) string {
		return fmt.Sprintf("%s/%d/%s/%s/%s/%t/%v", l.State, l.Epoch, l.Holder, l.Target, l.Tag, l.Stalled, l.Last)
	}

	seen := map[string]bool{id(handoff.Lease{}): true}
	edges := 0
	for todo := []handoff.Lease{{}}; len(todo) > 0; todo = todo[1:] {
		l := todo[0]
		for _, k := range kinds {
			for _, node := range nodes {
				for epoch := uint64(0); epoch <= epochs; epoch++ {
					e := handoff.Event{Kind: k, Node: node, Epoch: epoch, Tag: tag}
					next, err := handoff.Step(l, e, now)
					if err != nil {
						continue
					}
					edges++
					checkStep(t, l, e, next, nodes)
					if next.Epoch <= epochs && !seen[id(next)] {
						seen[id(next)] = true
						todo = append(todo, next)
					}
				}
			}
		}
	}
	if len(seen) < 100 || edges < 1000 {
		t.Fatalf("explored only %d leases and %d steps; the exploration is broken", len(seen), edges)
	}
	t.Logf("%d leases, %d steps", len(seen), edges)
}

func checkStep(t *testing.T, l handoff.Lease, e handoff.Event, next handoff.Lease, nodes []string) {
	t.Helper()
	starters, runners := 0, 0
	for _, n := range nodes[1:] {
		if next.MayStart(n) {
			starters++
		}
		if next.MayRun(n) {
			runners++
		}
	}
	switch {
	case starters > 1:
		t.Fatalf("%+v after %+v lets %d nodes start", next, e, starters)
	case runners > 1 && next.State != handoff.Moving:
		t.Fatalf("%+v after %+v lets %d nodes run outside of a move", next, e, runners)
	case next.Epoch < l.Epoch:
		t.Fatalf("%+v after %+v went back in epochs", next, e)
	case l.Holder != "" && next.Holder != l.Holder && next.Epoch == l.Epoch:
		t.Fatalf("%+v after %+v changed the holder within an epoch", next, e)
	case next.Stalled && next.State != handoff.Moving:
		t.Fatalf("%+v after %+v is stalled outside of a move", next, e)
	case l.State == handoff.Released && next.State != handoff.Released:
		t.Fatalf("%+v after %+v came back after the end", next, e)
	case next.State == handoff.Unclaimed && l.State != handoff.Unclaimed && l.State != handoff.Offered:
		t.Fatalf("%+v after %+v lost an accepted guest", next, e)
	}
}
