// SPDX-License-Identifier: Apache-2.0

package expectationsctrl

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/virtloom/virtloom/expectations"
)

// Events on the span that is in the context of Check, which is that of the pass: a pass that does nothing says why.
const (
	spanHeld     = "expectations.held"
	spanLiveRead = "expectations.live_read"
)

// traceVerdict tells what a pass has to wait for.
func traceVerdict(ctx context.Context, v expectations.Verdict) {
	span := trace.SpanFromContext(ctx)
	if v.Satisfied() || !span.IsRecording() {
		return
	}
	pending := make([]string, 0, len(v.Pending))
	for _, p := range v.Pending {
		pending = append(pending, p.String())
	}
	span.AddEvent(spanHeld, trace.WithAttributes(
		attribute.String("state", v.State.String()), attribute.StringSlice("pending", pending)))
}

// traceLiveRead tells that the pass asked the API server.
func traceLiveRead(ctx context.Context, ref expectations.Ref, found bool, err error) {
	span := trace.SpanFromContext(ctx)
	if !span.IsRecording() {
		return
	}
	attributes := []attribute.KeyValue{attribute.String("object", ref.String()), attribute.Bool("found", found)}
	if err != nil {
		attributes = append(attributes, attribute.String("error", err.Error()))
	}
	span.AddEvent(spanLiveRead, trace.WithAttributes(attributes...))
}
