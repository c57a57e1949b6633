// SPDX-License-Identifier: Apache-2.0

package migrationsim_test

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/virtloom/virtloom/migration"
	"github.com/virtloom/virtloom/migration/migrationsim"
	"github.com/virtloom/virtloom/migration/queue"
)

// A node with three VMIs is drained, two at a time.
func Example() {
	sim := migrationsim.New(migrationsim.Options{
		Config: migration.Config{Limits: queue.Limits{Cluster: 5, Outbound: 2, Inbound: 1}},
		Rate:   128 << 20, // bytes a second
	})
	for _, name := range []string{"node-1", "node-2", "node-3"} {
		sim.AddNode(migrationsim.NewNode(name, "16", "64Gi"))
	}
	var guests []types.NamespacedName
	for _, g := range [][2]string{{"db", "16Gi"}, {"mail", "4Gi"}, {"web", "8Gi"}} {
		key := types.NamespacedName{Namespace: "shop", Name: g[0]}
		if err := sim.AddGuest(migrationsim.NewGuest(key, "node-1", "2", g[1])); err != nil {
			fmt.Println(err)
			return
		}
		guests = append(guests, key)
	}
	bound := sim.Bound(guests...)
	if err := sim.Drain("node-1"); err != nil {
		fmt.Println(err)
		return
	}
	if err := sim.RunAll(sim.Now().Add(24 * time.Hour)); err != nil {
		fmt.Println(err)
		return
	}
	result := sim.Result()
	for _, m := range result.Migrations {
		fmt.Printf("%-4s %s -> %s %s\n", m.Guest, m.Source, m.Target, m.Phase)
	}
	fmt.Println("at least", bound.Total.Round(time.Second), "took", result.Makespan.Round(time.Second))
	// Output:
	// db   node-1 -> node-3 Succeeded
	// mail node-1 -> node-2 Succeeded
	// web  node-1 -> node-2 Succeeded
	// at least 2m11s took 2m11s
}
