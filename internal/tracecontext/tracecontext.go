// SPDX-License-Identifier: Apache-2.0

// Package tracecontext joins the spans of several processes for one start of a VMI, or one
// migration, in one trace.
//
// The controller begins the trace when it first observes the object, and writes its context
// into the annotation virtloom.dev/traceparent, in the form of W3C Trace Context, with a write
// that it makes anyway. A process that works on the object while the operation is open adds its
// spans to that trace. Afterwards none does: work on a VMI years later is not part of its start.
//
// Owners can write that annotation as well. So an annotation found on an object that the
// controller observes for the first time is replaced; a valid context is kept as a link, and
// its sampling decision is not adopted. A later write by an owner can only misplace the spans
// of that one VMI, as long as the program's sampler decides by the trace ID also for remote
// sampled parents, as refdaemon's does. Processes with the same sampling ratio then decide
// alike.
//
// A wait of a process is a span too, emitted at the end of the wait with its start time, so
// that nearly all of the time of an operation is in some span.
package tracecontext

import (
	"context"
	"encoding/hex"

	"go.opentelemetry.io/otel/trace"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Annotation is the key of the annotation with the context of the object's open operation.
const Annotation = "virtloom.dev/traceparent"

// length is the length of a traceparent of version 00: "00-" trace "-" span "-" flags.
const length = 2 + 1 + 32 + 1 + 16 + 1 + 2

// Parse parses a traceparent of version 00. It rejects other versions, capitals, zero IDs, and
// flags other than sampled.
func Parse(text string) (trace.SpanContext, bool) {
	var none trace.SpanContext
	if len(text) != length || text[:3] != "00-" || text[35] != '-' || text[52] != '-' {
		return none, false
	}
	traceID, err := trace.TraceIDFromHex(text[3:35])
	if err != nil {
		return none, false
	}
	spanID, err := trace.SpanIDFromHex(text[36:52])
	if err != nil {
		return none, false
	}
	flags, err := hex.DecodeString(text[53:])
	if err != nil || flags[0]&^byte(trace.FlagsSampled) != 0 || text[53:] != hex.EncodeToString(flags) {
		return none, false
	}
	return trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: traceID, SpanID: spanID, TraceFlags: trace.TraceFlags(flags[0]), Remote: true,
	}), true
}

// Format is the inverse of Parse; it returns "" for an invalid context.
func Format(sc trace.SpanContext) string {
	if !sc.IsValid() {
		return ""
	}
	return "00-" + sc.TraceID().String() + "-" + sc.SpanID().String() + "-" + (sc.TraceFlags() & trace.FlagsSampled).String()
}

// Join returns a context whose spans are part of the operation recorded on the object, if there
// is one.
func Join(ctx context.Context, o metav1.Object) context.Context {
	if sc, valid := Parse(o.GetAnnotations()[Annotation]); valid {
		return trace.ContextWithRemoteSpanContext(ctx, sc)
	}
	return ctx
}
