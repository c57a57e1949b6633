// SPDX-License-Identifier: Apache-2.0

package migrationsim_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/migration"
	"github.com/virtloom/virtloom/migration/migrationsim"
	"github.com/virtloom/virtloom/migration/queue"
)

// plant is a cluster of many nodes with many VMIs of many sizes.
type plant struct {
	*migrationsim.Sim
	t     testing.TB
	nodes []string
}

// sizes are VMIs' memory with how many of a hundred have it.
var sizes = []struct {
	memory, cpu string
	share       int
}{{"2Gi", "1", 25}, {"4Gi", "2", 30}, {"8Gi", "2", 25}, {"16Gi", "4", 15}, {"32Gi", "8", 5}}

// newPlant makes a cluster in which each VMI writes up to a tenth of what can be moved.
func newPlant(t testing.TB, nodes, guests int, o migrationsim.Options) *plant {
	t.Helper()
	p := &plant{Sim: migrationsim.NewSim(o), t: t}
	for i := range nodes {
		p.nodes = append(p.nodes, fmt.Sprintf("node-%03d", i))
		p.AddNode(migrationsim.NewNode(p.nodes[i], "512", "2Ti"))
	}
	random := rand.New(rand.NewPCG(o.Seed, 1))
	for i := range guests {
		size, pick := sizes[0], random.IntN(100)
		for _, s := range sizes {
			if size = s; pick < s.share {
				break
			}
			pick -= s.share
		}
		key := types.NamespacedName{Namespace: fmt.Sprintf("ns-%d", i%20), Name: fmt.Sprintf("guest-%d", i)}
		g := migrationsim.NewGuest(key, p.nodes[i%nodes], size.cpu, size.memory)
		g.Dirty = random.Float64() * (6 << 20)
		if err := p.AddGuest(g); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

// drain empties the nodes and returns the bound and the time it took.
func (p *plant) drain(nodes []string) (migrationsim.Bound, time.Duration) {
	p.t.Helper()
	var guests []types.NamespacedName
	for _, n := range nodes {
		guests = append(guests, p.Guests(n)...)
		if err := p.Cordon(n); err != nil {
			p.t.Fatal(err)
		}
	}
	bound, from := p.Bound(guests...), p.Now()
	for _, n := range nodes {
		if err := p.Drain(n); err != nil {
			p.t.Fatal(err)
		}
	}
	if err := p.RunAll(p.Now().Add(10 * 24 * time.Hour)); err != nil {
		p.t.Fatal(err)
	}
	for _, n := range nodes {
		if left := p.Guests(n); len(left) > 0 {
			p.t.Fatalf("%d VMIs are left on %s", len(left), n)
		}
	}
	return bound, p.Now().Sub(from)
}

var large = migrationsim.Options{
	Seed: 7, Rate: 64 << 20,
	Config: migration.Config{Limits: queue.Limits{Cluster: 20, Outbound: 2, Inbound: 2}},
}

var full = flag.Bool("full", false, "drain all of a hundred nodes, which moves ten thousand guests")

// Ten of a hundred nodes are emptied at a time; in the end all ten thousand VMIs have
// migrated. The nodes drained first are those that the scheduler prefers afterwards.
func TestDrain_NearLowerBound(t *testing.T) {
	begin := time.Now()
	p := newPlant(t, 100, 10_000, large)
	var bounds, took time.Duration
	waves := 2
	if *full {
		waves = 10
	}
	for wave := 0; wave < 10*waves; wave += 10 {
		nodes := p.nodes[wave : wave+10]
		bound, makespan := p.drain(nodes)
		t.Logf("wave %d: %s; took %s, %.4f times the bound", wave/10, bound, makespan.Round(time.Second), makespan.Seconds()/bound.Total.Seconds())
		bounds, took = bounds+bound.Total, took+makespan
		for _, n := range nodes {
			if err := p.Undrain(n); err != nil {
				t.Fatal(err)
			}
		}
	}
	r := p.Result()
	t.Logf("%d migrations, %d passes: lower bound %s, makespan %s, %.4f times; peak %+v; computed in %s",
		len(r.Migrations), r.Passes, bounds.Round(time.Second), took.Round(time.Second), took.Seconds()/bounds.Seconds(), r.Peak, time.Since(begin).Round(time.Millisecond))
	for _, m := range r.Migrations {
		if m.Phase != v1.MigrationSucceeded {
			t.Errorf("%s/%s of %s: %s: %s: %s", m.Namespace, m.Name, m.Guest, m.Phase, m.Reason, m.Message)
		}
	}
	if took.Seconds() > 1.05*bounds.Seconds() {
		t.Errorf("the drain took %s, more than 1.05 times %s", took, bounds)
	}
}

// One of a hundred nodes is emptied; reading ten thousand VMIs is part of it.
func BenchmarkPlanOfOneDrain(b *testing.B) {
	for b.Loop() {
		p := newPlant(b, 100, 10_000, large)
		bound, took := p.drain(p.nodes[:1])
		b.ReportMetric(took.Seconds()/bound.Total.Seconds(), "makespan/bound")
	}
}
