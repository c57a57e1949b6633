// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"slices"
	"strings"

	"kubevirt.io/api/migrations/v1alpha1"
)

// Policies finds the MigrationPolicy for a VMI. Build it with [NewPolicies]; the zero value
// has no policies. It is immutable, safe for concurrent use, and cheap to copy.
type Policies struct {
	index *policyIndex
}

// policyIndex finds policies by a VMI's labels. A policy's specificity depends on the policy
// alone, so all are ranked in advance, and the winner is the first in rank that matches.
type policyIndex struct {
	// ranked are the policies that can match; the earlier one wins for every VMI.
	ranked []*entry
	// labelled is how many of ranked demand a label. Those after it match every
	// VMI, and rank last.
	labelled int
	// anchored holds the ranks, in order, of the policies found by that label, which
	// is the one that the fewest policies demand.
	anchored map[demand][]int
	// named are all policies by name, including those without selectors.
	named []*entry
}

// entry is a policy and its demands.
type entry struct {
	policy *v1alpha1.MigrationPolicy
	// demands are sorted, those on the VMI first.
	demands []demand
	weight  weight
}

// demand is a label that a policy demands of the VMI or of its namespace.
type demand struct {
	namespace  bool
	key, value string
}

// NewPolicies indexes the policies for matching. The objects must not change afterwards.
func NewPolicies(all []v1alpha1.MigrationPolicy) Policies {
	all = slices.Clone(all)
	x := &policyIndex{anchored: map[demand][]int{}}
	common := map[demand]int{}
	for i := range all {
		e := newEntry(&all[i])
		x.named = append(x.named, e)
		if e.policy.Spec.Selectors != nil {
			x.ranked = append(x.ranked, e)
		}
		for _, d := range e.demands {
			common[d]++
		}
	}
	slices.SortStableFunc(x.named, (*entry).byName)
	slices.SortStableFunc(x.ranked, func(a, b *entry) int { return cmp.Or(a.weight.against(b.weight), a.byName(b)) })
	for rank, e := range x.ranked {
		if len(e.demands) == 0 {
			break // neither does any after it
		}
		rarest := slices.MinFunc(e.demands, func(a, b demand) int { return cmp.Compare(common[a], common[b]) })
		x.anchored[rarest] = append(x.anchored[rarest], rank)
		x.labelled++
	}
	return Policies{index: x}
}

func newEntry(p *v1alpha1.MigrationPolicy) *entry {
	e := &entry{policy: p}
	sel := p.Spec.Selectors
	if sel == nil {
		return e
	}
	e.weight = weight{vmi: len(sel.VirtualMachineInstanceSelector), namespace: len(sel.NamespaceSelector)}
	e.demands = make([]demand, 0, e.weight.total())
	for k, v := range sel.VirtualMachineInstanceSelector {
		e.demands = append(e.demands, demand{key: k, value: v})
	}
	for k, v := range sel.NamespaceSelector {
		e.demands = append(e.demands, demand{namespace: true, key: k, value: v})
	}
	slices.SortFunc(e.demands, demand.compare)
	return e
}

func (e *entry) byName(o *entry) int { return strings.Compare(e.policy.Name, o.policy.Name) }

// compare puts demands on the VMI first, then orders by key and value.
func (d demand) compare(o demand) int {
	if d.namespace != o.namespace {
		if o.namespace {
			return -1
		}
		return 1
	}
	return cmp.Or(strings.Compare(d.key, o.key), strings.Compare(d.value, o.value))
}

// weight is the specificity of a policy.
type weight struct{ vmi, namespace int }

func (w weight) total() int { return w.vmi + w.namespace }

// against puts the winner first: more labels, then more labels of the VMI.
func (w weight) against(o weight) int {
	return cmp.Or(cmp.Compare(o.total(), w.total()), cmp.Compare(o.vmi, w.vmi))
}

// Match is the outcome of matching a VMI against all policies.
type Match struct {
	// Winner is nil when no policy matches.
	Winner *v1alpha1.MigrationPolicy

	index          *policyIndex
	vmi, namespace map[string]string
}

// Name returns the winner's name, or nil.
func (m Match) Name() *string {
	if m.Winner == nil {
		return nil
	}
	name := m.Winner.Name
	return &name
}

// Match returns the policy for a VMI with the labels guest in a namespace with the labels
// namespace. The policy whose selectors name the most labels wins; between equals the one
// that names more labels of the VMI, then the smaller name. A policy without selectors
// matches nothing, one with empty selectors everything. Nil labels are an empty set.
//
// The labels must not change as long as [Match.Candidates] of the result is used.
func (p Policies) Match(guest, namespace map[string]string) Match {
	m := Match{index: p.index, vmi: guest, namespace: namespace}
	if p.index == nil {
		return m
	}
	best := p.index.labelled // the first that matches everything, or none
	for k, v := range guest {
		best = m.first(demand{key: k, value: v}, best)
	}
	for k, v := range namespace {
		best = m.first(demand{namespace: true, key: k, value: v}, best)
	}
	if best < len(p.index.ranked) {
		m.Winner = p.index.ranked[best].policy
	}
	return m
}

// first returns the rank of the first matching policy anchored at the label, or
// best if that is better.
func (m *Match) first(d demand, best int) int {
	for _, rank := range m.index.anchored[d] {
		if rank >= best {
			break
		}
		if _, missing := m.missing(m.index.ranked[rank]); !missing {
			return rank
		}
	}
	return best
}

// missing returns the first label that the policy demands and that is missing.
func (m *Match) missing(e *entry) (demand, bool) {
	for _, d := range e.demands {
		have := m.vmi
		if d.namespace {
			have = m.namespace
		}
		if got, found := have[d.key]; !found || got != d.value {
			return d, true
		}
	}
	return demand{}, false
}
