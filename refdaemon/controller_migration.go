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
	"github.com/virtloom/virtloom/migration/queue"
	"github.com/virtloom/virtloom/refdaemon/configfile"
)

// settings converts the migration section of a configuration.
func settings(m *configfile.Migrations) migration.Config {
	return migration.Config{
		Limits:           queue.Limits{Inbound: m.InboundPerNode, Lent: m.Lent, Bandwidth: m.BandwidthPerNode.Value()},
		Timeouts:         migration.Timeouts{Pending: m.PendingTimeout.Duration},
		PodsFollowGuests: true, AwaitNodes: m.AwaitNodes.Duration, Cooldown: m.Cooldown.Duration,
	}
}

// queueOptions returns the queue options of a configuration.
func queueOptions(m *configfile.Migrations) queue.Options {
	return queue.Options{AgeAfter: m.AgeAfter.Duration, Unfair: m.Unfair, Weights: m.NamespaceWeights}
}

// aborter returns the client that aborts backups; nil if that is disabled.
func aborter(m *configfile.Migrations, c *rest.Config) (migrationctrl.BackupAborter, error) {
	if !m.AbortBackups {
		return nil, nil //nolint:nilnil // nil means disabled
	}
	return migrationctrl.NewVirtAPI(c)
}

// newReconciler returns a configured migration controller without clients.
func newReconciler(config *configfile.ControllerConfiguration, c *rest.Config) (*migrationctrl.Reconciler, error) {
	backups, err := aborter(&config.Migrations, c)
	if err != nil {
		return nil, err
	}
	s := settings(&config.Migrations)
	return &migrationctrl.Reconciler{
		LauncherImage: config.LauncherImage, SidecarShimImage: config.SidecarShimImage, Config: s, Backups: backups,
		Admission: queue.NewAdmission(s.WithDefaults().Limits, queueOptions(&config.Migrations)),
	}, nil
}

func (o *controller) addMigration(ctx context.Context, mgr ctrl.Manager) error {
	own, err := writes("migration")
	if err != nil {
		return err
	}
	moves := migrationctrl.NewMetrics()
	if err := metrics.Registry.Register(moves); err != nil {
		return fmt.Errorf("register migration metrics: %w", err)
	}
	if o.reconciler, err = newReconciler(o.config, mgr.GetConfig()); err != nil {
		return err
	}
	o.reconciler.Client, o.reconciler.APIReader, o.reconciler.Observer = mgr.GetClient(), mgr.GetAPIReader(), own
	o.reconciler.Metrics = moves
	o.reconciler.Recorder = mgr.GetEventRecorder("virtualmachine-migration-controller")
	return o.reconciler.SetupWithManager(ctx, mgr)
}
