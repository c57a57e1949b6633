// SPDX-License-Identifier: Apache-2.0

package tracecontext_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/virtloom/virtloom/internal/tracecontext"
)

const (
	traceID = "0af7651916cd43dd8448eb211c80319c"
	spanID  = "b7ad6b7169203331"
	valid   = "00-" + traceID + "-" + spanID + "-01"
)

func TestParse_Traceparent(t *testing.T) {
	for name, tc := range map[string]struct {
		text string
		want bool
	}{
		"sampled": {valid, true}, "not sampled": {valid[:54] + "0", true},
		"empty": {"", false}, "too short": {valid[:54], false}, "too long": {valid + "-00", false},
		"another version": {"01" + valid[2:], false}, "the forbidden version": {"ff" + valid[2:], false},
		"capitals in the trace": {"00-" + strings.ToUpper(traceID) + "-" + spanID + "-01", false},
		"capitals in the flags": {valid[:53] + "0A", false},
		"no trace":              {"00-" + strings.Repeat("0", 32) + "-" + spanID + "-01", false},
		"no span":               {"00-" + traceID + "-" + strings.Repeat("0", 16) + "-01", false},
		"flags nobody knows":    {valid[:53] + "03", false}, "flags that are none": {valid[:53] + "zz", false},
		"dashes elsewhere": {strings.Replace(valid, "-", "_", 3), false},
		"no number":        {"00-" + strings.Repeat("x", 32) + "-" + spanID + "-01", false},
		"a megabyte":       {strings.Repeat("0", 1<<20), false},
	} {
		t.Run(name, func(t *testing.T) {
			sc, got := tracecontext.Parse(tc.text)
			if got != tc.want || sc.IsValid() != tc.want {
				t.Fatalf("understood %v, valid %v, want %v", got, sc.IsValid(), tc.want)
			}
			if back := tracecontext.Format(sc); tc.want && back != tc.text {
				t.Errorf("%q becomes %q", tc.text, back)
			}
		})
	}
	if got := tracecontext.Format(trace.SpanContext{}); got != "" {
		t.Errorf("no context is %q", got)
	}
}

func FuzzParse(f *testing.F) {
	for _, text := range []string{"", valid, "01" + valid[2:]} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if sc, ok := tracecontext.Parse(text); ok && tracecontext.Format(sc) != text {
			t.Errorf("%q becomes %q", text, tracecontext.Format(sc))
		}
	})
}

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func at(seconds int) time.Time { return epoch.Add(time.Duration(seconds) * time.Second) }

// object was created at the epoch.
func object(uid types.UID, note string) *metav1.ObjectMeta {
	o := &metav1.ObjectMeta{Namespace: "ns", Name: "a", UID: uid, CreationTimestamp: metav1.NewTime(epoch)}
	if note != "" {
		o.Annotations = map[string]string{"other": "stays", tracecontext.Annotation: note}
	}
	return o
}

var key = types.NamespacedName{Namespace: "ns", Name: "a"}

// recorded returns a tracer and the exporter of its spans.
func recorded(t *testing.T) (*tracetest.InMemoryExporter, trace.Tracer) {
	t.Helper()
	exporter := tracetest.NewInMemoryExporter()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter))
	return exporter, provider.Tracer("test")
}

// spansOf returns the spans: name, attributes of waits, start and end in seconds.
func spansOf(e *tracetest.InMemoryExporter) []string {
	var out []string
	for _, s := range e.GetSpans() {
		text := fmt.Sprintf("%s %v-%v", s.Name, s.StartTime.Sub(epoch).Seconds(), s.EndTime.Sub(epoch).Seconds())
		for _, a := range s.Attributes {
			if k := string(a.Key); k == "reason" || k == "by" {
				text += " " + a.Value.AsString()
			}
		}
		if s.Status.Code == codes.Error {
			text += " failed: " + s.Status.Description
		}
		out = append(out, text)
	}
	return out
}

func TestOperations_SpansWithoutGaps(t *testing.T) {
	e, tracer := recorded(t)
	ops := tracecontext.NewOperations(tracer, "Start", "Wait")
	o := object("1", "")
	ctx := ops.Join(t.Context(), o, true, time.Time{})
	ops.Waits(ctx, key, "ClaimPending", "storage", at(2))
	ops.Waits(ctx, key, "ClaimPending", "storage", at(3))
	ops.Waits(ctx, key, "Unschedulable", "scheduler", at(4))
	ops.Waits(ctx, key, "", "", at(6))
	ops.Waits(ctx, key, "NotRunning", "node", at(7))
	ops.End(ctx, key, "", at(9))
	ops.End(ctx, key, "", at(10))
	want := []string{"Wait 0-2 Unseen ", "Wait 2-4 ClaimPending storage", "Wait 4-6 Unschedulable scheduler", "Wait 7-9 NotRunning node", "Start 0-9"}
	if diff := cmp.Diff(want, spansOf(e)); diff != "" {
		t.Errorf("spans (-want +got):\n%s", diff)
	}
	spans := e.GetSpans()
	root := spans[len(spans)-1]
	if trace.SpanContextFromContext(ctx).SpanID() != root.SpanContext.SpanID() {
		t.Error("a pass does not hang under the operation")
	}
	for _, s := range spans[:len(spans)-1] {
		if s.Parent.SpanID() != root.SpanContext.SpanID() || s.SpanContext.TraceID() != root.SpanContext.TraceID() {
			t.Errorf("%s is not part of the operation", s.Name)
		}
	}
	next := object("1", "")
	ops.Note(key, next)
	if len(next.Annotations) > 0 {
		t.Errorf("of an operation that is over %v is noted", next.Annotations)
	}
}

func TestNote_Once(t *testing.T) {
	_, tracer := recorded(t)
	ops := tracecontext.NewOperations(tracer, "Start", "Wait")
	o := object("1", "")
	o.Annotations = map[string]string{"other": "stays"}
	was := o.Annotations
	ops.Note(key, o)
	if _, noted := o.Annotations[tracecontext.Annotation]; noted {
		t.Error("it is written before there is an operation")
	}
	want := trace.SpanContextFromContext(ops.Join(t.Context(), o, true, time.Time{}))
	ops.Note(key, o)
	if got, ok := tracecontext.Parse(o.Annotations[tracecontext.Annotation]); !ok || got.SpanID() != want.SpanID() || o.Annotations["other"] != "stays" {
		t.Errorf("annotations are %v", o.Annotations)
	}
	if len(was) != 1 {
		t.Errorf("the map of the object before is changed: %v", was)
	}
}

func TestJoin_AnnotationOfOwner(t *testing.T) {
	for name, tc := range map[string]struct {
		note  string
		fresh bool
		links int
		taken bool
	}{
		"on a new object":                          {valid, true, 1, false},
		"on one that a controller has written to":  {valid, false, 0, true},
		"nonsense on a new object":                 {"nonsense", true, 0, false},
		"nonsense on one that was written to":      {"nonsense", false, 0, false},
		"none on one that was written to untraced": {"", false, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			e, tracer := recorded(t)
			ops := tracecontext.NewOperations(tracer, "Start", "Wait")
			o := object("1", tc.note)
			sc := trace.SpanContextFromContext(ops.Join(t.Context(), o, tc.fresh, at(5)))
			if taken := sc.TraceID().String() == traceID; taken != tc.taken {
				t.Errorf("the trace is taken over: %v, want %v", taken, tc.taken)
			}
			ops.Note(key, o)
			if got := o.Annotations[tracecontext.Annotation]; (got == valid) != tc.taken {
				t.Errorf("the object then has %q", got)
			}
			ops.End(t.Context(), key, "", at(9))
			spans := e.GetSpans()
			last := spans[len(spans)-1]
			if tc.taken && (last.Name != "Wait" || last.StartTime != at(5)) {
				t.Errorf("what was begun elsewhere has the root %s, or waited from %v", last.Name, last.StartTime)
			}
			if !tc.taken && (last.Name != "Start" || len(last.Links) != tc.links) {
				t.Errorf("the root is %s with %d links, want %d", last.Name, len(last.Links), tc.links)
			}
		})
	}
}

func TestJoin_SampledFlagIsIgnored(t *testing.T) {
	exporter := tracetest.NewInMemoryExporter()
	never := sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter), sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.NeverSample(),
		sdktrace.WithRemoteParentSampled(sdktrace.TraceIDRatioBased(0)))))
	ops := tracecontext.NewOperations(never.Tracer("test"), "Start", "Wait")
	o := object("1", valid)
	ops.Join(t.Context(), o, true, time.Time{})
	ops.Note(key, o)
	ops.End(t.Context(), key, "", at(3))
	if n := len(exporter.GetSpans()); n > 0 {
		t.Errorf("%d spans are exported", n)
	}
	if got := o.Annotations[tracecontext.Annotation]; !strings.HasSuffix(got, "-00") {
		t.Errorf("the object says %q, which requests sampling", got)
	}
}

func TestJoin_ReplacedObject(t *testing.T) {
	e, tracer := recorded(t)
	ops := tracecontext.NewOperations(tracer, "Start", "Wait")
	first := trace.SpanContextFromContext(ops.Join(t.Context(), object("1", ""), true, time.Time{}))
	second := trace.SpanContextFromContext(ops.Join(t.Context(), object("2", ""), true, time.Time{}))
	if first.TraceID() == second.TraceID() {
		t.Error("two objects of one name share a trace")
	}
	ops.End(t.Context(), key, "the guest has ended", at(2))
	want := []string{"Wait 0-0 Unseen ", "Start 0-0 failed: the object was deleted", "Wait 0-2 Unseen ", "Start 0-2 failed: the guest has ended"}
	if diff := cmp.Diff(want, spansOf(e)); diff != "" {
		t.Errorf("spans (-want +got):\n%s", diff)
	}
}

func TestNote_WithoutTracing(t *testing.T) {
	ops := tracecontext.NewOperations(noop.NewTracerProvider().Tracer("test"), "Start", "Wait")
	o := object("1", "")
	ops.Join(t.Context(), o, true, time.Time{})
	ops.Waits(t.Context(), key, "A", "user", at(1))
	ops.Note(key, o)
	ops.End(t.Context(), key, "", at(2))
	if len(o.Annotations) > 0 {
		t.Errorf("annotations are %v", o.Annotations)
	}
}
