// SPDX-License-Identifier: Apache-2.0

package vmictrl

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/internal/tracecontext"
	"github.com/virtloom/virtloom/vmi"
)

func TestTrace_Start(t *testing.T) {
	pending := vmi.Plan{Waits: []vmi.Wait{{Reason: "ClaimPending", Responsible: handoff.ByStorage}}}
	for name, tc := range map[string]struct {
		// end is the VMI at the end of its start; nil if it does not exist.
		end  *v1.VirtualMachineInstance
		over bool
		want []string
	}{
		"it runs":          {counted("a", "n1", v1.Pending, v1.Running), true, []string{"vmi.Wait", "vmi.Wait", "vmi.Start "}},
		"it has failed":    {counted("a", "", v1.Pending, v1.Failed), true, []string{"vmi.Wait", "vmi.Wait", "vmi.Start the VirtualMachineInstance is in phase Failed"}},
		"it is deleted":    {deletedAt(counted("a", "", v1.Pending), time.Second), true, []string{"vmi.Wait", "vmi.Wait", "vmi.Start the VirtualMachineInstance is in phase Pending"}},
		"it is not there":  {nil, true, []string{"vmi.Wait", "vmi.Wait", "vmi.Start the VirtualMachineInstance no longer exists"}},
		"it is on its way": {counted("a", "", v1.Pending, v1.Scheduling), false, []string{"vmi.Wait"}},
	} {
		t.Run(name, func(t *testing.T) {
			exporter := tracetest.NewInMemoryExporter()
			provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter))
			now := clocktesting.NewFakePassiveClock(metricsEpoch.Add(time.Second))
			r := &Reconciler{Clock: now, starts: tracecontext.NewOperations(provider.Tracer("test"), "vmi.Start", "vmi.Wait")}
			key := types.NamespacedName{Namespace: "ns", Name: "a"}
			ctx := r.joined(t.Context(), key, counted("a", ""))
			r.waits(ctx, key, pending)
			now.SetTime(metricsEpoch.Add(9 * time.Second))
			joins := trace.SpanContextFromContext(r.joined(t.Context(), key, tc.end))
			if joins.IsValid() == tc.over {
				t.Errorf("the pass is part of the start: %v", joins.IsValid())
			}
			var got []string
			for _, s := range exporter.GetSpans() {
				text := s.Name
				if s.Name == "vmi.Start" {
					text += " " + s.Status.Description
					if took := s.EndTime.Sub(s.StartTime); took != 9*time.Second {
						t.Errorf("the start took %s", took)
					}
				}
				got = append(got, text)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("spans (-want +got):\n%s", diff)
			}
		})
	}
}
