// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"flag"

	ctrl "sigs.k8s.io/controller-runtime"
	webhookadmission "sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/virtloom/virtloom/migration/migrationctrl"
)

// automatic is which guests are migrated that nobody asked to migrate by name.
type automatic struct {
	evacuates, updates bool
	// reconciler is the controller of migrations, which the others rely on; set by addMigration.
	reconciler *migrationctrl.Reconciler
}

func (o *automatic) flags(fs *flag.FlagSet) {
	fs.BoolVar(&o.evacuates, "evacuate", true, "migrate guests away from nodes that are drained, and those that are asked to leave theirs; without, a guest whose Pod may not be evicted waits for somebody else to migrate it")
	fs.BoolVar(&o.updates, "update-workloads", true, "migrate or evict guests whose Pods are outdated, as the KubeVirt object says in spec.workloadUpdateStrategy")
}

func (o *automatic) addEvacuation(ctx context.Context, mgr ctrl.Manager) error {
	if !o.evacuates {
		return nil
	}
	own, err := writes("evacuation")
	if err != nil {
		return err
	}
	return (&migrationctrl.Evacuator{Migrations: o.reconciler, Observer: own}).SetupWithManager(ctx, mgr)
}

func (o *automatic) addUpdate(ctx context.Context, mgr ctrl.Manager) error {
	if !o.updates {
		return nil
	}
	own, err := writes("workload-update")
	if err != nil {
		return err
	}
	return (&migrationctrl.Updater{Migrations: o.reconciler, Observer: own}).SetupWithManager(ctx, mgr)
}

// addEvictions registers the path of refdaemon/config/webhook that is about evictions, if there is a
// server of webhooks.
func (o *controllerOptions) addEvictions(_ context.Context, mgr ctrl.Manager) error {
	if o.admission.enabled() {
		mgr.GetWebhookServer().Register("/evict-pod", &webhookadmission.Webhook{Handler: &migrationctrl.Evictions{Migrations: o.reconciler}})
	}
	return nil
}
