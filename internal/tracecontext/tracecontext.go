// SPDX-License-Identifier: Apache-2.0

// Package tracecontext joins what several processes do for one start of a guest, or one
// migration, into one trace.
//
// The controller begins the trace when it first sees the object, and writes its context
// into the annotation virtloom.dev/traceparent, in the form of W3C Trace Context, with the
// write that it makes anyway. Whoever does something for the object while the operation is
// under way hangs its spans under that. Once the operation is over nobody does: what is done
// for a guest years later is not part of its start.
//
// Owners can write that annotation as well. So what is found on an object that the
// controller sees for the first time is replaced; of a context that is valid a link is
// kept, and that it is sampled is not taken over. What an owner writes later can lead the
// spans of that one guest astray and nothing else, as long as the program's sampler decides
// by the trace's ID also where the parent is remote and says that it is sampled, as
// refdaemon's does. Processes with the same share of traces then decide alike.
//
// What a process waits for is a span too, made when the wait is over from when it began,
// so that nearly all of the time of an operation is in some span.
package tracecontext

import (
	"context"
	"encoding/hex"

	"go.opentelemetry.io/otel/trace"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Annotation has the context of the operation under way for the object.
const Annotation = "virtloom.dev/traceparent"

// length is that of a traceparent of version 00: "00-" trace "-" span "-" flags.
const length = 2 + 1 + 32 + 1 + 16 + 1 + 2

// Parse understands a traceparent of version 00, and nothing else: no other version, no
// capitals, no IDs of zeros, no flags but that of sampling.
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

// Format is the inverse of Parse; it is empty for a context that is not valid.
func Format(sc trace.SpanContext) string {
	if !sc.IsValid() {
		return ""
	}
	return "00-" + sc.TraceID().String() + "-" + sc.SpanID().String() + "-" + (sc.TraceFlags() & trace.FlagsSampled).String()
}

// Join makes spans begun with the context part of the operation that is noted on the
// object, if one is.
func Join(ctx context.Context, o metav1.Object) context.Context {
	if sc, valid := Parse(o.GetAnnotations()[Annotation]); valid {
		return trace.ContextWithRemoteSpanContext(ctx, sc)
	}
	return ctx
}
