// SPDX-License-Identifier: Apache-2.0

package vmictrl

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/internal/tracecontext"
	"github.com/virtloom/virtloom/vmi"
)

// joined makes a pass over the VMI part of the trace of its start, until the VMI runs or is in
// a final phase, and ends the trace of a finished start. During a migration the pass is part
// of the migration's trace.
func (r *Reconciler) joined(ctx context.Context, key types.NamespacedName, g *v1.VirtualMachineInstance) context.Context {
	switch {
	case g == nil || !r.Scope.Has(g):
		r.starts.End(ctx, key, "the VirtualMachineInstance no longer exists", r.Clock.Now())
		return ctx
	case starting(g):
		return r.starts.Join(ctx, g, g.Status.Phase == v1.VmPhaseUnset, phaseEnteredAt(g))
	}
	failure := ""
	if !g.IsRunning() {
		failure = "the VirtualMachineInstance is in phase " + string(g.Status.Phase)
	}
	r.starts.End(ctx, key, failure, r.Clock.Now())
	if st := g.Status.MigrationState; st != nil && !st.Completed && !st.Failed {
		return tracecontext.Join(ctx, g)
	}
	return ctx
}

// starting reports whether the VMI has not run yet and may still start.
func starting(g *v1.VirtualMachineInstance) bool {
	return !g.IsFinal() && !g.IsRunning() && g.DeletionTimestamp == nil
}

// phaseEnteredAt returns when the VMI entered its phase; zero if that was not recorded.
func phaseEnteredAt(g *v1.VirtualMachineInstance) time.Time {
	at, _ := enteredAt(g, g.Status.Phase)
	return at.Time
}

// waits records what the VMI's start waits for after a pass.
func (r *Reconciler) waits(ctx context.Context, key types.NamespacedName, plan vmi.Plan) {
	reason, by := "", ""
	if len(plan.Waits) > 0 {
		reason, by = plan.Waits[0].Reason, string(plan.Waits[0].Responsible)
	}
	r.starts.Waits(ctx, key, reason, by, r.Clock.Now())
}
