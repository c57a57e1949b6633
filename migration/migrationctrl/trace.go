// SPDX-License-Identifier: Apache-2.0

package migrationctrl

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/migration"
)

// tracing traces migrations.
type tracing struct{ *Reconciler }

// joined makes a pass part of the migration's trace while that is under way, and ends the
// trace of a migration that has ended.
func (r tracing) joined(ctx context.Context, key types.NamespacedName, m *v1.VirtualMachineInstanceMigration) context.Context {
	switch {
	case m == nil:
		r.moves.End(ctx, key, "the migration no longer exists", r.Clock.Now())
	case !m.IsFinal():
		return r.moves.Join(ctx, m, m.Status.Phase == v1.MigrationPhaseUnset && len(m.Finalizers) == 0, phaseEnteredAt(m))
	default:
		failure := ""
		if m.Status.Phase == v1.MigrationFailed {
			failure = "the migration has failed"
			if c := migration.Condition(m.Status, migration.ConditionFailed); c != nil {
				failure = c.Reason + ": " + c.Message
			}
		}
		r.moves.End(ctx, key, failure, r.Clock.Now())
	}
	return ctx
}

// phaseEnteredAt returns when the migration entered its phase; zero if that was not recorded.
func phaseEnteredAt(m *v1.VirtualMachineInstanceMigration) time.Time {
	at, _ := enteredAt(m, m.Status.Phase)
	return at.Time
}

// waits records what the migration waits for after a pass.
func (r tracing) waits(ctx context.Context, key types.NamespacedName, plan migration.Plan) {
	r.moves.Waits(ctx, key, string(plan.Reason), string(plan.Responsible), r.Clock.Now())
}
