// SPDX-License-Identifier: Apache-2.0

package domainctrl

import (
	"context"
	"errors"
	"fmt"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/plan"
	"github.com/virtloom/virtloom/handoff"
)

// Request carries out a user's request for a VMI that runs here, such as to pause it, and returns
// when that is done, or was done already. [plan.DecideRequest] decides it, whose errors it returns,
// upon the object read live. It is serialized with the passes over the VMI, and a pass follows it.
// It is safe for concurrent use.
//
// The caller waits until ctx ends at most, so ctx should have a deadline: an unresponsive domain
// delays its own callers, and no other. The error is then a [domain.ErrTimeout], and the request
// may still take effect if it had begun. An agent that has not started yet, or can no longer confirm the
// lease, returns [domain.ErrInvalidState]: the request has not, or not fully, been carried out.
func (r *Reconciler) Request(ctx context.Context, key types.NamespacedName, req plan.Request) error {
	if r.keyedWorkers == nil {
		return fmt.Errorf("domainctrl: %s %s: %w", req.Verb, key, errNotStarted)
	}
	err := r.keyedWorkers.serve(ctx, reconcile.Request{NamespacedName: key}, func(ctx context.Context) error {
		return r.request(ctx, key, req)
	})
	switch {
	case outdated(err):
		err = errors.Join(domain.ErrInvalidState, err)
	case ctx.Err() != nil && errors.Is(err, ctx.Err()):
		err = errors.Join(domain.ErrTimeout, err)
	}
	if err != nil {
		return fmt.Errorf("domainctrl: %s %s: %w", req.Verb, key, err)
	}
	return nil
}

// errNotStarted is the error of requests before the controller runs.
var errNotStarted = fmt.Errorf("the controller has not started: %w", domain.ErrInvalidState)

// request carries out a request on the VMI's keyed worker.
func (r *Reconciler) request(ctx context.Context, key types.NamespacedName, req plan.Request) (err error) {
	ctx, span := tracer.Start(ctx, "node.Request")
	span.SetAttributes(attribute.String("vmi", key.String()), attribute.String("verb", string(req.Verb)))
	defer func() {
		if err != nil {
			span.SetStatus(codes.Error, err.Error())
		}
		span.End()
	}()
	// No action may begin after that anyway.
	ctx, cancel := context.WithTimeout(ctx, handoff.ActWithin)
	defer cancel()
	v := pass{}
	if v.observed, err = r.live(ctx, key); err != nil {
		return err
	}
	s, err := gatherer{r}.gather(ctx, key, v.observed)
	if err != nil {
		return err
	}
	if v.plan, err = plan.DecideRequest(s, req, r.Clock.Now()); err != nil {
		return err
	}
	for _, t := range v.plan.Actions {
		if err := (actor{r}).task(ctx, v, t); err != nil && !t.Optional() {
			return err
		}
	}
	return nil
}

// serve runs f on the VMI's keyed worker once it is free, before any pass that has not begun, and
// returns its error; a pass follows. When ctx ends serve returns that error: f then does not begin,
// or continues unobserved.
func (n *keyedWorkers) serve(ctx context.Context, req reconcile.Request, f func(context.Context) error) error {
	l, err := n.turn(ctx, req, func(ctx context.Context) (reconcile.Result, error) { return reconcile.Result{}, f(ctx) })
	if err != nil {
		return err
	}
	select {
	case <-l.done:
		return l.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// turn waits for the VMI's keyed worker and begins f on it.
func (n *keyedWorkers) turn(ctx context.Context, req reconcile.Request, f passFunc) (*keyedWorker, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.queue == nil {
		return nil, errNotStarted
	}
	n.waits[req]++
	defer n.lockedLeave(req)
	for before := n.under[req]; before != nil || ctx.Err() != nil; before = n.under[req] {
		if ctx.Err() != nil {
			n.queue.Add(req) // a pass may have been skipped
			return nil, ctx.Err()
		}
		n.mu.Unlock()
		select {
		case <-before.done:
		case <-ctx.Done():
		}
		n.mu.Lock()
	}
	l := &keyedWorker{done: make(chan struct{}), served: true}
	n.lockedRun(ctx, req, l, f)
	return l, nil
}

// lockedLeave removes one waiting request. It needs n.mu.
func (n *keyedWorkers) lockedLeave(req reconcile.Request) {
	if n.waits[req]--; n.waits[req] == 0 {
		delete(n.waits, req)
	}
}
