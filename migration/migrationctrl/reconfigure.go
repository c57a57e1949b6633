// SPDX-License-Identifier: Apache-2.0

package migrationctrl

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/migration"
	"github.com/virtloom/virtloom/migration/queue"
)

// Reconfigure replaces Config and the queue options while the controller runs. Acting migrations
// keep their slots; all unfinished migrations are reconciled again, so that limits, deadlines and
// messages are the new ones at once. The evacuator and the updater use the new configuration for
// their next decision. It may be called at any time after SetupWithManager, by one caller at a
// time. After an error part of the configuration is in force; calling it again applies all of it.
func (r *Reconciler) Reconfigure(ctx context.Context, c migration.Config, q queue.Options) error {
	r.current.Store(&c)
	woken, err := capacity{r}.limit(ctx)
	if err != nil {
		return fmt.Errorf("migrationctrl: reconfigure: %w", err)
	}
	r.wake(woken)
	r.wake(r.Admission.SetQueueOptions(q, r.Clock.Now()))
	var all v1.VirtualMachineInstanceMigrationList
	if err := r.Client.List(ctx, &all); err != nil {
		return fmt.Errorf("migrationctrl: reconfigure: list all migrations: %w", err)
	}
	for i := range all.Items {
		if m := &all.Items[i]; !migrationDone(m) {
			r.wake([]types.NamespacedName{client.ObjectKeyFromObject(m)})
		}
	}
	return nil
}

// configured returns the administrator's current configuration.
func (r *Reconciler) configured() migration.Config {
	if c := r.current.Load(); c != nil {
		return *c
	}
	return r.Config
}

// limit applies the limits of the configuration and the KubeVirt object, and returns the keys
// of the migrations that may proceed because of it.
func (r capacity) limit(ctx context.Context) ([]types.NamespacedName, error) {
	r.limiting.Lock()
	defer r.limiting.Unlock()
	kv, err := r.gatherer.KubeVirt(ctx)
	if err != nil {
		return nil, err
	}
	return r.Admission.SetLimits(r.config(kv).Limits, r.Clock.Now()), nil
}
