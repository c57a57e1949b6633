// SPDX-License-Identifier: Apache-2.0

package domainctrl

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// Pauses of a VMI whose passes fail after their worker has left them.
const (
	keyedRetryFirst = time.Second
	keyedRetryMost  = time.Minute
)

// keyedWorkers give every VMI a goroutine of its own for its pass. A worker waits for it a moment
// and then serves the next VMI, so that no number of unresponsive domains delays the others. A VMI
// has one keyed worker at a time, which serves users' requests as well.
type keyedWorkers struct {
	background
	under map[reconcile.Request]*keyedWorker
	waits map[reconcile.Request]int // users' requests that wait
	fails map[reconcile.Request]int // in a row, of passes that their worker has left
	ended chan struct{}             // closed when the last one has ended with the manager
}

// keyedWorker runs one pass over a VMI.
type keyedWorker struct {
	done   chan struct{}
	result reconcile.Result
	err    error
	left   bool // its worker no longer waits
	served bool // a user's request, not a pass
	again  bool // another pass was requested meanwhile
}

// passFunc runs on a keyed worker.
type passFunc func(context.Context) (reconcile.Result, error)

func newKeyedWorkers() *keyedWorkers {
	return &keyedWorkers{
		under: map[reconcile.Request]*keyedWorker{}, waits: map[reconcile.Request]int{}, fails: map[reconcile.Request]int{},
		ended: make(chan struct{}),
	}
}

// Start makes the end of a manager wait for the passes.
func (n *keyedWorkers) Start(ctx context.Context) error {
	defer close(n.ended)
	return n.background.Start(ctx)
}

// do runs a pass over a VMI and returns its result, if it ends within wait. If not, the pass
// requeues the request when it ends, by its result. While it runs, a further request for the VMI is
// noted and served after it.
func (n *keyedWorkers) do(ctx context.Context, req reconcile.Request, wait time.Duration, f passFunc) (reconcile.Result, error) {
	l, begun := n.begin(ctx, req, f)
	if l == nil { // not started yet, nothing could requeue it
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

// begin starts a keyed worker for the VMI, unless it has one or a user's request waits for it, and
// returns it; nil before the controller has started.
func (n *keyedWorkers) begin(ctx context.Context, req reconcile.Request, f passFunc) (l *keyedWorker, begun bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.queue == nil {
		return nil, false
	}
	if l = n.under[req]; l != nil {
		l.again = true
		return l, false
	}
	l = &keyedWorker{done: make(chan struct{})}
	if n.waits[req] > 0 { // a pass is made after it anyway
		return l, false
	}
	n.lockedRun(ctx, req, l, f)
	return l, true
}

// lockedRun runs f on the keyed worker, or ends it at once if the manager has ended. It needs n.mu.
func (n *keyedWorkers) lockedRun(ctx context.Context, req reconcile.Request, l *keyedWorker, f passFunc) {
	if n.ctx.Err() != nil {
		close(l.done)
		l.err = n.ctx.Err()
		return
	}
	n.under[req] = l
	// The values of the worker's context are kept, its end is not.
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(n.ctx, cancel)
	n.all.Go(func() {
		defer cancel()
		defer stop()
		result, err := guarded(ctx, req, f)
		n.end(ctx, req, l, result, err)
	})
}

// guarded turns a panic into an error, as a controller does with its workers.
func guarded(ctx context.Context, req reconcile.Request, f passFunc) (result reconcile.Result, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("domainctrl: panic in the pass over %s: %v", req, p)
			ctrl.LoggerFrom(ctx).Error(err, "Observed a panic", "stacktrace", string(debug.Stack()))
		}
	}()
	return f(ctx)
}

// leave makes the keyed worker requeue the request itself; false if it has ended.
func (n *keyedWorkers) leave(l *keyedWorker) bool {
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

func (n *keyedWorkers) end(ctx context.Context, req reconcile.Request, l *keyedWorker, result reconcile.Result, err error) {
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
		n.queue.AddAfter(req, min(keyedRetryFirst<<min(n.fails[req], 10), keyedRetryMost))
		n.fails[req]++
	case result.RequeueAfter > 0:
		n.queue.AddAfter(req, result.RequeueAfter)
	}
}
