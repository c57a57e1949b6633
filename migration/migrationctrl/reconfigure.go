// SPDX-License-Identifier: Apache-2.0

package migrationctrl

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/migration"
)

// Reconfigure replaces Config, and in which order the queue serves, while the controller runs.
// What acts goes on with the slots it has; migrations that are not finished are looked at again,
// so that limits, deadlines and what they wait for are the new ones at once. The evacuator and the
// updater use the new configuration for the next guest they decide about. It may be called at
// any time after SetupWithManager, by one caller at a time. After an error part of it is in force;
// to call it again puts all of it into force.
func (r *Reconciler) Reconfigure(ctx context.Context, c migration.Config, q migration.QueueOptions) error {
	r.current.Store(&c)
	woken, err := r.limit(ctx)
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
		if m := &all.Items[i]; !done(m) {
			r.wake([]types.NamespacedName{client.ObjectKeyFromObject(m)})
		}
	}
	return nil
}

// configured is the administrator's configuration as it is now.
func (r *Reconciler) configured() migration.Config {
	if c := r.current.Load(); c != nil {
		return *c
	}
	return r.Config
}

// limit puts the limits into force that the configuration and the KubeVirt object have now, and
// returns who may proceed because of it.
func (r *Reconciler) limit(ctx context.Context) ([]types.NamespacedName, error) {
	r.limiting.Lock()
	defer r.limiting.Unlock()
	kv, err := r.gatherer.KubeVirt(ctx)
	if err != nil {
		return nil, err
	}
	return r.Admission.SetLimits(r.config(kv).Limits, r.Clock.Now()), nil
}
