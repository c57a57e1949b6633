// SPDX-License-Identifier: Apache-2.0

package migrationctrl

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/migration"
)

// restore tells Admission, once, what the API knows: who acts already and who
// waits. It runs before the first decision, so that a restart neither loses a
// slot in use nor lets the first migration seen pass those before it.
func (r *Reconciler) restore(ctx context.Context) error {
	r.restoring.Lock()
	defer r.restoring.Unlock()
	if r.restored {
		return nil
	}
	kv, err := r.gatherer.KubeVirt(ctx)
	if err != nil {
		return fmt.Errorf("migrationctrl: %w", err)
	}
	var all v1.VirtualMachineInstanceMigrationList
	if err := r.Client.List(ctx, &all); err != nil {
		return fmt.Errorf("migrationctrl: list all migrations: %w", err)
	}
	var claims []migration.Claim
	for i := range all.Items {
		if all.Items[i].IsFinal() {
			continue
		}
		s := migration.Snapshot{Migration: &all.Items[i], Config: r.config(kv), Now: r.Clock.Now()}
		if err := r.related(ctx, &s); err != nil {
			return err
		}
		if err := r.resolve(ctx, &s); err != nil {
			return err
		}
		if c, wanted := s.Claim(); wanted {
			claims = append(claims, c)
		}
	}
	woken, err := r.limit(ctx)
	if err != nil {
		return fmt.Errorf("migrationctrl: %w", err)
	}
	r.wake(woken)
	r.wake(r.Admission.Restore(claims, r.Clock.Now()))
	r.restored = true
	return nil
}

// reserve claims the capacity the migration needs before anything is done, and
// gives up what it does not need any more.
func (r *Reconciler) reserve(g *gathered) {
	if g.Unsettled != "" {
		return
	}
	claim, wanted := g.Claim()
	if !wanted {
		r.wake(r.Admission.Release(g.key, r.Clock.Now()))
		return
	}
	verdict, woken := r.Admission.Ask(claim, r.Clock.Now())
	g.Slot = verdict
	r.wake(woken)
}

// settle gives capacity back as soon as a pass has shown that it is not needed:
// the migration is finished, or its target Pod was refused. The next in line is
// woken at once.
func (r *Reconciler) settle(g *gathered) {
	if g.Unsettled != "" {
		return
	}
	if _, wanted := g.Claim(); !wanted {
		r.wake(r.Admission.Release(g.key, r.Clock.Now()))
	}
}

// forget drops all memory of a migration that does not exist any more.
func (r *Reconciler) forget(key types.NamespacedName) {
	r.gate.Forget(key)
	r.keepNothing(key)
	r.told.Over(key)
	r.wake(r.Admission.Release(key, r.Clock.Now()))
}
