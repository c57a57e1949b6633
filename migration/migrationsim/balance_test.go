// SPDX-License-Identifier: Apache-2.0

package migrationsim_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/virtloom/virtloom/migration"
	"github.com/virtloom/virtloom/migration/evacuation"
	"github.com/virtloom/virtloom/migration/migrationsim"
	"github.com/virtloom/virtloom/migration/queue"
)

// balancer is a descheduler that looks at load and not at the past: every so often it
// asks for the eviction of the busiest VMI of each node that is busier than most.
type balancer struct {
	*plant
	random *rand.Rand
	load   map[types.NamespacedName]float64
	asked  int
	rested int
}

// balance lets a day pass in which the load of VMIs wanders.
func balance(t *testing.T, cooldown time.Duration) *balancer {
	t.Helper()
	b := &balancer{random: rand.New(rand.NewPCG(11, 1)), load: map[types.NamespacedName]float64{}}
	b.plant = newPlant(t, 12, 240, migrationsim.Options{
		Seed: 11, PingPong: migration.Config{}.WithDefaults().Cooldown,
		Config: migration.Config{Cooldown: cooldown, Limits: queue.Limits{Cluster: 10, Outbound: 2, Inbound: 2}},
	})
	end := b.Now().Add(24 * time.Hour)
	for at := b.Now().Add(time.Minute); at.Before(end); at = at.Add(time.Minute) {
		b.At(at, func() { b.round() })
	}
	if err := b.Run(end); err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *balancer) round() {
	total, mean := map[string]float64{}, 0.0
	busiest := map[string]types.NamespacedName{}
	for _, n := range b.nodes {
		for _, g := range b.Guests(n) {
			b.load[g] = max(0, 0.8*b.load[g]+b.random.NormFloat64())
			total[n] += b.load[g]
			if b.load[g] > b.load[busiest[n]] {
				busiest[n] = g
			}
		}
		mean += total[n] / float64(len(b.nodes))
	}
	for _, n := range b.nodes {
		if total[n] < 1.1*mean {
			continue
		}
		answer, err := b.Evict(busiest[n], true)
		if err != nil {
			b.t.Error(err)
		}
		switch answer.Reason {
		case evacuation.ReasonEvictionBegun:
			b.asked++
		case evacuation.ReasonCooldown:
			b.rested++
		}
	}
}

// For a day VMIs are rebalanced every minute; none comes back to a node within the
// cooldown after it was sent away from there.
func TestBalancing_NoPingPong(t *testing.T) {
	b := balance(t, 0)
	r := b.Result()
	t.Logf("%d migrations in 24 h, %d requests were denied for the cooldown, %d ping-pongs, peak %+v", len(r.Migrations), b.rested, len(r.PingPongs), r.Peak)
	for _, p := range r.PingPongs {
		t.Errorf("VMI %s left %s at %s and was back at %s", p.Guest, p.Node, p.Left, p.Back)
	}
	if b.asked < 100 || b.rested == 0 {
		t.Errorf("%d VMIs were asked to leave, %d times they rested: this proves nothing", b.asked, b.rested)
	}
}

// Without a cooldown the same day has them, so it is the cooldown that helps.
func TestCooldown_DisabledHasPingPong(t *testing.T) {
	if r := balance(t, -1).Result(); len(r.PingPongs) == 0 {
		t.Errorf("none of %d migrations brought a VMI back", len(r.Migrations))
	}
}
