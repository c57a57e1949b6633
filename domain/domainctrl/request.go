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
	"github.com/virtloom/virtloom/handoff"
)

// Request carries out what a user asks of a guest that runs here, such as to pause,
// and returns when that is done, or reached already. It is decided by
// [domain.DecideRequest], whose errors it returns, upon the object read live, and
// takes its turn with the passes over the guest, of which it lets one follow. Any
// number of callers may ask at the same time.
//
// The caller waits until ctx ends at most, so ctx should have a deadline: a guest that
// hangs holds up those who ask for it, and no other. The error is then a
// [domain.ErrTimeout], and what was asked may still happen if it had been begun. An
// agent that has not started yet, or does not know any more whose the guest is,
// answers [domain.ErrInvalidState]: nothing, or not all, has been done.
func (r *Reconciler) Request(ctx context.Context, key types.NamespacedName, req domain.Request) error {
	if r.lanes == nil {
		return fmt.Errorf("domainctrl: %s %s: %w", req.Verb, key, errNotStarted)
	}
	err := r.lanes.serve(ctx, reconcile.Request{NamespacedName: key}, func(ctx context.Context) error {
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

// errNotStarted is why nobody can be served before the controller runs.
var errNotStarted = fmt.Errorf("the controller has not started: %w", domain.ErrInvalidState)

// request carries out a request on the guest's lane.
func (r *Reconciler) request(ctx context.Context, key types.NamespacedName, req domain.Request) (err error) {
	ctx, span := tracer.Start(ctx, "node.Request")
	span.SetAttributes(attribute.String("vmi", key.String()), attribute.String("verb", string(req.Verb)))
	defer func() {
		if err != nil {
			span.SetStatus(codes.Error, err.Error())
		}
		span.End()
	}()
	// Later nothing may be begun anyway.
	ctx, cancel := context.WithTimeout(ctx, handoff.ActWithin)
	defer cancel()
	v := view{}
	if v.word, err = r.live(ctx, key); err != nil {
		return err
	}
	s, err := r.see(ctx, key, v.vmi)
	if err != nil {
		return err
	}
	if v.plan, err = domain.DecideRequest(s, req, r.Clock.Now()); err != nil {
		return err
	}
	for _, t := range v.plan.Tasks {
		if err := r.task(ctx, v, t); err != nil && !t.Optional() {
			return err
		}
	}
	return nil
}

// serve lets f have the guest's lane once it is free, before any pass that has not
// begun, and returns how it went; a pass follows. When ctx ends it returns that: f
// is then not begun, or goes on without being waited for.
func (n *lanes) serve(ctx context.Context, req reconcile.Request, f func(context.Context) error) error {
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

// turn waits for the guest's lane and begins f on it.
func (n *lanes) turn(ctx context.Context, req reconcile.Request, f pass) (*lane, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.queue == nil {
		return nil, errNotStarted
	}
	n.waits[req]++
	defer n.lockedLeave(req)
	for before := n.under[req]; before != nil || ctx.Err() != nil; before = n.under[req] {
		if ctx.Err() != nil {
			n.queue.Add(req) // a pass may have stood back
			return nil, ctx.Err()
		}
		n.mu.Unlock()
		select {
		case <-before.done:
		case <-ctx.Done():
		}
		n.mu.Lock()
	}
	l := &lane{done: make(chan struct{}), served: true}
	n.lockedRun(ctx, req, l, f)
	return l, nil
}

// lockedLeave says that one less waits for the lane. It needs n.mu.
func (n *lanes) lockedLeave(req reconcile.Request) {
	if n.waits[req]--; n.waits[req] == 0 {
		delete(n.waits, req)
	}
}
