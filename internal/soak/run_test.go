// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	eventsv1 "k8s.io/api/events/v1"
)

func newEvents() *eventsv1.EventList { return &eventsv1.EventList{} }

// Report is how a soak went.
type Report struct {
	Seed       uint64         `json:"seed,omitempty"`
	Span       time.Duration  `json:"span"`
	Operations int            `json:"operations"`
	Done       map[string]int `json:"done"`
	Faults     map[string]int `json:"faults"`
	Writes     map[string]int `json:"writes"`
	// Refused is how many writes were refused; known of the real soak alone.
	Refused int `json:"refused,omitempty"`
	// WorstObject was written most often within a minute, and WorstEvents had the most events.
	WorstObject string   `json:"worstObject"`
	WorstEvents string   `json:"worstEvents"`
	Samples     []Sample `json:"samples"`
	Growth      []Growth `json:"growth"`
	Wrong       []string `json:"wrong"`
}

// Bounds are those of the simulated soak. What is written for an operation includes what faults cost: a guest that
// comes back from a dead node, a migration that is tried again.
var Bounds = []Bound{
	{Name: valueGoroutines, Most: -1, Share: 0.02, Slack: 4},
	{Name: valueHeap, Most: -1, Share: 0.1, Slack: 2048},
	{Name: valueWatches, Most: -1, Slack: 2},
	{Name: valueObjects, Most: -1, Slack: 0.5},
	{Name: valueRequests, Most: 6000},
	{Name: valueWrites, Most: 60},
	{Name: valueEvents, Most: 30},
}

// later is something that is to be done.
type later struct {
	at time.Time
	do func(context.Context) error
}

// Run lets the time span go by, which is divided into windows: operations and faults, then rest, then nothing but what
// there was at first. The report is complete even if there is an error.
func (w *World) Run(ctx context.Context, span, window time.Duration) (Report, error) {
	r := Report{Seed: w.o.Seed, Span: span}
	var err error
	if window < span { // everything is made that is made when first used
		_, err = w.window(ctx, 2*time.Minute)
	}
	if err == nil {
		for time.Since(w.begun) < span && err == nil {
			var s Sample
			if s, err = w.window(ctx, window); err == nil {
				r.Samples = append(r.Samples, s)
				w.note("at rest: %v", s.Values)
			}
		}
	}
	return w.complete(r), err
}

func (w *World) complete(r Report) Report {
	r.Operations, r.Done, r.Faults = w.ops, w.user.Counts, w.faulted
	r.Writes = maps.Clone(w.watch.byVerb)
	n, whose := w.watch.writes.Worst()
	r.WorstObject = fmt.Sprintf("%d of %s", n, whose)
	n, whose = w.watch.events.Worst()
	r.WorstEvents = fmt.Sprintf("%d %s", n, whose)
	for _, b := range Bounds {
		if g, enough := GrowthOf(r.Samples, b); enough {
			r.Growth = append(r.Growth, g)
		}
	}
	r.Wrong = slices.Concat(Judge(r.Samples, Bounds), w.watch.writes.Wrong(), w.watch.stormy, w.watch.events.Wrong())
	return r
}

// window is a time of operations and faults, and the rest after it.
func (w *World) window(ctx context.Context, length time.Duration) (Sample, error) {
	ops, writes, events := w.ops, w.watch.writes.Total(), w.watch.events.Total()
	if err := w.stir(ctx, length); err != nil {
		return Sample{}, err
	}
	err := w.until(ctx, "not everything is at rest", (*sight).wrong)
	if err != nil {
		return Sample{}, err
	}
	requests := w.idle()
	if err := w.empty(ctx); err != nil {
		return Sample{}, err
	}
	return w.sample(requests, w.watch.writes.Total()-writes, w.watch.events.Total()-events, w.ops-ops), nil
}

// stir does operations and lets things go wrong for that long, and then undoes what went wrong.
func (w *World) stir(ctx context.Context, length time.Duration) error {
	w.fates.setWild(true)
	end := time.Now().Add(length)
	var undo []later
	operation, fault := time.Now(), time.Now().Add(w.around(w.o.FaultPause))
	for now := time.Now(); now.Before(end); now = time.Now() {
		select {
		case err := <-w.failed:
			return err
		default:
		}
		if err := w.revive(); err != nil {
			return err
		}
		if !now.Before(operation) {
			if err := w.operate(ctx); err != nil {
				return err
			}
			operation = now.Add(w.around(w.o.Pause))
		}
		if !now.Before(fault) {
			if after, do := (mishaps{w}).misfortune(ctx); do != nil {
				undo = append(undo, later{now.Add(after), do})
			}
			fault = now.Add(w.around(w.o.FaultPause))
		}
		var err error
		if undo, err = undone(ctx, undo, now); err != nil {
			return err
		}
		next := slices.MinFunc(append(slices.Clone(undo), later{at: operation}, later{at: fault}, later{at: end}), func(a, b later) int { return a.at.Compare(b.at) })
		time.Sleep(max(time.Until(next.at), time.Millisecond))
	}
	w.fates.setWild(false)
	_, err := undone(ctx, undo, end.Add(24*time.Hour))
	w.note("no more faults")
	return err
}

// undone undoes what is due and returns the rest.
func undone(ctx context.Context, all []later, now time.Time) ([]later, error) {
	var rest []later
	for _, u := range all {
		if u.at.After(now) {
			rest = append(rest, u)
			continue
		}
		if err := u.do(ctx); err != nil {
			return nil, err
		}
	}
	return rest, nil
}

func (w *World) operate(ctx context.Context) error {
	what, err := w.user.Do(ctx)
	if err != nil {
		return err
	}
	if what != "" {
		w.ops++
		w.note("%s", what)
	}
	return nil
}
