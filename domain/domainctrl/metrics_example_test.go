// SPDX-License-Identifier: Apache-2.0

package domainctrl_test

import (
	"fmt"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/virtloom/virtloom/domain/domainctrl"
)

// printOwn prints the metrics that KubeVirt does not have.
func printOwn(m *domainctrl.Metrics) {
	for _, f := range m.Families() {
		if !strings.HasPrefix(f.Name, "kubevirt_") {
			fmt.Println(f.Name, f.Labels)
		}
	}
}

// A program registers the metrics of its Reconciler with its own registry.
func ExampleReconciler_Metrics() {
	r := &domainctrl.Reconciler{NodeName: "node-a"}
	registry := prometheus.NewRegistry()
	if err := registry.Register(r.Metrics()); err != nil {
		fmt.Println(err)
		return
	}
	families, err := registry.Gather()
	fmt.Println("families before the first migration:", len(families), err)
	printOwn(r.Metrics())
	// Output:
	// families before the first migration: 0 <nil>
	// virtloom_vmi_migration_downtime_seconds [namespace name]
	// virtloom_vmi_migration_iterations [namespace name]
	// virtloom_vmi_migration_throttle_percent [namespace name]
}
