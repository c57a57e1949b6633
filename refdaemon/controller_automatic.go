// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"

	ctrl "sigs.k8s.io/controller-runtime"
	webhookadmission "sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/virtloom/virtloom/migration/migrationctrl"
)

func (o *controller) addEvacuation(ctx context.Context, mgr ctrl.Manager) error {
	if !o.config.Migrations.Evacuate {
		return nil
	}
	own, err := writes("evacuation")
	if err != nil {
		return err
	}
	return (&migrationctrl.Evacuator{Migrations: o.reconciler, Observer: own}).SetupWithManager(ctx, mgr)
}

func (o *controller) addUpdate(ctx context.Context, mgr ctrl.Manager) error {
	if !o.config.Migrations.UpdateWorkloads {
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
func (o *controller) addEvictions(_ context.Context, mgr ctrl.Manager) error {
	if o.admission.enabled() {
		mgr.GetWebhookServer().Register("/evict-pod", &webhookadmission.Webhook{Handler: &migrationctrl.Evictions{Migrations: o.reconciler}})
	}
	return nil
}
