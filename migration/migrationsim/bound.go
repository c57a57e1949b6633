// SPDX-License-Identifier: Apache-2.0

package migrationsim

import (
	"fmt"
	"math"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Bound is a lower bound on the duration for any order of migrations. A VMI's transfer takes at
// least the time for its memory at the full rate, alone on the links. A limit bounds the number
// of parallel transfers, so the transfers under it take at least their sum divided by its
// slots. The bound is the largest of these, plus the time until the first transfer can begin: a
// target Pod must be scheduled and started, and both nodes must prepare. That time is omitted if
// a migration of one of the VMIs is under way, whose memory counts all the same.
//
// The bound excludes the time in which a migration holds slots without transferring memory, for
// its target Pod and its begin and end, though no admission can avoid it; and losses because VMIs
// are indivisible or because the scheduler chooses the target.
type Bound struct {
	// Outbound is for OutboundNode, the node that takes longest to leave.
	Outbound     time.Duration
	OutboundNode string
	// Cluster is for the limit of the cluster.
	Cluster time.Duration
	// Inbound is for all nodes that may receive VMIs, together.
	Inbound time.Duration
	// Link is for the bytes on the links, if they are limited.
	Link time.Duration
	// Longest is for the VMI that takes longest.
	Longest time.Duration
	// First is the time until the first transfer begins.
	First time.Duration
	// Total is First plus the largest of the others.
	Total time.Duration
}

// String returns the bound and its parts as text.
func (b Bound) String() string {
	r := func(d time.Duration) time.Duration { return d.Round(time.Second) }
	return fmt.Sprintf("%s: %s for the first to begin, and the largest of: %s to leave node %s, %s in the cluster, %s to enter nodes, %s on the links, %s for the longest alone",
		r(b.Total), r(b.First), r(b.Outbound), b.OutboundNode, r(b.Cluster), r(b.Inbound), r(b.Link), r(b.Longest))
}

// Bound returns the bound for migrations of these VMIs, each from its current node.
// VMIs that do not converge, whose policy is invalid, or that do not exist, are omitted.
func (s *Sim) Bound(guests ...types.NamespacedName) Bound {
	b := Bound{First: bounder{s}.first()}
	limits := s.o.Config.Limits
	leave, bytes := map[string]float64{}, map[string]float64{}
	total, all := 0.0, 0.0
	for _, key := range guests {
		g := s.guests[key]
		if g == nil {
			continue
		}
		t := bounder{s}.alone(g)
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
		if d := timeInSlots(leave[n.Name], limits.Outbound); d > b.Outbound {
			b.Outbound, b.OutboundNode = d, n.Name
		}
		if s.o.Link > 0 {
			b.Link = max(b.Link, seconds(bytes[n.Name]/s.o.Link))
		}
	}
	b.Cluster = timeInSlots(total, limits.Cluster)
	if open := (bounder{s}).open(); open > 0 {
		b.Inbound = timeInSlots(total, limits.Inbound*open)
		if s.o.Link > 0 {
			b.Link = max(b.Link, seconds(all/s.o.Link/float64(open)))
		}
	}
	b.Total = b.First + max(b.Outbound, b.Cluster, b.Inbound, b.Link, b.Longest)
	return b
}

// timeInSlots divides the work by the slots; without slots there is no finite bound.
func timeInSlots(work float64, slots int) time.Duration {
	if slots <= 0 {
		return 0
	}
	return seconds(work / float64(slots))
}

// underWay reports whether the VMI has a target Pod, so that the remaining time is
// unknown.
func (g *simulatedGuest) underWay() bool {
	return slices.ContainsFunc(g.jobs, func(j *job) bool { return j.holding })
}

// bounder computes what [Sim.Bound] is made of.
type bounder struct{ *Sim }

// alone returns how many seconds the VMI's transfer takes alone on the links. A VMI whose policy is
// invalid never begins one.
func (s bounder) alone(g *simulatedGuest) float64 {
	if controller(s).resolve(g).Err != nil {
		return math.Inf(1)
	}
	rate := links(s).cap(g)
	if s.o.Link > 0 {
		rate = min(rate, s.o.Link)
	}
	return moving(g.Bytes, rate, g.Dirty, downtime(links(s).options(g)))
}

// open counts the schedulable nodes; a drained node is not among them once it is cordoned.
func (s bounder) open() int {
	n := 0
	for _, node := range s.nodes {
		if !node.Spec.Unschedulable {
			n++
		}
	}
	return n
}

// first returns the minimum time from the creation of a migration to its first byte.
func (s bounder) first() time.Duration {
	l := s.o.Latency
	return l.Schedule + l.PodStart + l.Prepare + l.Begin
}
