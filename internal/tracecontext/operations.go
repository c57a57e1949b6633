// SPDX-License-Identifier: Apache-2.0

package tracecontext

import (
	"context"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// mostOpen bounds the operations that a process remembers at a time. Those beyond it have
// no trace.
const mostOpen = 20_000

// Operations are those of one kind that are under way, as a controller sees them. It is
// safe for concurrent use. Create it with NewOperations.
type Operations struct {
	tracer     trace.Tracer
	name, wait string

	mu   sync.Mutex
	open map[types.NamespacedName]*operation // guarded by mu
}

// operation is one under way.
type operation struct {
	uid types.UID
	// span is its root; nil where another process began it.
	span trace.Span
	// context is what everything done for it hangs under.
	context trace.SpanContext
	// reason and by are what it waits for and whose turn it is, since when.
	reason, by string
	since      time.Time
}

// NewOperations returns none. Their roots have the name, and what they wait for is in
// spans with that of wait.
func NewOperations(tracer trace.Tracer, name, wait string) *Operations {
	return &Operations{tracer: tracer, name: name, wait: wait, open: map[types.NamespacedName]*operation{}}
}

// reasonUnseen is what an operation waits for before anybody has looked at it.
const reasonUnseen = "Unseen"

// Join makes spans begun with the context part of the object's operation, which is under
// way since its creation. fresh says that no controller has written to the object before.
// since is from when on it is in the state it is in, if that is stored.
func (o *Operations) Join(ctx context.Context, of metav1.Object, fresh bool, since time.Time) context.Context {
	o.mu.Lock()
	defer o.mu.Unlock()
	key := types.NamespacedName{Namespace: of.GetNamespace(), Name: of.GetName()}
	op := o.open[key]
	if op != nil && op.uid != of.GetUID() {
		o.lockedEnd(ctx, key, "the object was deleted", of.GetCreationTimestamp().Time)
		op = nil
	}
	if op == nil {
		if op = o.lockedOpen(ctx, of, fresh, since); op == nil {
			return ctx
		}
		o.open[key] = op
	}
	return trace.ContextWithRemoteSpanContext(ctx, op.context)
}

// lockedOpen takes up an operation that another process began, or begins it; nil if there
// is nobody to tell.
func (o *Operations) lockedOpen(ctx context.Context, of metav1.Object, fresh bool, since time.Time) *operation {
	if len(o.open) >= mostOpen {
		return nil
	}
	found, valid := Parse(of.GetAnnotations()[Annotation])
	began := of.GetCreationTimestamp().Time
	if valid && !fresh {
		if since.IsZero() {
			since = began
		}
		return &operation{uid: of.GetUID(), context: found, reason: reasonUnseen, since: since}
	}
	options := []trace.SpanStartOption{trace.WithNewRoot(), trace.WithTimestamp(began), trace.WithAttributes(
		attribute.String("namespace", of.GetNamespace()), attribute.String("name", of.GetName()), attribute.String("uid", string(of.GetUID())))}
	if valid {
		options = append(options, trace.WithLinks(trace.Link{SpanContext: found}))
	}
	_, span := o.tracer.Start(ctx, o.name, options...)
	if !span.SpanContext().IsValid() {
		return nil
	}
	return &operation{uid: of.GetUID(), span: span, context: span.SpanContext(), reason: reasonUnseen, since: began}
}

// Note writes the operation's context onto an object that is about to be written anyway.
func (o *Operations) Note(key types.NamespacedName, onto metav1.Object) {
	o.mu.Lock()
	defer o.mu.Unlock()
	op := o.open[key]
	if op == nil {
		return
	}
	text, notes := Format(op.context), onto.GetAnnotations()
	if notes[Annotation] == text {
		return
	}
	next := make(map[string]string, len(notes)+1)
	for k, v := range notes {
		next[k] = v
	}
	next[Annotation] = text
	onto.SetAnnotations(next)
}

// Waits notes what the operation waits for from now on, and by whose turn it is. What it
// waited for before, if that was something else, becomes a span.
func (o *Operations) Waits(ctx context.Context, key types.NamespacedName, reason, by string, now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	op := o.open[key]
	if op == nil || op.reason == reason && op.by == by {
		return
	}
	o.lockedWaited(ctx, op, now)
	op.reason, op.by, op.since = reason, by, now
}

// lockedWaited makes a span of what the operation has waited for.
func (o *Operations) lockedWaited(ctx context.Context, op *operation, now time.Time) {
	if op.reason == "" || now.Before(op.since) {
		return
	}
	_, span := o.tracer.Start(trace.ContextWithRemoteSpanContext(ctx, op.context), o.wait,
		trace.WithTimestamp(op.since), trace.WithAttributes(attribute.String("reason", op.reason), attribute.String("by", op.by)))
	span.End(trace.WithTimestamp(now))
}

// End ends the operation, if it is under way: failure says why it has failed, or is empty.
func (o *Operations) End(ctx context.Context, key types.NamespacedName, failure string, now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.lockedEnd(ctx, key, failure, now)
}

func (o *Operations) lockedEnd(ctx context.Context, key types.NamespacedName, failure string, now time.Time) {
	op := o.open[key]
	if op == nil {
		return
	}
	delete(o.open, key)
	o.lockedWaited(ctx, op, now)
	if op.span == nil {
		return
	}
	if failure != "" {
		op.span.SetStatus(codes.Error, failure)
	}
	op.span.End(trace.WithTimestamp(now))
}
