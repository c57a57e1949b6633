// SPDX-License-Identifier: Apache-2.0

package handoff_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/virtloom/virtloom/handoff"
)

// TestOutcome_OfEndedCommandOnly: a lease may hold commands of a later version beside those that this one knows;
// a start or the end of a migration does not conclude them.
func TestOutcome_OfEndedCommandOnly(t *testing.T) {
	later := command("resize", 1, nodeA, "")
	for name, tt := range map[string]struct {
		before handoff.Lease
		event  handoff.Event
		ended  string
	}{
		"Started":  {lead(t, handoff.Lease{}, ev(handoff.Offer, nodeA), ev(handoff.Accept, nodeA)), ev(handoff.Started, nodeA), "start/1"},
		"Finalize": {lead(t, moving(t), ev(handoff.TakeOver, nodeB)), ev(handoff.Finalize, nodeB), "finalize/3"},
	} {
		t.Run(name, func(t *testing.T) {
			l := tt.before
			l.Open = append(l.Open[:1:1], later)
			got := lead(t, l, tt.event)
			if diff := cmp.Diff([]handoff.Command{later}, got.Open); diff != "" {
				t.Errorf("what is open (-want +got):\n%s", diff)
			}
			if o, known := got.Outcome(tt.ended); !known || o.Result != handoff.ResultDone {
				t.Errorf("the command ended as %+v, known %t", o, known)
			}
			if o, known := got.Outcome(later.ID); known {
				t.Errorf("the other command ended as %+v", o)
			}
		})
	}
}

// TestOutcome_MessageLimit: a message within the limit is kept, a longer one is truncated to it.
func TestOutcome_MessageLimit(t *testing.T) {
	x := func(n int) string { return strings.Repeat("x", n) }
	for name, tt := range map[string]struct{ message, want string }{
		"that fits":              {x(256), x(256)},
		"one byte too long":      {x(257), x(253) + "…"},
		"a character at the cut": {x(252) + "ü" + x(9), x(252) + "…"},
	} {
		l := lead(t, owned(t), ev(handoff.Stop, nodeA), handoff.Event{Kind: handoff.Release, Node: nodeA, Message: tt.message})
		if o, known := l.Outcome("stop/1"); !known || o.Message != tt.want {
			t.Errorf("%s: %d bytes, %q, known %t; want %q", name, len(o.Message), o.Message, known, tt.want)
		}
	}
}
