// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
)

// drain receives the events that wait for a watcher.
func drain(ch <-chan Event) []string {
	var out []string
	for {
		synctest.Wait()
		select {
		case e, ok := <-ch:
			if !ok {
				return append(out, "closed")
			}
			out = append(out, fmt.Sprintf("%s %s %s", e.Kind, e.Domain, e.Why))
		default:
			return out
		}
	}
}

func changed(name, why string) Event { return Event{Kind: Changed, Domain: name, Why: why} }

func TestHints_Merge(t *testing.T) {
	lost := Event{Kind: Lost, Err: errors.New("x")}
	// The stream has offered its first Resync already when these are sent.
	for name, row := range map[string]struct {
		send []Event
		want []string
	}{
		"nothing":           {nil, []string{"Resync  "}},
		"one per domain":    {[]Event{changed("a", "1"), changed("b", "2"), changed("a", "3")}, []string{"Resync  ", "Changed a 3", "Changed b 2"}},
		"a resync is all":   {[]Event{changed("a", "1"), {Kind: Resync}, changed("b", "2")}, []string{"Resync  ", "Resync  "}},
		"lost drops hints":  {[]Event{changed("a", "1"), lost}, []string{"Resync  ", "Lost  "}},
		"lost, then resync": {[]Event{lost, {Kind: Resync}, changed("a", "1")}, []string{"Resync  ", "Lost  ", "Resync  "}},
		"back and forth":    {[]Event{lost, {Kind: Resync}, lost, {Kind: Resync}}, []string{"Resync  ", "Lost  ", "Resync  "}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var h Hints
				ch := h.Watch(t.Context())
				synctest.Wait()
				for _, e := range row.send {
					h.Tell(e)
				}
				if diff := cmp.Diff(row.want, drain(ch)); diff != "" {
					t.Errorf("events (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// TestHints_LostOnce expects one Lost event until the next Resync.
func TestHints_LostOnce(t *testing.T) {
	lost, back := Event{Kind: Lost, Err: errors.New("x")}, Event{Kind: Resync}
	synctest.Test(t, func(t *testing.T) {
		var h Hints
		ch := h.Watch(t.Context())
		drain(ch)
		for i, step := range []struct {
			send Event
			want []string
		}{
			{lost, []string{"Lost  "}},
			{lost, nil},
			{back, []string{"Resync  "}},
			{back, []string{"Resync  "}},
			{lost, []string{"Lost  "}},
		} {
			h.Tell(step.send)
			if diff := cmp.Diff(step.want, drain(ch)); diff != "" {
				t.Errorf("step %d: events (-want +got):\n%s", i, diff)
			}
		}
	})
}

func TestHintsWatch_End(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h Hints
		ctx, cancel := context.WithCancel(t.Context())
		byContext, byClose := h.Watch(ctx), h.Watch(t.Context())
		cancel()
		synctest.Wait()
		if _, ok := <-byContext; ok {
			t.Error("the stream goes on after its context has ended")
		}
		h.Tell(changed("a", ""))
		h.Close()
		if diff := cmp.Diff([]string{"Resync  ", "Changed a ", "closed"}, drain(byClose)); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]string{"closed"}, drain(h.Watch(t.Context()))); diff != "" {
			t.Errorf("a watch of closed hints (-want +got):\n%s", diff)
		}
	})
}
