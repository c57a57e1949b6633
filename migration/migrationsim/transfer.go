// SPDX-License-Identifier: Apache-2.0

package migrationsim

import (
	"maps"
	"math"
	"slices"
	"time"

	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/migration"
)

// transfer is memory on its way between two nodes. What is left shrinks by the rate less
// what the guest writes meanwhile, until the rest fits into the downtime allowed.
type transfer struct {
	guest    *guest
	from, to *node // to is nil where nobody receives
	// left are the bytes to move as of since, at rate.
	left  float64
	since time.Time
	rate  float64
	// cap bounds the rate, dirty is what the guest writes a second.
	cap, dirty float64
	downtime   float64
	// round tells apart what was planned before the rate last changed.
	round int
}

// begin starts the guest's transfer, and bounds it by its completion timeout.
func (s *Sim) begin(g *guest, from, to string) {
	t := &transfer{
		guest: g, from: s.byName[from], to: s.byName[to], left: g.Bytes, since: s.clock.now,
		cap: s.cap(g), dirty: g.Dirty, downtime: downtime(s.options(g)),
	}
	g.transfer = t
	s.ledger.began(g, s.clock.now)
	t.from.sends[t] = true
	if t.to != nil {
		t.to.receives[t] = true
	}
	s.share(t.from, t.to)
	if limit := patience(s.options(g), g.Bytes); limit > 0 {
		s.clock.at(s.clock.now.Add(limit), func() {
			if g.transfer == t {
				s.impatient(g)
			}
		})
	}
}

// end takes the transfer off the wire.
func (s *Sim) end(g *guest) {
	t := g.transfer
	g.transfer = nil
	delete(t.from.sends, t)
	if t.to != nil {
		delete(t.to.receives, t)
	}
	s.share(t.from, t.to)
}

// share gives every transfer at the nodes its part of the links.
func (s *Sim) share(at ...*node) {
	for _, n := range at {
		if n == nil {
			continue
		}
		for _, t := range inOrder(n.sends) {
			s.pace(t)
		}
		for _, t := range inOrder(n.receives) {
			s.pace(t)
		}
	}
}

// inOrder returns the transfers in the order of their guests: which of two that end at the same time
// does so first must not be left to the map.
func inOrder(all map[*transfer]bool) []*transfer {
	return slices.SortedFunc(maps.Keys(all), func(a, b *transfer) int { return a.guest.seq - b.guest.seq })
}

// pace sets the rate of a transfer by who shares its links, and plans its end.
func (s *Sim) pace(t *transfer) {
	rate := t.cap
	if s.o.Link > 0 {
		rate = min(rate, s.o.Link/float64(len(t.from.sends)))
		if t.to != nil {
			rate = min(rate, s.o.Link/float64(len(t.to.receives)))
		}
	}
	if rate == t.rate {
		return
	}
	t.progress(s.clock.now)
	t.rate = rate
	t.round++
	round, in := t.round, t.takes()
	if math.IsInf(in, 1) {
		return
	}
	s.clock.at(s.clock.now.Add(seconds(in)), func() {
		if t.round == round && t.guest.transfer == t {
			s.arrive(t.guest)
		}
	})
}

// progress counts what was moved since the rate last changed.
func (t *transfer) progress(now time.Time) {
	left := t.left - now.Sub(t.since).Seconds()*(t.rate-t.dirty)
	t.left = min(max(0, left), t.guest.Bytes)
	t.since = now
}

// takes is how long the rest takes at this rate, in seconds.
func (t *transfer) takes() float64 {
	return moving(t.left, t.rate, t.dirty, t.downtime)
}

// moving is how many seconds it takes to move the bytes: until what is left can be moved
// within the downtime, and then that. A guest that writes as fast as it is moved
// never gets there.
func moving(bytes, rate, dirty, downtime float64) float64 {
	last := min(bytes, rate*downtime)
	switch {
	case rate <= 0, bytes > last && rate <= dirty:
		return math.Inf(1)
	case bytes <= last:
		return bytes / rate
	}
	return (bytes-last)/(rate-dirty) + last/rate
}

// impatient does what the options allow when the transfer has taken too long.
func (s *Sim) impatient(g *guest) {
	t, o := g.transfer, s.options(g)
	switch {
	case *o.AllowPostCopy:
		g.VMI.Status.MigrationState.Mode = v1.MigrationPostCopy
	case *o.AllowWorkloadDisruption:
		g.VMI.Status.MigrationState.Mode = v1.MigrationPaused
	default:
		s.revert(g, "the guest writes faster than it can be moved")
		return
	}
	t.progress(s.clock.now)
	t.dirty, t.rate = 0, 0 // paced anew
	s.pace(t)
	s.changed(g)
}

// options are those of the guest's migration: what its handoff stored, else what its policy resolves to, else,
// where that policy is refused, the cluster's. They are never nil.
func (s *Sim) options(g *guest) *v1.VMIMConfigurationOptions {
	if ms := g.VMI.Status.MigrationState; ms != nil && ms.VMIMConfigurationOptions != nil && !ms.Completed {
		return ms.VMIMConfigurationOptions
	}
	if o := s.resolve(g).Options; o != nil {
		return o
	}
	r, _ := migration.Resolve(migration.Match{}, s.o.Config.Cluster) // fails for a policy only
	return r.Options
}

// cap is the rate that the guest's migration may have where nobody is in its way.
func (s *Sim) cap(g *guest) float64 {
	rate := s.o.Rate
	if b := s.options(g).BandwidthPerMigration; b != nil && !b.IsZero() {
		rate = min(rate, b.AsApproximateFloat64())
	}
	return rate
}

func downtime(o *v1.VMIMConfigurationOptions) float64 {
	if o.MaxDowntimeMs == nil {
		return 0
	}
	return float64(*o.MaxDowntimeMs) / 1000
}

// patience is the completion timeout for so many bytes; zero means none.
func patience(o *v1.VMIMConfigurationOptions, bytes float64) time.Duration {
	if o.CompletionTimeoutPerGiB == nil || *o.CompletionTimeoutPerGiB <= 0 {
		return 0
	}
	const gib = 1 << 30
	return seconds(float64(*o.CompletionTimeoutPerGiB) * math.Ceil(max(bytes, 1)/gib))
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
