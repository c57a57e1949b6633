// SPDX-License-Identifier: Apache-2.0

package handoff_test

import (
	"errors"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/virtloom/virtloom/handoff"
)

func fence(node string, k handoff.EvidenceKind) handoff.Event {
	return handoff.Event{Kind: handoff.Fence, Node: node, Evidence: &handoff.Evidence{Kind: k}}
}

func TestFence_RequiresEvidence(t *testing.T) {
	lost := lead(t, owned(t), ev(handoff.Suspect, nodeA))
	if lost.State != handoff.Lost || !lost.MayRun(nodeA) || lost.MayStart(nodeA) || !lost.Deadline.Equal(due(handoff.FenceAfter)) {
		t.Fatalf("%+v", lost)
	}
	early, late := now.Add(handoff.FenceAfter-time.Second), now.Add(handoff.FenceAfter)
	for name, tt := range map[string]struct {
		event handoff.Event
		at    time.Time
		want  error
		cause handoff.Cause
	}{
		"time alone":             {handoff.Event{Kind: handoff.Fence, Node: nodeA}, late, handoff.ErrRefused, ""},
		"evidence of no kind":    {fence(nodeA, "Rumour"), late, handoff.ErrRefused, ""},
		"of another node":        {fence(nodeB, handoff.NodeGone), late, handoff.ErrRefused, ""},
		"the node is gone":       {fence(nodeA, handoff.NodeGone), late, nil, "NodeGone"},
		"the node is gone early": {fence(nodeA, handoff.NodeGone), early, handoff.ErrTooEarly, ""},
		"the Pod is gone":        {fence(nodeA, handoff.PodGone), late, nil, "PodGone"},
		"the Pod is gone early":  {fence(nodeA, handoff.PodGone), early, handoff.ErrTooEarly, ""},
		"a fence is confirmed":   {fence(nodeA, handoff.FenceConfirmed), early, nil, "FenceConfirmed"},
	} {
		t.Run(name, func(t *testing.T) {
			tt.event.Epoch = lost.Epoch
			got, _, err := handoff.Step(lost, tt.event, tt.at)
			if !errors.Is(err, tt.want) {
				t.Fatalf("error %v, want %v", err, tt.want)
			}
			if err != nil {
				return
			}
			if got.State != handoff.Fenced || got.Cause != tt.cause || got.MayRun(nodeA) || got.Holder != "" {
				t.Errorf("%+v", got)
			}
			again := lead(t, got, ev(handoff.Offer, nodeB), ev(handoff.Accept, nodeB))
			if !again.MayStart(nodeB) || again.MayStart(nodeA) {
				t.Errorf("offered again: %+v", again)
			}
			if end := lead(t, got, ev(handoff.Release, "")); end.State != handoff.Released {
				t.Errorf("released: %+v", end)
			}
		})
	}
}

func TestSuspect_MinimumWait(t *testing.T) {
	lost := lead(t, owned(t), handoff.Event{Kind: handoff.Suspect, Node: nodeA, Within: time.Second})
	if !lost.Deadline.Equal(due(handoff.FenceAfter)) {
		t.Errorf("the deadline is %s", lost.Deadline)
	}
}

func TestReturn_RestoresState(t *testing.T) {
	accepted := lead(t, handoff.Lease{}, ev(handoff.Offer, nodeA), ev(handoff.Accept, nodeA))
	for name, before := range map[string]handoff.Lease{
		"starting":  accepted,
		"running":   owned(t),
		"moving":    moving(t),
		"aborting":  lead(t, moving(t), ev(handoff.Abort, "")),
		"arrived":   lead(t, prepared(t), ev(handoff.Cancel, ""), ev(handoff.Prepare, nodeB), ev(handoff.Ready, nodeB), ev(handoff.Begin, nodeA), ev(handoff.TakeOver, nodeB)),
		"releasing": lead(t, owned(t), ev(handoff.Stop, nodeA)),
	} {
		t.Run(name, func(t *testing.T) {
			lost := lead(t, before, ev(handoff.Suspect, before.Holder))
			for _, c := range before.Open {
				if err := lost.Authorize(c, now, now); c.Node == before.Holder && !errors.Is(err, handoff.ErrFenced) {
					t.Errorf("a lost node may %s: %v", c.ID, err)
				}
			}
			got := lead(t, lost, ev(handoff.Return, before.Holder))
			if got.State != before.State || got.Holder != before.Holder || got.Target != before.Target || got.Was != "" || got.Epoch != before.Epoch+1 {
				t.Errorf("%+v, want it as before: %+v", got, before)
			}
			for _, c := range before.Open {
				if err := got.Authorize(c, now, now); err != nil {
					t.Errorf("%s: %v", c.ID, err)
				}
			}
		})
	}
}

func TestFence_WhileMoving(t *testing.T) {
	lost := lead(t, moving(t), ev(handoff.Suspect, nodeA))
	if !lost.MayRun(nodeA) || !lost.MayRun(nodeB) {
		t.Fatalf("%+v", lost)
	}
	if got := lead(t, lost, ev(handoff.TakeOver, nodeB)); got.State != handoff.Arrived || got.Holder != nodeB {
		t.Errorf("it had arrived: %+v", got)
	}
	fenced := lead(t, lost, fence(nodeA, handoff.FenceConfirmed))
	if !fenced.MayRun(nodeB) || fenced.MayRun(nodeA) || fenced.Responsible() != handoff.ByTargetNode {
		t.Fatalf("%+v", fenced)
	}
	for _, e := range []handoff.Event{ev(handoff.Offer, "c"), ev(handoff.Release, "")} {
		e.Epoch = fenced.Epoch
		if got, _, err := handoff.Step(fenced, e, now); !errors.Is(err, handoff.ErrRefused) {
			t.Errorf("%s before the target's word: %+v, %v", e.Kind, got, err)
		}
	}
	if got := lead(t, fenced, ev(handoff.TakeOver, nodeB)); got.State != handoff.Arrived || got.Holder != nodeB {
		t.Errorf("it had arrived: %+v", got)
	}
	for name, e := range map[string]handoff.Event{
		"it had not arrived":         ev(handoff.Decline, nodeB),
		"the target is gone as well": fence(nodeB, handoff.FenceConfirmed),
	} {
		gone := lead(t, fenced, e)
		if gone.State != handoff.Fenced || gone.Target != "" || gone.MayRun(nodeB) || len(gone.Open) > 0 {
			t.Errorf("%s: %+v", name, gone)
		}
		lead(t, gone, ev(handoff.Offer, "c"))
	}
}

// A domain that was paused at the holder may have run at the target, and written to its
// disks: the holder's copy must not resume.
func TestFence_TargetOfStalledMigration(t *testing.T) {
	stalled := lead(t, moving(t), ev(handoff.Stall, nodeA))
	e := fence(nodeB, handoff.PodGone)
	e.Epoch = stalled.Epoch
	if _, _, err := handoff.Step(stalled, e, now); !errors.Is(err, handoff.ErrTooEarly) {
		t.Errorf("fenced before the deadline: %v", err)
	}
	got, _, err := handoff.Step(stalled, e, stalled.Deadline.Time)
	if err != nil || got.State != handoff.Fenced || got.MayRun(nodeA) || got.MayRun(nodeB) {
		t.Errorf("%+v, %v", got, err)
	}
	unstalled := moving(t)
	e.Epoch = unstalled.Epoch
	if _, _, err := handoff.Step(unstalled, e, now.Add(time.Hour)); !errors.Is(err, handoff.ErrRefused) {
		t.Errorf("fenced while the holder migrates it: %v", err)
	}
}

func TestAuthorize(t *testing.T) {
	accepted := lead(t, handoff.Lease{}, ev(handoff.Offer, nodeA), ev(handoff.Accept, nodeA))
	start, _ := accepted.Command(handoff.CommandStart)
	receive, _ := prepared(t).Command(handoff.CommandMigrateIn)
	for name, tt := range map[string]struct {
		lease   handoff.Lease
		command handoff.Command
		since   time.Duration
		want    error
	}{
		"just stored":         {accepted, start, 0, nil},
		"at the last moment":  {accepted, start, handoff.ActWithin - 1, nil},
		"too late":            {accepted, start, handoff.ActWithin, handoff.ErrUnconfirmed},
		"a clock put back":    {accepted, start, -1, handoff.ErrUnconfirmed},
		"done before":         {lead(t, accepted, ev(handoff.Started, nodeA)), start, 0, handoff.ErrFenced},
		"of an earlier offer": {lead(t, handoff.Lease{}, ev(handoff.Offer, nodeA), ev(handoff.Withdraw, ""), ev(handoff.Offer, nodeA), ev(handoff.Accept, nodeA)), start, 0, handoff.ErrFenced},
		"while it is lost":    {lead(t, accepted, ev(handoff.Suspect, nodeA)), start, 0, handoff.ErrFenced},
		"the target prepares": {prepared(t), receive, 0, nil},
		"the move is off":     {lead(t, prepared(t), ev(handoff.Cancel, "")), receive, 0, handoff.ErrFenced},
		"nothing at all":      {handoff.Lease{}, handoff.Command{}, 0, handoff.ErrFenced},
	} {
		t.Run(name, func(t *testing.T) {
			if err := tt.lease.Authorize(tt.command, now, now.Add(tt.since)); !errors.Is(err, tt.want) {
				t.Errorf("error %v, want %v", err, tt.want)
			}
		})
	}
}
func TestOverdue_NotWithoutADeadline(t *testing.T) {
	gone := &handoff.Evidence{Kind: handoff.NodeGone}
	for name, deadline := range map[string]*metav1.Time{"none": nil, "the zero time": {}} {
		l := handoff.Lease{State: handoff.Lost, Epoch: 2, Holder: nodeA, Was: handoff.Owned, Cause: "NodeSilent", Deadline: deadline}
		raw, err := l.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		for _, read := range []bool{false, true} {
			if read { // as the annotation gives it back
				if err := l.UnmarshalJSON(raw); err != nil {
					t.Fatal(err)
				}
			}
			if l.Overdue(now.Add(1000 * time.Hour)) {
				t.Errorf("%s, read: %t: the lease is overdue", name, read)
			}
			fence := handoff.Event{Kind: handoff.Fence, Epoch: 2, Node: nodeA, Evidence: gone}
			if after, _, err := handoff.Step(l, fence, now.Add(1000*time.Hour)); !errors.Is(err, handoff.ErrTooEarly) || after.State != handoff.Lost {
				t.Errorf("%s, read: %t: the fence leads to %s, %v; want it to be too early", name, read, after.State, err)
			}
		}
	}
}

// TestFence_OfNodeThatIsNotTheTarget: evidence about a node that cannot have the domain proves nothing, and there is no
// evidence about an empty node name.
func TestFence_OfNodeThatIsNotTheTarget(t *testing.T) {
	awaited := lead(t, moving(t), ev(handoff.Suspect, nodeA), fence(nodeA, handoff.FenceConfirmed))
	nowhere := lead(t, awaited, ev(handoff.Decline, nodeB))
	for name, tt := range map[string]struct {
		lease handoff.Lease
		node  string
	}{
		"another node, the target is to answer": {awaited, "c"},
		"no node, the target is to answer":      {awaited, ""},
		"the target that has answered":          {nowhere, nodeB},
		"no node, there is no target":           {nowhere, ""},
	} {
		e := fence(tt.node, handoff.FenceConfirmed)
		e.Epoch = tt.lease.Epoch
		if got, _, err := handoff.Step(tt.lease, e, now); !errors.Is(err, handoff.ErrRefused) || !got.Equal(tt.lease) {
			t.Errorf("%s: %+v, %v; want it to be refused", name, got, err)
		}
	}
}
