// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/internal/rig"
)

const (
	// clusterLimit and nodeLimit are those of the migrations that shall not wait, waitLimit and
	// waitNodeLimit KubeVirt's defaults.
	clusterLimit, nodeLimit  = 400, 50
	waitLimit, waitNodeLimit = 5, 2
	// waitMove is how long a guest moves on average while others wait.
	waitMove = 2 * time.Second
	// enoughMoves is how many are let through before all others have to wait.
	enoughMoves = 50
)

// start creates n objects that lead to a guest each, and waits until all are on their nodes.
func (b *bench) start(ctx context.Context, phase string, n int, create func(int) client.Object) (Phase, error) {
	p := Phase{Name: phase, N: n}
	m, err := b.begin(ctx, p.Name)
	if err != nil {
		return p, err
	}
	if err := b.createAll(ctx, n, create); err != nil {
		return p, err
	}
	if err := b.rec.await(ctx, guestScheduled, n); err != nil {
		return p, err
	}
	scheduled := spreadOf(b.rec.between(guestCreated, guestScheduled))
	p.step("create to Pod p50/p95/p99", spreadOf(b.rec.between(guestCreated, podCreated)))
	p.step("create to Scheduled p50/p95/p99", scheduled)
	p.add(allPods, b.since(guestCreated, podCreated, n), "s")
	p.add(allScheduled, b.since(guestCreated, guestScheduled, n), "s")
	p.add(scheduledP50, scheduled.P50, "s")
	p.add(scheduledP99, scheduled.P99, "s")
	return p, m.end(ctx, &p)
}

// since is how long it took from the first object at one stage to the n-th at another, in seconds.
func (b *bench) since(from, to stage, n int) float64 {
	return b.rec.nth(to, n).Sub(b.rec.first(from)).Seconds()
}

// run lets the nodes take all n guests.
func (b *bench) run(ctx context.Context, n int) error {
	if err := b.limitMoves(ctx, clusterLimit, nodeLimit); err != nil {
		return err
	}
	if err := b.startNodes(ctx); err != nil {
		return err
	}
	if err := b.rec.await(ctx, guestRunning, n); err != nil {
		return err
	}
	return b.daemon.rests(ctx)
}

// migrations moves n guests at once.
func (b *bench) migrations(ctx context.Context, n int) (Phase, error) {
	p := Phase{Name: phaseMoves, N: n}
	m, err := b.begin(ctx, p.Name)
	if err != nil {
		return p, err
	}
	if err := b.createMoves(ctx, n, "move-"); err != nil {
		return p, err
	}
	if err := b.rec.await(ctx, moveTidied, n); err != nil {
		return p, err
	}
	p.step("create to target Pod p50/p95/p99", spreadOf(b.rec.between(moveCreated, targetCreated)))
	b.handOffs(&p)
	p.step("create to Succeeded p50/p95/p99", spreadOf(b.rec.between(moveCreated, moveSucceeded)))
	p.add(allTargets, b.since(moveCreated, targetCreated, n), "s")
	p.add(allHandedOff, b.since(moveCreated, handedOff, n), "s")
	p.add(allSucceeded, b.since(moveCreated, moveSucceeded, n), "s")
	return p, m.end(ctx, &p)
}

// handOffs adds how long targets that run had to wait for their guests to be handed off.
func (b *bench) handOffs(p *Phase) {
	s := spreadOf(b.rec.between(targetRunning, handedOff))
	p.step("target Running to handed off p50/p95/p99", s)
	p.add(handOffP50, s.P50, "s")
	p.add(handOffP99, s.P99, "s")
}

// wait lets n migrations wait for few slots, looks at the first that get one, and then at how little
// is done while none gets one.
func (b *bench) wait(ctx context.Context, n int) (Phase, error) {
	p := Phase{Name: phaseWaiting, N: n}
	b.moves.Store(int64(waitMove))
	b.rec.forget(moveCreated, moveWaiting, targetCreated, targetRunning, handedOff, moveSucceeded, moveTidied)
	if err := b.limitMoves(ctx, waitLimit, waitNodeLimit); err != nil {
		return p, err
	}
	if err := b.daemon.rests(ctx); err != nil {
		return p, err
	}
	m, err := b.begin(ctx, p.Name)
	if err != nil {
		return p, err
	}
	if err := b.createMoves(ctx, n, "wait-"); err != nil {
		return p, err
	}
	enough := min(enoughMoves, n)
	if err := b.rec.await(ctx, moveSucceeded, enough); err != nil {
		return p, err
	}
	p.add(firstTarget, b.since(moveCreated, targetCreated, 1), "s")
	p.add(firstHandOff, b.since(moveCreated, handedOff, 1), "s")
	p.add(firstSucceeded, b.since(moveCreated, moveSucceeded, 1), "s")
	if enough == enoughMoves {
		p.add(fiftySucceeded, b.since(moveCreated, moveSucceeded, enough), "s")
	}
	b.handOffs(&p)
	if err := b.limitMoves(ctx, 0, waitNodeLimit); err != nil {
		return p, err
	}
	if err := m.end(ctx, &p); err != nil {
		return p, err
	}
	return p, b.idle(ctx, &p)
}

// idle looks at what the controller does while nothing changes.
func (b *bench) idle(ctx context.Context, p *Phase) error {
	pid, begun := b.daemon.Pid(), time.Now()
	before, err := busy(pid)
	if err != nil {
		return err
	}
	select {
	case <-time.After(b.options.idle): // what is measured is that nothing happens
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	after, err := busy(pid)
	if err != nil {
		return err
	}
	requests, err := b.rig.Requests()
	if err != nil {
		return err
	}
	p.add(idleCore, (after-before).Seconds()/time.Since(begun).Seconds(), "cores")
	p.add("requests of the controller while all wait", float64(countOf(requests, window{user: rig.UserController, from: begun})), "")
	return nil
}

// cached measures what a controller needs that has n guests in its caches, beside one that has none.
func (b *bench) cached(ctx context.Context, n int) (Phase, error) {
	p := Phase{Name: phaseCached, N: n}
	empty, err := b.measureStart(ctx)
	if err != nil {
		return p, err
	}
	err = atOnce(ctx, n, func(ctx context.Context, i int) error { return b.createResting(ctx, i, nodeName(i%b.options.nodes)) })
	if err != nil {
		return p, err
	}
	if err := b.rec.await(ctx, podRunning, n); err != nil {
		return p, err
	}
	begun := time.Now()
	full, err := b.measureStart(ctx)
	if err != nil {
		return p, err
	}
	requests, err := b.rig.Requests()
	if err != nil {
		return p, err
	}
	p.Writes = new(writesOf(requests, window{user: rig.UserController, from: begun}, n))
	p.add(heapEach, (full.heap-empty.heap)/float64(n), "KiB")
	p.add(residentEach, (full.resident-empty.resident)*1024/float64(n), "KiB")
	p.add("controller heap, empty", empty.heap/1024, "MiB")
	p.add("controller heap, all cached", full.heap/1024, "MiB")
	p.add("controller peak RSS, empty", empty.peak, "MiB")
	p.add("controller peak RSS, all cached", full.peak, "MiB")
	p.add(coldStart, empty.startedIn.Seconds(), "s")
	p.add(coldStartFull, full.startedIn.Seconds(), "s")
	p.add("CPU of the start, all cached", full.cpu.Seconds(), "s")
	p.Profiles = full.profiles
	return p, nil
}

// started is a controller that has been started and has come to rest.
type started struct {
	memory
	heap           float64 // KiB
	startedIn, cpu time.Duration
	profiles       []string
}

// measureStart starts a controller, lets it come to rest, and ends it.
func (b *bench) measureStart(ctx context.Context) (s started, err error) {
	d, err := b.startDaemon(ctx)
	if err != nil {
		return s, err
	}
	s.startedIn = d.ReadyIn
	if err := d.rests(ctx); err != nil {
		return s, err
	}
	if s.cpu, err = busy(d.Pid()); err != nil {
		return s, err
	}
	if s.heap, err = d.heap(ctx); err != nil {
		return s, err
	}
	if s.memory, err = memoryOf(d.Pid()); err != nil {
		return s, err
	}
	if d.Profiles() {
		file := fmt.Sprintf("%s/%s-heap-%.0fMiB.pprof", b.options.profiles, phaseCached, s.heap/1024)
		if err := d.fetch(ctx, "heap", file); err != nil {
			return s, err
		}
		s.profiles = []string{file}
	}
	return s, d.stop()
}
