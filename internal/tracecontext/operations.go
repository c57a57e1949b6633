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

// mostOpen bounds the open operations of a process. Further operations are not traced.
const mostOpen = 20_000

// Operations are the open operations of one kind, as seen by a controller. It is safe for
// concurrent use. Create it with NewOperations.
type Operations struct {
	tracer     trace.Tracer
	name, wait string

	mu   sync.Mutex
	open map[types.NamespacedName]*operation // guarded by mu
}

// operation is one open operation.
type operation struct {
	uid types.UID
	// span is its root span; nil if another process began it.
	span trace.Span
	// context is the parent of all its spans.
	context trace.SpanContext
	// reason and by are the current wait and the responsible actor, since when.
	reason, by string
	since      time.Time
}

// NewOperations returns an empty set. name is the name of root spans, wait that of the spans of
// waits.
func NewOperations(tracer trace.Tracer, name, wait string) *Operations {
	return &Operations{tracer: tracer, name: name, wait: wait, open: map[types.NamespacedName]*operation{}}
}

// reasonUnseen is the wait of an object before its first reconciliation.
const reasonUnseen = "Unseen"

// Join returns a context whose spans are part of the object's operation, which is open since the
// object's creation. fresh is true if no controller has written the object before. since is when
// the object entered its current state, if that is stored.
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

// lockedOpen adopts an operation that another process began, or begins it; nil if it is not
// traced.
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

// Note sets the annotation with the operation's context on an object that is about to be written anyway.
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

// Waits records the operation's current wait and the responsible actor. The previous wait, if
// different, becomes a span.
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

// lockedWaited emits the span of the current wait.
func (o *Operations) lockedWaited(ctx context.Context, op *operation, now time.Time) {
	if op.reason == "" || now.Before(op.since) {
		return
	}
	_, span := o.tracer.Start(trace.ContextWithRemoteSpanContext(ctx, op.context), o.wait,
		trace.WithTimestamp(op.since), trace.WithAttributes(attribute.String("reason", op.reason), attribute.String("by", op.by)))
	span.End(trace.WithTimestamp(now))
}

// End ends the operation, if it is open; failure is the cause of a failure, or empty.
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
