// SPDX-License-Identifier: Apache-2.0

package migrationctrl_test

import (
	"context"
	"time"

	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/virtloom/virtloom/migration"
	"github.com/virtloom/virtloom/migration/migrationctrl"
	"github.com/virtloom/virtloom/migration/queue"
)

// The controller joins any manager whose scheme has KubeVirt's types. Queue and limits are
// the program's; the KubeVirt object takes precedence.
func Example() {
	start := func(ctx context.Context, mgr ctrl.Manager) error {
		limits := queue.Limits{Cluster: 10, Outbound: 2, Inbound: 2}
		r := &migrationctrl.Reconciler{
			Client:        mgr.GetClient(),
			APIReader:     mgr.GetAPIReader(),
			LauncherImage: "quay.io/kubevirt/virt-launcher:v1.9.0",
			Recorder:      mgr.GetEventRecorder("migration"),
			Config:        migration.Config{Limits: limits, Timeouts: migration.Timeouts{Prepare: 2 * time.Minute}},
			Admission: queue.NewAdmission(limits, queue.Options{
				AgeAfter: 5 * time.Minute, Weights: map[string]float64{"production": 3},
			}),
		}
		if err := r.SetupWithManager(ctx, mgr); err != nil {
			return err
		}
		return mgr.Start(ctx)
	}
	_ = start
}
