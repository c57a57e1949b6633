// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// SetQueueOptions changes the order of waiting migrations, and returns the keys of those that
// may proceed because of it. No migration loses a slot or the time it has waited. Namespaces
// are charged for their acting migrations, as by [Admission.Restore]: turns start over. Equal
// options change nothing, unless they have an Order, which cannot be compared.
func (a *Admission) SetQueueOptions(o Options, now time.Time) []types.NamespacedName {
	a.mu.Lock()
	defer a.mu.Unlock()
	next := newLine(o)
	have := &a.line.opts
	if have.Order == nil && o.Order == nil && have.AgeAfter == next.opts.AgeAfter && have.Unfair == next.opts.Unfair &&
		maps.Equal(have.Weights, next.opts.Weights) {
		return nil
	}
	all := slices.SortedFunc(maps.Values(a.claims), func(s, t *slot) int { return older(&s.node.Item, &t.node.Item) })
	a.line = next
	for _, s := range all {
		if s.state == waits {
			s.node = node{Item: s.claim.item()}
			a.line.add(&s.node, now)
			a.sources = append(a.sources, s.claim.SourceNode) // its lane may have to be closed
		}
	}
	for _, s := range all {
		if s.state != waits {
			a.line.charge(s.claim.item(), now)
		}
	}
	return a.lockedDispatch(types.NamespacedName{})
}
