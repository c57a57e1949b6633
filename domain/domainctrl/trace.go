// SPDX-License-Identifier: Apache-2.0

package domainctrl

import (
	"context"

	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/internal/tracecontext"
)

// joinDomainTrace makes a pass over the VMI part of the trace of its start, or of its migration, while that
// is under way; later passes are not.
func joinDomainTrace(ctx context.Context, g *v1.VirtualMachineInstance) context.Context {
	switch {
	case g == nil || g.IsFinal():
		return ctx
	case g.IsRunning() && !moving(g):
		return ctx
	}
	return tracecontext.Join(ctx, g)
}

// moving reports whether a migration of the VMI is under way.
func moving(g *v1.VirtualMachineInstance) bool {
	st := g.Status.MigrationState
	return st != nil && !st.Completed && !st.Failed
}

// calling makes a span of a call to the hypervisor.
func calling(ctx context.Context, name string, call func(context.Context) error) error {
	ctx, span := tracer.Start(ctx, name, trace.WithSpanKind(trace.SpanKindClient))
	defer span.End()
	err := call(ctx)
	if err != nil {
		span.SetStatus(codes.Error, err.Error())
	}
	return err
}
