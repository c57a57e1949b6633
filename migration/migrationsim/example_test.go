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
	sim := migrationsim.NewSim(migrationsim.Options{
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
		sim := migrationsim.NewSim(migrationsim.Options{
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

// What happens to a cluster is scheduled: at noon a node is cordoned for half an hour and a VMI evicted from it, later it is drained,
// and the drain is called off.
func ExampleSim_At() {
	sim := migrationsim.NewSim(migrationsim.Options{
		Config: migration.Config{Limits: queue.Limits{Cluster: 5, Outbound: 2, Inbound: 2}}, Rate: 128 << 20,
	})
	for _, name := range []string{"node-1", "node-2"} {
		sim.AddNode(migrationsim.NewNode(name, "16", "64Gi"))
	}
	db, web := types.NamespacedName{Namespace: "shop", Name: "db"}, types.NamespacedName{Namespace: "shop", Name: "web"}
	err := errors.Join(sim.AddGuest(migrationsim.NewGuest(db, "node-1", "2", "16Gi")), sim.AddGuest(migrationsim.NewGuest(web, "node-1", "2", "4Gi")))

	noon := sim.Now().Add(12 * time.Hour)
	sim.At(noon, func() {
		_, evicted := sim.Evict(web, true)
		err = errors.Join(err, sim.Cordon("node-1"), evicted)
	})
	sim.At(noon.Add(30*time.Minute), func() {
		err = errors.Join(err, sim.Uncordon("node-1"))
	})
	sim.At(noon.Add(time.Hour), func() { err = errors.Join(err, sim.Drain("node-1")) })
	sim.At(noon.Add(time.Hour+time.Minute), func() {
		err = errors.Join(err, sim.Undrain("node-1"))
		for _, m := range sim.Migrations() {
			if m.Spec.VMIName == db.Name {
				fmt.Println("canceled, with a Pod on", sim.TargetPod(m).Spec.NodeName)
				sim.Cancel(types.NamespacedName{Namespace: m.Namespace, Name: m.Name})
			}
		}
	})
	err = errors.Join(err, sim.Run(noon.Add(2*time.Hour)))
	fmt.Println("on node-1:", sim.Guests("node-1"), "- on node-2:", sim.Guests("node-2"), err)
	fmt.Println(summary(sim.Result()))
	// Output:
	// canceled, with a Pod on node-2
	// on node-1: [shop/db] - on node-2: [shop/web] <nil>
	// 2 migrations, 1 at once, 0 VMIs came back
}

// summary returns a run in one line.
func summary(r migrationsim.Result) string {
	concurrent := func(p migrationsim.Peak) int { return p.Cluster }
	return fmt.Sprintf("%d migrations, %d at once, %d VMIs came back", len(r.Migrations), concurrent(r.Peak), len(r.PingPongs))
}
