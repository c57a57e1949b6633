// SPDX-License-Identifier: Apache-2.0

package migrationctrl

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

	"github.com/virtloom/virtloom/internal/tracecontext"
	"github.com/virtloom/virtloom/migration"
)

func TestTrace_EndsWithMigration(t *testing.T) {
	explained := because(counted("a", v1.MigrationPending, v1.MigrationFailed), migration.ConditionFailed, migration.ReasonNoNode)
	explained.Status.Conditions[0].Message = "no node has the CPU"
	for name, tc := range map[string]struct {
		end  *v1.VirtualMachineInstanceMigration
		over bool
		want []string
	}{
		"it succeeds":           {counted("a", v1.MigrationPending, v1.MigrationSucceeded), true, []string{"Unseen", "WaitingForSlot", "over: "}},
		"it fails":              {counted("a", v1.MigrationPending, v1.MigrationFailed), true, []string{"Unseen", "WaitingForSlot", "over: the migration has failed"}},
		"it fails for a reason": {explained, true, []string{"Unseen", "WaitingForSlot", "over: NoNodeMatches: no node has the CPU"}},
		"it is not there":       {nil, true, []string{"Unseen", "WaitingForSlot", "over: the migration no longer exists"}},
		"it is on its way":      {counted("a", v1.MigrationPending, v1.MigrationScheduling), false, []string{"Unseen"}},
	} {
		t.Run(name, func(t *testing.T) {
			exporter := tracetest.NewInMemoryExporter()
			provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter))
			now := clocktesting.NewFakePassiveClock(metricsEpoch.Add(time.Second))
			r := &Reconciler{Clock: now, moves: tracecontext.NewOperations(provider.Tracer("test"), "migration.Move", "migration.Wait")}
			key := types.NamespacedName{Namespace: "ns", Name: "a"}
			ctx := tracing{r}.joined(t.Context(), key, counted("a"))
			tracing{r}.waits(ctx, key, migration.Plan{Reason: migration.ReasonWaitingForSlot})
			now.SetTime(metricsEpoch.Add(9 * time.Second))
			if joins := trace.SpanContextFromContext((tracing{r}).joined(t.Context(), key, tc.end)); joins.IsValid() == tc.over {
				t.Errorf("the pass is part of the migration: %v", joins.IsValid())
			}
			var got []string
			for _, s := range exporter.GetSpans() {
				if s.Name == "migration.Move" {
					got = append(got, "over: "+s.Status.Description)
				}
				for _, a := range s.Attributes {
					if a.Key == "reason" {
						got = append(got, a.Value.AsString())
					}
				}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("spans (-want +got):\n%s", diff)
			}
		})
	}
}
