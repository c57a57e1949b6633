// SPDX-License-Identifier: Apache-2.0

package migrationctrl_test

import (
	"context"
	"encoding/json"
	"fmt"
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

// A program that empties a node first looks at the plan that "refdaemon plan drain -o json" prints.
func ExampleDrainPlan() {
	const printed = `{
		"node": "node-1", "guests": 2, "makespanSeconds": 131, "lowerBoundSeconds": 130, "bound": "leaving node-1",
		"moves": [{"namespace": "shop", "guest": "db", "target": "node-2", "candidates": ["node-2"], "endsSeconds": 131, "attempts": 1}],
		"stays": [{"namespace": "shop", "guest": "cache", "reason": "EvictionStrategyNone", "message": "it is shut down with its Pod"}]
	}`
	var plan migrationctrl.DrainPlan
	if err := json.Unmarshal([]byte(printed), &plan); err != nil {
		fmt.Println(err)
		return
	}
	for _, m := range plan.Moves {
		fmt.Println(m.VMI, "migrates to", m.Target, "within", time.Duration(m.Ends-m.Starts)*time.Second)
	}
	for _, s := range plan.Stays {
		fmt.Println(s.VMI, "stays:", s.Message)
	}
	// Output:
	// db migrates to node-2 within 2m11s
	// cache stays: it is shut down with its Pod
}
