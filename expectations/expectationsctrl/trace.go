// SPDX-License-Identifier: Apache-2.0

package expectationsctrl

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/virtloom/virtloom/expectations"
)

// Events on the span in the context of Check, which is that of the pass: they explain a pass without action.
const (
	spanHeld     = "expectations.held"
	spanLiveRead = "expectations.live_read"
)

// traceVerdict records the writes that a pass waits for.
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

// traceLiveRead records that the pass read from the API server.
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
