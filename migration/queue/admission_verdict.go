// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
)

// Limit names one of the [Limits].
type Limit string

// The limits of parallel migrations.
const (
	LimitCluster  Limit = "parallelMigrationsPerCluster"
	LimitOutbound Limit = "parallelOutboundMigrationsPerNode"
	LimitInbound  Limit = "parallelInboundMigrationsPerNode"
	// LimitBandwidth counts bytes per second.
	LimitBandwidth Limit = "migrationBandwidthPerNode"
)

// Blocker is an exhausted limit.
type Blocker struct {
	// Limit is the name of one of the [Limits].
	Limit Limit
	// Node is the node of a per-node limit.
	Node string
	// Used and Max are the usage, including what is kept for lenders, and the limit.
	Used, Max int
	// Holders are the migrations that use it or get it back first, by name.
	Holders []types.NamespacedName
}

// Verdict is the answer to a claim.
type Verdict struct {
	// Asked is false in the zero value: there was no request.
	Asked bool
	// Held says that the migration has its cluster and outbound slots.
	Held bool
	// Inbound says that it has a slot at its target node too. It may then be handed
	// off.
	Inbound bool
	// Lent says that it acts while others have its slots.
	Lent bool
	// SourceNode and TargetNode are the claim's.
	SourceNode, TargetNode string
	// Limits are the limits in force.
	Limits Limits
	// Position is its place in the queue, from 1; 0 when it does not wait there.
	// [Admission.Explain] alone sets this and the following fields.
	Position int
	// Waiting is the length of the queue.
	Waiting int
	// Blockers are the limits that block it; none when it only waits for its turn.
	Blockers []Blocker
}

// Text returns what the migration waits for, in words that stay true until it is woken.
func (v Verdict) Text() string {
	l := v.Limits
	if v.TargetNode != "" && !v.Inbound && (v.Held || v.Lent) {
		if l.Inbound <= 0 {
			return fmt.Sprintf("no migration may enter a node: %s is %d", LimitInbound, l.Inbound)
		}
		parts := []string{fmt.Sprintf("at most %d migrations entering node %s (%s)", l.Inbound, v.TargetNode, LimitInbound)}
		return "waiting for a slot: " + strings.Join(append(parts, l.budgetText("entering", v.TargetNode)...), ", ")
	}
	switch {
	case l.Cluster <= 0:
		return fmt.Sprintf("no migration may start: %s is %d", LimitCluster, l.Cluster)
	case l.Outbound <= 0:
		return fmt.Sprintf("no migration may leave a node: %s is %d", LimitOutbound, l.Outbound)
	}
	parts := []string{
		fmt.Sprintf("at most %d migrations in the cluster (%s)", l.Cluster, LimitCluster),
		fmt.Sprintf("%d leaving node %s (%s)", l.Outbound, v.SourceNode, LimitOutbound),
	}
	return "waiting for a slot: " + strings.Join(append(parts, l.budgetText("leaving", v.SourceNode)...), ", ")
}

// budgetText returns the bandwidth budget as text, if there is one.
func (l Limits) budgetText(direction, node string) []string {
	if l.Bandwidth <= 0 {
		return nil
	}
	rate := resource.NewQuantity(l.Bandwidth, resource.BinarySI)
	return []string{fmt.Sprintf("%s/s %s node %s (%s)", rate, direction, node, LimitBandwidth)}
}

// lockedVerdict returns the claim's stake as a verdict.
func (a *Admission) lockedVerdict(s *slot) Verdict {
	return Verdict{
		Asked: true, Held: s.state == holds, Lent: s.state == lends, Inbound: s.inbound,
		SourceNode: s.claim.SourceNode, TargetNode: s.claim.TargetNode, Limits: a.limits,
	}
}

// lockedBlockers returns the limits that block the claim.
func (a *Admission) lockedBlockers(s *slot) []Blocker {
	if s.entering() && !s.inbound {
		if out := a.lockedInbound(s); len(out) > 0 {
			return out
		}
	}
	if s.state == waits || s.wants() {
		return a.lockedOutbound(s)
	}
	return nil
}

// lockedInbound returns the limits that keep the claim from entering its target.
func (a *Admission) lockedInbound(s *slot) []Blocker {
	var none usage
	u := a.nodes[s.claim.TargetNode]
	if u == nil {
		u = &none
	}
	b := Blocker{Node: s.claim.TargetNode, Holders: keys(u.in)}
	switch {
	case len(u.in) >= a.limits.Inbound:
		b.Limit, b.Used, b.Max = LimitInbound, len(u.in), a.limits.Inbound
	case !a.limits.fits(u.inRate, s.rate):
		b.Limit, b.Used, b.Max = LimitBandwidth, int(u.inRate), int(a.limits.budget())
	default:
		return nil
	}
	return []Blocker{b}
}

// lockedOutbound returns the limits that keep the claim from its cluster and outbound slots.
// Those of the node come first: they lift later than the cluster's.
func (a *Admission) lockedOutbound(s *slot) []Blocker {
	var none usage
	u := a.nodes[s.claim.SourceNode]
	if u == nil {
		u = &none
	}
	l, from := a.limits, s.claim.SourceNode
	out, rate, cluster := len(u.out)+u.wants, u.outRate+u.wantRate, len(a.holders)+len(a.wanting)
	if s.wants() {
		// It does not block itself.
		out, rate, cluster = out-1, rate-s.rate, cluster-1
	}
	leaving := func() []types.NamespacedName {
		return keys(u.out, slices.DeleteFunc(slices.Clone(a.wanting), func(w *slot) bool { return w == s || w.claim.SourceNode != from })...)
	}
	var list []Blocker
	held := s.spot != nil && s.spot.lane.held
	switch {
	case out >= l.Outbound:
		list = append(list, Blocker{Limit: LimitOutbound, Node: from, Used: out, Max: l.Outbound, Holders: leaving()})
	case held || !l.fits(rate, l.rate(s.claim.Bandwidth)):
		list = append(list, Blocker{Limit: LimitBandwidth, Node: from, Used: int(rate), Max: int(l.budget()), Holders: leaving()})
	}
	if cluster >= l.Cluster {
		others := slices.DeleteFunc(slices.Clone(a.wanting), func(w *slot) bool { return w == s })
		list = append(list, Blocker{Limit: LimitCluster, Used: cluster, Max: l.Cluster, Holders: keys(a.holders, others...)})
	}
	return list
}

// keys returns the keys of the claims, which are sorted by key, and of more.
func keys(list []*slot, more ...*slot) []types.NamespacedName {
	out := make([]types.NamespacedName, 0, len(list)+len(more))
	for _, s := range list {
		out = append(out, s.claim.Key)
	}
	for _, s := range more {
		out = append(out, s.claim.Key)
	}
	if len(more) > 0 {
		slices.SortFunc(out, compareKeys)
	}
	return out
}
