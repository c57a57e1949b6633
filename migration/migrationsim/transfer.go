// SPDX-License-Identifier: Apache-2.0

package migrationsim

import (
	"maps"
	"math"
	"slices"
	"time"

	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/migration/policy"
)

// transfer is a transfer of memory between two nodes. The rest shrinks by the rate less what the
// VMI writes meanwhile, until it fits into the allowed downtime.
type transfer struct {
	guest    *simulatedGuest
	from, to *node // to is nil without a receiver
	// left is the number of bytes to transfer as of since, at rate.
	left  float64
	since time.Time
	rate  float64
	// cap bounds the rate; dirty is what the VMI writes, in bytes per second.
	cap, dirty float64
	downtime   float64
	// round distinguishes what was scheduled before the rate last changed.
	round int
}

// links are the links over which memory is transferred.
type links struct{ *Sim }

// begin starts the VMI's transfer, and bounds it by its completion timeout.
func (s links) begin(g *simulatedGuest, from, to string) {
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

// end removes the transfer from the links.
func (s links) end(g *simulatedGuest) {
	t := g.transfer
	g.transfer = nil
	delete(t.from.sends, t)
	if t.to != nil {
		delete(t.to.receives, t)
	}
	s.share(t.from, t.to)
}

// share recomputes the rates of all transfers at the nodes.
func (s links) share(at ...*node) {
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

// inOrder returns the transfers in the order of their VMIs: which of two that end at the same time
// is first must not depend on the map.
func inOrder(all map[*transfer]bool) []*transfer {
	return slices.SortedFunc(maps.Keys(all), func(a, b *transfer) int { return a.guest.seq - b.guest.seq })
}

// pace sets the rate of a transfer by the sharers of its links, and schedules its end.
func (s links) pace(t *transfer) {
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
			agents(s).arrive(t.guest)
		}
	})
}

// progress counts the bytes transferred since the rate last changed.
func (t *transfer) progress(now time.Time) {
	left := t.left - now.Sub(t.since).Seconds()*(t.rate-t.dirty)
	t.left = min(max(0, left), t.guest.Bytes)
	t.since = now
}

// takes returns how long the rest takes at this rate, in seconds.
func (t *transfer) takes() float64 {
	return moving(t.left, t.rate, t.dirty, t.downtime)
}

// moving returns how many seconds the transfer of the bytes takes: until the rest fits into the
// downtime, and then that. A VMI that writes as fast as the transfer never converges.
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
func (s links) impatient(g *simulatedGuest) {
	t, o := g.transfer, s.options(g)
	switch {
	case *o.AllowPostCopy:
		g.VMI.Status.MigrationState.Mode = v1.MigrationPostCopy
	case *o.AllowWorkloadDisruption:
		g.VMI.Status.MigrationState.Mode = v1.MigrationPaused
	default:
		agents(s).revert(g, "the VMI writes memory faster than it can be transferred")
		return
	}
	t.progress(s.clock.now)
	t.dirty, t.rate = 0, 0 // paced again
	s.pace(t)
	controller(s).changed(g)
}

// options returns those of the VMI's migration: what its handoff stored, else what its policy resolves
// to, else, if that policy is invalid, the cluster's. They are never nil.
func (s links) options(g *simulatedGuest) *v1.VMIMConfigurationOptions {
	if ms := g.VMI.Status.MigrationState; ms != nil && ms.VMIMConfigurationOptions != nil && !ms.Completed {
		return ms.VMIMConfigurationOptions
	}
	if o := controller(s).resolve(g).Options; o != nil {
		return o
	}
	r, _ := policy.Resolve(policy.Match{}, s.o.Config.Cluster) // only a policy can fail
	return r.Options
}

// cap returns the rate of the VMI's migration without competing transfers.
func (s links) cap(g *simulatedGuest) float64 {
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

// patience returns the completion timeout for so many bytes; zero means none.
func patience(o *v1.VMIMConfigurationOptions, bytes float64) time.Duration {
	if o.CompletionTimeoutPerGiB == nil || *o.CompletionTimeoutPerGiB <= 0 {
		return 0
	}
	const gib = 1 << 30
	return seconds(float64(*o.CompletionTimeoutPerGiB) * math.Ceil(max(bytes, 1)/gib))
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
