// SPDX-License-Identifier: Apache-2.0

package handoff_test

import (
	"errors"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/virtloom/virtloom/handoff"
)

// TestRepeated_AdmittedAfterNextStep: a sender that lost the answer to a request repeats it after other parties have
// continued, and gets success.
func TestRepeated_AdmittedAfterNextStep(t *testing.T) {
	offered := lead(t, handoff.Lease{}, ev(handoff.Offer, nodeA))
	own, begun := owned(t), moving(t)
	prepare, begin, takeOver := ev(handoff.Prepare, nodeB), ev(handoff.Begin, nodeA), ev(handoff.TakeOver, nodeB)
	for name, tt := range map[string]struct {
		before handoff.Lease
		event  handoff.Event
		then   []handoff.Event
	}{
		"Accept, started":     {offered, ev(handoff.Accept, nodeA), []handoff.Event{ev(handoff.Started, nodeA)}},
		"Prepare, ready":      {own, prepare, []handoff.Event{ev(handoff.Ready, nodeB)}},
		"Prepare, begun":      {own, prepare, []handoff.Event{ev(handoff.Ready, nodeB), begin}},
		"Prepare, aborting":   {own, prepare, []handoff.Event{ev(handoff.Ready, nodeB), begin, ev(handoff.Abort, "")}},
		"Prepare, stalled":    {own, prepare, []handoff.Event{ev(handoff.Ready, nodeB), begin, ev(handoff.Stall, nodeA)}},
		"Begin, aborting":     {prepared(t), begin, []handoff.Event{ev(handoff.Abort, "")}},
		"Begin, stalled":      {prepared(t), begin, []handoff.Event{ev(handoff.Stall, nodeA)}},
		"TakeOver, finalized": {begun, takeOver, []handoff.Event{ev(handoff.Finalize, nodeB)}},
	} {
		t.Run(name, func(t *testing.T) {
			l := lead(t, lead(t, tt.before, tt.event), tt.then...)
			again := tt.event
			again.Epoch = tt.before.Epoch
			got, commands, err := handoff.Step(l, again, now.Add(time.Minute))
			if err != nil || !got.Equal(l) || len(commands) > 0 {
				t.Errorf("%+v, commands %v, %v; want it to change nothing", got, commands, err)
			}
		})
	}
}

// TestRepeated_FenceIsRefused: the lease does not keep which node was fenced, so no sender gets success for a repeated
// fence. That holds for a lease without cause as well.
func TestRepeated_FenceIsRefused(t *testing.T) {
	fenced := lead(t, owned(t), ev(handoff.Suspect, nodeA), fence(nodeA, handoff.FenceConfirmed))
	untold := fenced
	untold.Cause = ""
	for _, l := range []handoff.Lease{fenced, untold} {
		for epoch, want := range map[uint64]error{l.Epoch - 1: handoff.ErrFenced, l.Epoch: handoff.ErrRefused} {
			e := fence(nodeA, handoff.FenceConfirmed)
			e.Epoch = epoch
			if got, _, err := handoff.Step(l, e, now); !errors.Is(err, want) || !got.Equal(l) {
				t.Errorf("at epoch %d of %d: %+v, %v; want %v", epoch, l.Epoch, got, err, want)
			}
		}
	}
}

// TestAbort_OfAnotherMigrationWhileOneIsOpen: an abort in progress does not answer one of another migration.
func TestAbort_OfAnotherMigrationWhileOneIsOpen(t *testing.T) {
	l := lead(t, moving(t), ev(handoff.Abort, ""))
	for tag, want := range map[string]error{string(tag): nil, "other": handoff.ErrRefused} {
		e := handoff.Event{Kind: handoff.Abort, Epoch: l.Epoch, Tag: types.UID(tag)}
		if got, commands, err := handoff.Step(l, e, now); !errors.Is(err, want) || !got.Equal(l) || len(commands) > 0 {
			t.Errorf("of %s: %+v, commands %v, %v; want %v", tag, got, commands, err, want)
		}
	}
}
