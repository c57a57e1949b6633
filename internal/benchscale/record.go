// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

// stage is something that happens once to an object.
type stage string

// The stages of guests, by their names, and of migrations, by their UIDs.
const (
	guestCreated   stage = "guests created"
	podCreated     stage = "launcher Pods created"
	podRunning     stage = "launcher Pods running"
	guestScheduled stage = "guests Scheduled"
	guestRunning   stage = "guests running"

	moveCreated   stage = "migrations created"
	moveWaiting   stage = "migrations waiting for a slot"
	targetCreated stage = "target Pods created"
	targetRunning stage = "target Pods running"
	handedOff     stage = "guests handed off"
	moveSucceeded stage = "migrations Succeeded"
	moveTidied    stage = "migrations tidied up"
)

// recorder notes when objects reached their stages. Its methods are safe for concurrent use.
type recorder struct {
	mu      sync.Mutex
	at      map[stage]map[string]time.Time
	waiting []await
	failed  error
	// hooks are called for objects that reach a stage.
	hooks map[stage]func(object string)
}

// await is a caller that waits until so many objects have reached a stage.
type await struct {
	stage stage
	n     int
	done  chan struct{}
}

func newRecorder() *recorder {
	return &recorder{at: map[stage]map[string]time.Time{}, hooks: map[stage]func(string){}}
}

// note keeps the first time at which the object was at the stage.
func (r *recorder) note(s stage, object string, at time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.at[s]
	if m == nil {
		m = map[string]time.Time{}
		r.at[s] = m
	}
	if _, known := m[object]; known {
		return
	}
	m[object] = at
	if hook := r.hooks[s]; hook != nil {
		hook(object)
	}
	r.lockedWake()
}

// hook has do called with each object that reaches the stage from now on. It must not block, nor call the recorder.
func (r *recorder) hook(s stage, do func(object string)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hooks[s] = do
}

// fail ends all waiting, now and from now on.
func (r *recorder) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failed == nil {
		r.failed = err
	}
	r.lockedWake()
}

// lockedWake wakes waiters whose condition holds.
func (r *recorder) lockedWake() {
	rest := r.waiting[:0]
	for _, w := range r.waiting {
		if r.failed != nil || len(r.at[w.stage]) >= w.n {
			close(w.done)
			continue
		}
		rest = append(rest, w)
	}
	r.waiting = rest
}

// await waits until n objects have reached the stage.
func (r *recorder) await(ctx context.Context, s stage, n int) error {
	w := await{stage: s, n: n, done: make(chan struct{})}
	r.mu.Lock()
	r.waiting = append(r.waiting, w)
	r.lockedWake()
	r.mu.Unlock()
	select {
	case <-w.done:
	case <-ctx.Done():
		return fmt.Errorf("waiting for %d %s, there are %d: %w", n, s, r.count(s), context.Cause(ctx))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed
}

func (r *recorder) count(s stage) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.at[s])
}

// between is how long it took each object that reached both stages to get from one to the other.
func (r *recorder) between(from, to stage) []time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []time.Duration
	for object, at := range r.at[to] {
		if began, known := r.at[from][object]; known {
			out = append(out, max(at.Sub(began), 0))
		}
	}
	return out
}

// first is when the first object reached the stage, and nth when the n-th did; zero if so many did not.
func (r *recorder) first(s stage) time.Time { return r.nth(s, 1) }

func (r *recorder) nth(s stage, n int) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	times := make([]time.Time, 0, len(r.at[s]))
	for _, at := range r.at[s] {
		times = append(times, at)
	}
	if n < 1 || n > len(times) {
		return time.Time{}
	}
	slices.SortFunc(times, time.Time.Compare)
	return times[n-1]
}

// forget drops what was noted of the stages, so that a phase begins with none.
func (r *recorder) forget(stages ...stage) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range stages {
		delete(r.at, s)
	}
}
