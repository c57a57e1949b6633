// SPDX-License-Identifier: Apache-2.0

package domainctrl

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

// Pauses of a guest whose passes fail after their worker has left them.
const (
	laneRetryFirst = time.Second
	laneRetryMost  = time.Minute
)

// lanes give every guest a goroutine of its own for its pass. A worker waits for it a
// moment and then turns to the next guest, so that no number of guests that hang
// keeps the others from being served. A guest has one lane at a time, on which what
// users ask of it is served as well.
type lanes struct {
	mu    sync.Mutex
	ctx   context.Context // set by the source's start; ends with the manager
	queue workqueue.TypedRateLimitingInterface[reconcile.Request]
	under map[reconcile.Request]*lane
	waits map[reconcile.Request]int // users who wait for the lane
	fails map[reconcile.Request]int // in a row, of passes that were left
	all   sync.WaitGroup
	ended chan struct{} // closed when the last one has ended with the manager
}

// lane is a pass over one guest under way.
type lane struct {
	done   chan struct{}
	result reconcile.Result
	err    error
	left   bool // its worker waits no longer
	served bool // it is no pass: a user has asked for something
	again  bool // another pass was asked for meanwhile
}

// pass is what runs on a lane.
type pass func(context.Context) (reconcile.Result, error)

func newLanes() *lanes {
	return &lanes{
		under: map[reconcile.Request]*lane{}, waits: map[reconcile.Request]int{}, fails: map[reconcile.Request]int{},
		ended: make(chan struct{}),
	}
}

// source gives the lanes the controller's queue and the manager's context.
func (n *lanes) source() source.Source {
	return source.Func(func(ctx context.Context, q workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.ctx, n.queue = ctx, q
		return nil
	})
}

// Start lets a manager wait for the lanes when it ends.
func (n *lanes) Start(ctx context.Context) error {
	<-ctx.Done()
	n.mu.Lock()
	n.ctx = ctx // none begins from now on
	n.mu.Unlock()
	n.all.Wait()
	close(n.ended)
	return nil
}

// NeedLeaderElection is false: every node serves its own guests.
func (n *lanes) NeedLeaderElection() bool { return false }

// do carries out a pass over a guest and returns how it went, if that is known after
// wait. If not the request goes back into the queue when it is, by its result. While
// it runs, a further request of the guest is noted and served after it.
func (n *lanes) do(ctx context.Context, req reconcile.Request, wait time.Duration, f pass) (reconcile.Result, error) {
	l, begun := n.begin(ctx, req, f)
	if l == nil { // nothing has started that could take it back
		return f(ctx)
	}
	if !begun {
		return reconcile.Result{}, nil
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-l.done:
	case <-t.C:
		if n.leave(l) {
			return reconcile.Result{}, nil
		}
	}
	return l.result, l.err
}

// begin starts a lane for the guest, unless it has one or a user waits for it, and
// returns it; nil before the controller has started.
func (n *lanes) begin(ctx context.Context, req reconcile.Request, f pass) (l *lane, begun bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.queue == nil {
		return nil, false
	}
	if l = n.under[req]; l != nil {
		l.again = true
		return l, false
	}
	l = &lane{done: make(chan struct{})}
	if n.waits[req] > 0 { // a pass is made after it anyway
		return l, false
	}
	n.lockedRun(ctx, req, l, f)
	return l, true
}

// lockedRun lets f have the lane, and ends it at once if the manager has. It needs
// n.mu.
func (n *lanes) lockedRun(ctx context.Context, req reconcile.Request, l *lane, f pass) {
	if n.ctx.Err() != nil {
		close(l.done)
		l.err = n.ctx.Err()
		return
	}
	n.under[req] = l
	// What the worker's context carries is wanted, its end is not.
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(n.ctx, cancel)
	n.all.Go(func() {
		defer cancel()
		defer stop()
		result, err := guarded(ctx, req, f)
		n.end(ctx, req, l, result, err)
	})
}

// guarded makes a panic an error, as a controller does with one of its workers.
func guarded(ctx context.Context, req reconcile.Request, f pass) (result reconcile.Result, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("domainctrl: panic in the pass over %s: %v", req, p)
			ctrl.LoggerFrom(ctx).Error(err, "Observed a panic", "stacktrace", string(debug.Stack()))
		}
	}()
	return f(ctx)
}

// leave tells the lane to put the request back itself; false if it has ended.
func (n *lanes) leave(l *lane) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	select {
	case <-l.done:
		return false
	default:
		l.left = true
		return true
	}
}

func (n *lanes) end(ctx context.Context, req reconcile.Request, l *lane, result reconcile.Result, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	l.result, l.err = result, err
	close(l.done)
	delete(n.under, req)
	if l.served {
		n.queue.Add(req)
		return
	}
	if err == nil {
		delete(n.fails, req)
	}
	if !l.left || n.ctx.Err() != nil {
		return
	}
	if err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Reconciler error")
	}
	terminal := errors.Is(err, reconcile.TerminalError(nil))
	switch {
	case l.again:
		n.queue.Add(req)
	case terminal:
		delete(n.fails, req)
	case err != nil:
		n.queue.AddAfter(req, min(laneRetryFirst<<min(n.fails[req], 10), laneRetryMost))
		n.fails[req]++
	case result.RequeueAfter > 0:
		n.queue.AddAfter(req, result.RequeueAfter)
	}
}
