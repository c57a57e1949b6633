// SPDX-License-Identifier: Apache-2.0

package migrationsim_test

import (
	"errors"
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

// How long does a drain take on a cluster whose Pods start slowly, and what runs in parallel?
func ExampleOptions() {
	for _, start := range []time.Duration{2 * time.Second, time.Minute} {
		sim := migrationsim.New(migrationsim.Options{
			Config:  migration.Config{Limits: queue.Limits{Cluster: 5, Outbound: 2, Inbound: 2}},
			Rate:    128 << 20,
			Latency: migrationsim.Latency{PodStart: start, Jitter: -1},
		})
		for _, name := range []string{"node-1", "node-2", "node-3"} {
			sim.AddNode(migrationsim.NewNode(name, "16", "64Gi"))
		}
		for i := range 6 {
			key := types.NamespacedName{Namespace: "shop", Name: fmt.Sprint("web-", i)}
			if err := sim.AddGuest(migrationsim.NewGuest(key, "node-1", "1", "4Gi")); err != nil {
				fmt.Println(err)
				return
			}
		}
		err := errors.Join(sim.Drain("node-1"), sim.RunAll(sim.Now().Add(time.Hour)))
		r := sim.Result()
		last := r.Migrations[len(r.Migrations)-1]
		fmt.Println(r.Makespan.Round(time.Second), "- the last waited", last.Wait(r.End).Round(time.Second),
			"- in parallel", r.Peak.Outbound, "- came back", len(r.PingPongs), err)
	}
	// Output:
	// 1m45s - the last waited 1m10s - in parallel 2 - came back 0 <nil>
	// 4m39s - the last waited 3m6s - in parallel 2 - came back 0 <nil>
}
