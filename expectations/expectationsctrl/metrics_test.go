// SPDX-License-Identifier: Apache-2.0

package expectationsctrl_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/virtloom/virtloom/expectations"
	"github.com/virtloom/virtloom/expectations/expectationsctrl"
	"github.com/virtloom/virtloom/internal/measure/measuretest"
)

// story takes a gate through everything that its observer and spans record.
func story(ctx context.Context, t *testing.T, s *scene, broken *bool) {
	t.Helper()
	must(t, s.writes.Create(ctx, pod("seen")))
	s.clock.SetTime(s.clock.Now().Add(2 * time.Second))
	s.tracker.Observe(podKind, s.live(t, "seen"), expectations.Added)
	must(t, s.writes.Delete(ctx, s.live(t, "seen")))
	must(t, s.writes.Create(ctx, pod("late")))
	s.clock.SetTime(s.clock.Now().Add(time.Minute))
	*broken = true
	if _, err := s.gate.Check(ctx, owner); err == nil {
		t.Error("a server that cannot be read is no error")
	}
	*broken = false
	if v, err := s.gate.Check(ctx, owner); err != nil || !v.Satisfied() {
		t.Errorf("got %s %v, %v", v.State, v.Pending, err)
	}
	s.tracker.ExpectUpdate(owner, there(), "", "7")
}

func TestMetrics_EveryWrite(t *testing.T) {
	m := expectationsctrl.NewMetrics("vmi")
	broken := false
	s := newScene(t, setup{observer: m, faults: interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
			if broken {
				return errors.New("connection lost")
			}
			return c.Get(ctx, key, obj, opts...)
		},
	}})
	story(t.Context(), t, s, &broken)
	want := map[string]string{
		"virtloom_expectations_outstanding controller=vmi verb=create":             "0",
		"virtloom_expectations_outstanding controller=vmi verb=update":             "1",
		"virtloom_expectations_outstanding controller=vmi verb=delete":             "0",
		"virtloom_expectations_settle_duration_seconds controller=vmi verb=create": "2 in 62s",
		"virtloom_expectations_settle_duration_seconds controller=vmi verb=delete": "1 in 60s",
		"virtloom_expectations_settled_total controller=vmi evidence=event":        "1",
		"virtloom_expectations_settled_total controller=vmi evidence=live_read":    "2",
		"virtloom_expectations_expired_total controller=vmi problem=overdue":       "2",
		"virtloom_expectations_live_reads_total controller=vmi result=error":       "2",
		"virtloom_expectations_live_reads_total controller=vmi result=absent":      "1",
		"virtloom_expectations_live_reads_total controller=vmi result=found":       "1",
	}
	if diff := cmp.Diff(want, measuretest.Gathered(t, m, expectationsctrl.NewMetrics("migration"))); diff != "" {
		t.Errorf("metrics (-want +got):\n%s", diff)
	}
}

func TestCheck_SpanEvents(t *testing.T) {
	exporter := tracetest.NewInMemoryExporter()
	provider := trace.NewTracerProvider(trace.WithSyncer(exporter))
	s := newScene(t, setup{})
	ctx, span := provider.Tracer("test").Start(t.Context(), "pass")
	must(t, s.writes.Create(ctx, pod("new")))
	for range 2 {
		if _, err := s.gate.Check(ctx, owner); err != nil {
			t.Fatal(err)
		}
		s.clock.SetTime(s.clock.Now().Add(time.Minute))
	}
	span.End()
	var got []string
	for _, e := range exporter.GetSpans()[0].Events {
		text := e.Name
		for _, a := range e.Attributes {
			text += fmt.Sprintf(" %s=%s", a.Key, a.Value.String())
		}
		got = append(got, text)
	}
	want := []string{
		`expectations.held state=waiting pending=["create of Pod ns/new, needs 1"]`,
		`expectations.live_read object=Pod ns/new found=true`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}
