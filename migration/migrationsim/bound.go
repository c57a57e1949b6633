// SPDX-License-Identifier: Apache-2.0

package migrationsim

import (
	"fmt"
	"math"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Bound is what no order of migrations can beat. A guest's transfer takes at least the time
// that its memory takes at the full rate, with nobody else on the links. No limit lets
// more than so many transfers go on at a time, so the transfers under a limit take at
// least their sum over its slots. The bound is the largest of these, and before it the time
// until the first transfer can begin: a target Pod has to be put on a node and
// started, and both nodes have to get ready. That is left out if one of the guests is on its way already, whose
// memory counts all the same.
//
// The time in which a migration holds slots without moving anything, for its target Pod and
// the ends of its move, is not in the bound, though no admission can avoid it; nor is what is lost
// because guests are not divisible, or because the scheduler chooses the target.
type Bound struct {
	// Outbound is for the node that takes longest to leave, OutboundNode.
	Outbound     time.Duration
	OutboundNode string
	// Cluster is for the limit of the cluster.
	Cluster time.Duration
	// Inbound is for all nodes that may take guests, together.
	Inbound time.Duration
	// Link is for the bytes on the links, if these are limited.
	Link time.Duration
	// Longest is for the guest that takes longest.
	Longest time.Duration
	// First is until the first transfer begins.
	First time.Duration
	// Total is First and the largest of the others.
	Total time.Duration
}

// String tells the bound and its parts.
func (b Bound) String() string {
	r := func(d time.Duration) time.Duration { return d.Round(time.Second) }
	return fmt.Sprintf("%s: %s for the first to begin, and the largest of: %s to leave node %s, %s in the cluster, %s to enter nodes, %s on the links, %s for the longest alone",
		r(b.Total), r(b.First), r(b.Outbound), b.OutboundNode, r(b.Cluster), r(b.Inbound), r(b.Link), r(b.Longest))
}

// Bound returns the bound for migrations of these guests, each from the node it is on now.
// Guests that do not converge, whose policy is refused, or that do not exist, are left out.
func (s *Sim) Bound(guests ...types.NamespacedName) Bound {
	b := Bound{First: s.first()}
	limits := s.o.Config.Limits
	leave, bytes := map[string]float64{}, map[string]float64{}
	total, all := 0.0, 0.0
	for _, key := range guests {
		g := s.guests[key]
		if g == nil {
			continue
		}
		t := s.alone(g)
		if math.IsInf(t, 1) {
			continue
		}
		if g.underWay() {
			b.First = 0
		}
		from := g.VMI.Status.NodeName
		leave[from] += t
		bytes[from] += g.Bytes
		total, all = total+t, all+g.Bytes
		b.Longest = max(b.Longest, seconds(t))
	}
	for _, n := range s.nodes {
		if d := over(leave[n.Name], limits.Outbound); d > b.Outbound {
			b.Outbound, b.OutboundNode = d, n.Name
		}
		if s.o.Link > 0 {
			b.Link = max(b.Link, seconds(bytes[n.Name]/s.o.Link))
		}
	}
	b.Cluster = over(total, limits.Cluster)
	if open := s.open(); open > 0 {
		b.Inbound = over(total, limits.Inbound*open)
		if s.o.Link > 0 {
			b.Link = max(b.Link, seconds(all/s.o.Link/float64(open)))
		}
	}
	b.Total = b.First + max(b.Outbound, b.Cluster, b.Inbound, b.Link, b.Longest)
	return b
}

// over divides the work among slots; none at all bound nothing that could be told.
func over(work float64, slots int) time.Duration {
	if slots <= 0 {
		return 0
	}
	return seconds(work / float64(slots))
}

// underWay reports whether a target Pod of the guest is there, so that nobody knows how much
// of the way is left.
func (g *guest) underWay() bool {
	return slices.ContainsFunc(g.jobs, func(j *job) bool { return j.holding })
}

// alone is how many seconds the guest's transfer takes with nobody else on the links. A guest whose policy is
// refused never begins one.
func (s *Sim) alone(g *guest) float64 {
	if s.resolve(g).Err != nil {
		return math.Inf(1)
	}
	rate := s.cap(g)
	if s.o.Link > 0 {
		rate = min(rate, s.o.Link)
	}
	return moving(g.Bytes, rate, g.Dirty, downtime(s.options(g)))
}

// open counts the nodes that take Pods; those that guests leave are not among them once they are cordoned.
func (s *Sim) open() int {
	n := 0
	for _, node := range s.nodes {
		if !node.Spec.Unschedulable {
			n++
		}
	}
	return n
}

// first is the least time from the creation of a migration to its first byte.
func (s *Sim) first() time.Duration {
	l := s.o.Latency
	return l.Schedule + l.PodStart + l.Prepare + l.Begin
}
