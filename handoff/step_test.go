// SPDX-License-Identifier: Apache-2.0

package handoff_test

import (
	"errors"
	"fmt"
	"strings"
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

func due(within time.Duration) *metav1.Time {
	t := metav1.NewTime(now.Add(within))
	return &t
}

func command(k handoff.CommandKind, epoch uint64, node string, of types.UID) handoff.Command {
	return handoff.Command{ID: fmt.Sprintf("%s/%d", k, epoch), Kind: k, Epoch: epoch, Node: node, Tag: of}
}

func outcome(k handoff.CommandKind, epoch uint64, of types.UID, r handoff.Result, message string) handoff.Outcome {
	return handoff.Outcome{ID: fmt.Sprintf("%s/%d", k, epoch), Epoch: epoch, Tag: of, Result: r, Message: message}
}

// lead applies the events in turn, each under the epoch of the lease.
func lead(t *testing.T, l handoff.Lease, events ...handoff.Event) handoff.Lease {
	t.Helper()
	for _, e := range events {
		e.Epoch = l.Epoch
		next, _, err := handoff.Step(l, e, now)
		if err != nil {
			t.Fatalf("%s: %v", e.Kind, err)
		}
		l = next
	}
	return l
}

func ev(k handoff.Kind, node string) handoff.Event {
	return handoff.Event{Kind: k, Node: node, Tag: tag}
}

// Leases along the life of a VMI.
func owned(t *testing.T) handoff.Lease {
	return lead(t, handoff.Lease{}, ev(handoff.Offer, nodeA), ev(handoff.Accept, nodeA), ev(handoff.Started, nodeA))
}

func prepared(t *testing.T) handoff.Lease {
	return lead(t, owned(t), ev(handoff.Prepare, nodeB), ev(handoff.Ready, nodeB))
}

func moving(t *testing.T) handoff.Lease { return lead(t, prepared(t), ev(handoff.Begin, nodeA)) }

func TestStep_Lifecycle(t *testing.T) {
	start, out, in := handoff.CommandStart, handoff.CommandMigrateOut, handoff.CommandMigrateIn
	started := []handoff.Outcome{outcome(start, 1, "", handoff.ResultDone, "")}
	moved := append(started[:1:1], outcome(in, 2, tag, handoff.ResultMoved, ""), outcome(out, 2, tag, handoff.ResultMoved, ""))
	settled := append(moved[:3:3], outcome(handoff.CommandFinalize, 3, tag, handoff.ResultDone, ""))
	steps := []struct {
		event handoff.Event
		want  handoff.Lease
	}{
		{ev(handoff.Claim, ""), handoff.Lease{State: handoff.Claimed, Cause: "PodIsPrepared", Deadline: due(handoff.Claimed.Within())}},
		{handoff.Event{Kind: handoff.Offer, Node: nodeA, Within: time.Minute},
			handoff.Lease{State: handoff.Offered, Epoch: 1, Holder: nodeA, Cause: "PodIsReady", Deadline: due(time.Minute)}},
		{ev(handoff.Accept, nodeA), handoff.Lease{State: handoff.Owned, Epoch: 1, Holder: nodeA, Cause: "NodeAccepted",
			Open: []handoff.Command{command(start, 1, nodeA, "")}}},
		{ev(handoff.Started, nodeA), handoff.Lease{State: handoff.Owned, Epoch: 1, Holder: nodeA, Cause: "GuestStarted", Outcomes: started}},
		{ev(handoff.Prepare, nodeB), handoff.Lease{State: handoff.Preparing, Epoch: 2, Holder: nodeA, Target: nodeB, Tag: tag,
			Cause: "MigrationAsked", Deadline: due(handoff.Preparing.Within()),
			Open: []handoff.Command{command(in, 2, nodeB, tag)}, Outcomes: started}},
		{ev(handoff.Ready, nodeB), handoff.Lease{State: handoff.Prepared, Epoch: 2, Holder: nodeA, Target: nodeB, Tag: tag,
			Cause: handoff.CauseTargetReady, Deadline: due(handoff.Prepared.Within()),
			Open: []handoff.Command{command(in, 2, nodeB, tag)}, Outcomes: started}},
		{ev(handoff.Begin, nodeA), handoff.Lease{State: handoff.Moving, Epoch: 2, Holder: nodeA, Target: nodeB, Tag: tag,
			Cause: "MigrationBegun", Deadline: due(handoff.DefaultMoveWithin),
			Open: []handoff.Command{command(in, 2, nodeB, tag), command(out, 2, nodeA, tag)}, Outcomes: started}},
		{ev(handoff.TakeOver, nodeB), handoff.Lease{State: handoff.Arrived, Epoch: 3, Holder: nodeB, Cause: "GuestArrived",
			Deadline: due(handoff.Arrived.Within()),
			Open:     []handoff.Command{command(handoff.CommandFinalize, 3, nodeB, tag)}, Outcomes: moved}},
		{ev(handoff.Finalize, nodeB), handoff.Lease{State: handoff.Owned, Epoch: 3, Holder: nodeB, Cause: "MigrationFinalized", Outcomes: settled}},
		{handoff.Event{Kind: handoff.Stop, Node: nodeB, Within: time.Second}, handoff.Lease{State: handoff.Releasing, Epoch: 3, Holder: nodeB,
			Cause: "StopAsked", Deadline: due(time.Second),
			Open: []handoff.Command{command(handoff.CommandStop, 3, nodeB, "")}, Outcomes: settled}},
		{handoff.Event{Kind: handoff.Release, Node: nodeB, Message: "powered off"}, handoff.Lease{State: handoff.Released, Epoch: 4, Cause: "GuestEnded",
			Outcomes: append(settled[:4:4], outcome(handoff.CommandStop, 3, "", handoff.ResultEnded, "powered off"))}},
	}
	var lease handoff.Lease
	for _, s := range steps {
		s.event.Epoch = lease.Epoch
		got, commands, err := handoff.Step(lease, s.event, now)
		if err != nil {
			t.Fatalf("%s: %v", s.event.Kind, err)
		}
		if diff := cmp.Diff(s.want, got); diff != "" {
			t.Fatalf("%s (-want +got):\n%s", s.event.Kind, diff)
		}
		for _, c := range commands {
			if have, open := got.Command(c.Kind); !open || have != c {
				t.Errorf("%s issued %+v, which is not open", s.event.Kind, c)
			}
		}
		again, commands, err := handoff.Step(got, s.event, now)
		if err != nil || !again.Equal(got) || len(commands) > 0 {
			t.Fatalf("%s repeated: %+v, commands %v, %v; want it to change nothing", s.event.Kind, again, commands, err)
		}
		lease = got
	}
}

func TestStep_Refused(t *testing.T) {
	at := func(e handoff.Event, epoch uint64) handoff.Event { e.Epoch = epoch; return e }
	stalled := lead(t, moving(t), ev(handoff.Stall, nodeA))
	lost := lead(t, owned(t), ev(handoff.Suspect, nodeA))
	for name, tt := range map[string]struct {
		lease handoff.Lease
		event handoff.Event
		want  error
	}{
		"an old epoch":                {owned(t), at(ev(handoff.Release, nodeA), 0), handoff.ErrFenced},
		"a future epoch":              {owned(t), at(ev(handoff.Release, nodeA), 2), handoff.ErrFenced},
		"release by another node":     {owned(t), at(ev(handoff.Release, nodeB), 1), handoff.ErrRefused},
		"release by a controller":     {owned(t), at(ev(handoff.Release, ""), 1), handoff.ErrRefused},
		"release of a moving guest":   {moving(t), at(ev(handoff.Release, nodeA), 2), handoff.ErrRefused},
		"a move to the same node":     {owned(t), at(ev(handoff.Prepare, nodeA), 1), handoff.ErrRefused},
		"a move without a tag":        {owned(t), handoff.Event{Kind: handoff.Prepare, Node: nodeB, Epoch: 1}, handoff.ErrRefused},
		"a move without a node":       {owned(t), at(ev(handoff.Prepare, ""), 1), handoff.ErrRefused},
		"a move before the start":     {lead(t, handoff.Lease{}, ev(handoff.Offer, nodeA), ev(handoff.Accept, nodeA)), at(ev(handoff.Prepare, nodeB), 1), handoff.ErrRefused},
		"an offer to nobody":          {handoff.Lease{}, ev(handoff.Offer, ""), handoff.ErrRefused},
		"started twice by another":    {owned(t), at(ev(handoff.Started, nodeB), 1), handoff.ErrRefused},
		"cancelling what has begun":   {moving(t), at(ev(handoff.Cancel, ""), 2), handoff.ErrRefused},
		"aborting what has not":       {prepared(t), at(ev(handoff.Abort, ""), 2), handoff.ErrRefused},
		"aborting another migration":  {moving(t), handoff.Event{Kind: handoff.Abort, Epoch: 2, Tag: "other"}, handoff.ErrRefused},
		"take-over by the holder":     {moving(t), at(ev(handoff.TakeOver, nodeA), 2), handoff.ErrRefused},
		"take-over of what is lost":   {lost, at(ev(handoff.TakeOver, nodeB), 2), handoff.ErrRefused},
		"a decline nobody asked for":  {moving(t), at(ev(handoff.Decline, nodeB), 2), handoff.ErrRefused},
		"a decline by the holder":     {stalled, at(ev(handoff.Decline, nodeA), 2), handoff.ErrRefused},
		"a stall by the target":       {moving(t), at(ev(handoff.Stall, nodeB), 2), handoff.ErrRefused},
		"revert by the target":        {moving(t), at(ev(handoff.Revert, nodeB), 2), handoff.ErrRefused},
		"revert of a stalled move":    {stalled, at(ev(handoff.Revert, nodeA), 2), handoff.ErrRefused},
		"an offer of an owned guest":  {owned(t), at(ev(handoff.Offer, nodeB), 1), handoff.ErrRefused},
		"an offer of a lost guest":    {lost, at(ev(handoff.Offer, nodeB), 2), handoff.ErrRefused},
		"release of a lost guest":     {lost, at(ev(handoff.Release, ""), 2), handoff.ErrRefused},
		"a suspicion of the wrong":    {owned(t), at(ev(handoff.Suspect, nodeB), 1), handoff.ErrRefused},
		"a suspicion before Begin":    {prepared(t), at(ev(handoff.Suspect, nodeA), 2), handoff.ErrRefused},
		"the return of another":       {lost, at(ev(handoff.Return, nodeB), 2), handoff.ErrRefused},
		"a kind nobody knows":         {owned(t), at(ev("Steal", nodeB), 1), handoff.ErrRefused},
		"cancel of another migration": {prepared(t), handoff.Event{Kind: handoff.Cancel, Epoch: 2, Tag: "other"}, handoff.ErrRefused},
		"accept by one not offered":   {lead(t, handoff.Lease{}, ev(handoff.Offer, nodeA)), at(ev(handoff.Accept, nodeB), 1), handoff.ErrRefused},
		"anything after the end":      {lead(t, owned(t), ev(handoff.Release, nodeA)), at(ev(handoff.Offer, nodeB), 2), handoff.ErrRefused},
	} {
		t.Run(name, func(t *testing.T) {
			got, commands, err := handoff.Step(tt.lease, tt.event, now)
			if !errors.Is(err, tt.want) {
				t.Fatalf("error %v, want %v", err, tt.want)
			}
			if diff := cmp.Diff(tt.lease, got); diff != "" || len(commands) > 0 {
				t.Fatalf("a refused event issued %v and changed the lease:\n%s", commands, diff)
			}
		})
	}
}

func TestStall_SettledByTarget(t *testing.T) {
	stalled := lead(t, moving(t), ev(handoff.Stall, nodeA))
	if !stalled.Stalled || !stalled.MayRun(nodeB) || stalled.Responsible() != handoff.ByTargetNode || !stalled.Deadline.Equal(due(handoff.FenceAfter)) {
		t.Fatalf("%+v", stalled)
	}
	for kind, want := range map[handoff.Kind]struct {
		state  handoff.State
		holder string
		result handoff.Result
	}{
		handoff.TakeOver: {handoff.Arrived, nodeB, handoff.ResultMoved},
		handoff.Decline:  {handoff.Owned, nodeA, handoff.ResultReverted},
	} {
		got := lead(t, stalled, ev(kind, nodeB))
		o, known := got.MoveOutcome(tag)
		if got.State != want.state || got.Holder != want.holder || !known || o.Result != want.result || got.Stalled || got.Target != "" {
			t.Errorf("%s: %+v", kind, got)
		}
	}
}

func TestCancel_UntilBegin(t *testing.T) {
	for name, tt := range map[string]struct {
		lease handoff.Lease
		event handoff.Event
		want  handoff.Result
	}{
		"by the controller while preparing": {lead(t, owned(t), ev(handoff.Prepare, nodeB)), ev(handoff.Cancel, ""), handoff.ResultCancelled},
		"by the controller when prepared":   {prepared(t), ev(handoff.Cancel, ""), handoff.ResultCancelled},
		"by the holder":                     {prepared(t), ev(handoff.Revert, nodeA), handoff.ResultReverted},
		"by the holder after it has begun":  {lead(t, moving(t), ev(handoff.Abort, "")), ev(handoff.Revert, nodeA), handoff.ResultReverted},
		"by a stop":                         {prepared(t), ev(handoff.Stop, nodeA), handoff.ResultCancelled},
	} {
		t.Run(name, func(t *testing.T) {
			got := lead(t, tt.lease, tt.event)
			o, known := got.MoveOutcome(tag)
			if !known || o.Result != tt.want || got.Target != "" || got.Tag != "" || got.Holder != nodeA || got.MayRun(nodeB) {
				t.Errorf("%+v", got)
			}
			if _, open := got.Command(handoff.CommandMigrateIn); open {
				t.Error("the target still has a command to receive the domain")
			}
		})
	}
}

func TestAbort_TooLate(t *testing.T) {
	l := lead(t, moving(t), ev(handoff.Abort, ""), ev(handoff.TakeOver, nodeB))
	if o, known := l.Outcome("abort/2"); !known || o.Result != handoff.ResultMoved {
		t.Errorf("abort ended as %+v, known %t; want %s", o, known, handoff.ResultMoved)
	}
}

func TestOutcome_Limit(t *testing.T) {
	l := owned(t)
	for range 20 {
		l = lead(t, l, ev(handoff.Prepare, nodeB), handoff.Event{Kind: handoff.Cancel, Tag: tag, Message: strings.Repeat("ü", 4000)})
	}
	raw, err := l.MarshalJSON()
	if err != nil || len(l.Outcomes) != 8 || len(raw) > 4<<10 {
		t.Errorf("%d outcomes in %d bytes, %v", len(l.Outcomes), len(raw), err)
	}
	if o := l.Outcomes[7]; o.Epoch != l.Epoch-1 || len(o.Message) > 256 || !strings.HasSuffix(o.Message, "ü…") {
		t.Errorf("the newest outcome is %+v", o)
	}
}

func TestDeadline_RoundTrip(t *testing.T) {
	l, _, err := handoff.Step(handoff.Lease{}, ev(handoff.Offer, nodeA), now.Add(1500*time.Millisecond))
	if err != nil || !l.Deadline.Equal(due(handoff.Offered.Within()+2*time.Second)) {
		t.Errorf("the deadline is %s, %v; want it rounded up to the second", l.Deadline, err)
	}
}
