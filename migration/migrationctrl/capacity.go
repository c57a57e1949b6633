// SPDX-License-Identifier: Apache-2.0

package migrationctrl

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/migration"
	"github.com/virtloom/virtloom/migration/queue"
)

// capacity holds and releases the slots of migrations.
type capacity struct{ *Reconciler }

// restore fills Admission, once, from the API with the acting and waiting migrations. It runs
// before the first decision, so that a restart neither loses a slot in use nor lets the
// first migration read overtake those before it.
func (r capacity) restore(ctx context.Context) error {
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
	var claims []queue.Claim
	for i := range all.Items {
		if all.Items[i].IsFinal() {
			continue
		}
		s := migration.Snapshot{Migration: &all.Items[i], Config: r.config(kv)}
		if err := gatherer(r).related(ctx, &s); err != nil {
			return err
		}
		if err := gatherer(r).resolve(ctx, &s); err != nil {
			return err
		}
		if c, wanted := s.Claim(r.Clock.Now()); wanted {
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

// reserve claims the capacity that the migration needs before any action, and releases what
// it no longer needs.
func (r capacity) reserve(g *gathered) {
	if g.Pending != "" {
		return
	}
	claim, wanted := g.Claim(r.Clock.Now())
	if !wanted {
		r.wake(r.Admission.Release(g.key, r.Clock.Now()))
		return
	}
	verdict, woken := r.Admission.Ask(claim, r.Clock.Now())
	g.Slot = verdict
	r.wake(woken)
}

// settle releases capacity as soon as a pass has shown that it is not needed: the migration
// is finished, or its target Pod was rejected. The next in the queue is woken at once.
func (r capacity) settle(g *gathered) {
	if g.Pending != "" {
		return
	}
	if _, wanted := g.Claim(r.Clock.Now()); !wanted {
		r.wake(r.Admission.Release(g.key, r.Clock.Now()))
	}
}

// forget drops all state of a migration that no longer exists.
func (r capacity) forget(key types.NamespacedName) {
	r.gate.Forget(key)
	storer(r).keepNothing(key)
	r.reported.Over(key)
	r.wake(r.Admission.Release(key, r.Clock.Now()))
}
