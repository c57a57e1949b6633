// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"

	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/virtloom/virtloom/migration"
	"github.com/virtloom/virtloom/migration/migrationctrl"
	"github.com/virtloom/virtloom/refdaemon/configfile"
)

// settings are what a configuration says of migrations.
func settings(m *configfile.Migrations) migration.Config {
	return migration.Config{
		Limits:           migration.Limits{Inbound: m.InboundPerNode, Lent: m.Lent, Bandwidth: m.BandwidthPerNode.Value()},
		Timeouts:         migration.Timeouts{Pending: m.PendingTimeout.Duration},
		PodsFollowGuests: true, AwaitNodes: m.AwaitNodes.Duration, Cooldown: m.Cooldown.Duration,
	}
}

// queue is how a configuration tunes the queue.
func queue(m *configfile.Migrations) migration.QueueOptions {
	return migration.QueueOptions{AgeAfter: m.AgeAfter.Duration, Unfair: m.Unfair, Weights: m.NamespaceWeights}
}

// aborter is who aborts backups; nil if nobody does.
func aborter(m *configfile.Migrations, c *rest.Config) (migrationctrl.BackupAborter, error) {
	if !m.AbortBackups {
		return nil, nil //nolint:nilnil // nobody is an answer
	}
	return migrationctrl.NewVirtAPI(c)
}

// newReconciler is the controller of migrations with a configuration, without clients.
func newReconciler(config *configfile.ControllerConfiguration, c *rest.Config) (*migrationctrl.Reconciler, error) {
	backups, err := aborter(&config.Migrations, c)
	if err != nil {
		return nil, err
	}
	s := settings(&config.Migrations)
	return &migrationctrl.Reconciler{
		LauncherImage: config.LauncherImage, SidecarShimImage: config.SidecarShimImage, Config: s, Backups: backups,
		Admission: migration.NewAdmission(s.WithDefaults().Limits, queue(&config.Migrations)),
	}, nil
}

func (o *controller) addMigration(ctx context.Context, mgr ctrl.Manager) error {
	own, err := writes("migration")
	if err != nil {
		return err
	}
	moves := migrationctrl.NewMetrics()
	if err := metrics.Registry.Register(moves); err != nil {
		return fmt.Errorf("register the metrics of migrations: %w", err)
	}
	if o.reconciler, err = newReconciler(o.config, mgr.GetConfig()); err != nil {
		return err
	}
	o.reconciler.Client, o.reconciler.APIReader, o.reconciler.Observer = mgr.GetClient(), mgr.GetAPIReader(), own
	o.reconciler.Metrics = moves
	o.reconciler.Recorder = mgr.GetEventRecorder("virtualmachine-migration-controller")
	return o.reconciler.SetupWithManager(ctx, mgr)
}
