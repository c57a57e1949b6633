// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
)

// Candidate is one policy in the outcome of a match.
type Candidate struct {
	// Name is the policy's name.
	Name string
	// Wins says that the policy is in force for the VMI.
	Wins bool
	// Matches says that all selectors of the policy match.
	Matches bool
	// VMILabels and NamespaceLabels count the labels that a matching policy demands
	// of the VMI and of its namespace; they rank it.
	VMILabels, NamespaceLabels int

	// unselective says that the policy has no selectors; missing is the first missing
	// label that it demands, by key.
	unselective bool
	missing     demand
	// rival is the policy that it lost to or, for the winner, the next best; nil for none.
	rival *entry
}

// Candidates explains the match: the winner first, then the other policies that match, in
// order of precedence, then those that do not match, by name. It is computed on demand, so
// an unexplained match costs nothing; [Candidate.Why] formats the texts.
func (m Match) Candidates() []Candidate {
	if m.index == nil {
		return nil
	}
	out := make([]Candidate, 0, len(m.index.named))
	var first, next *entry
	for _, e := range m.index.ranked {
		c := m.consider(e)
		switch {
		case !c.Matches:
			continue
		case first == nil:
			c.Wins, first = true, e
		default:
			c.rival = first
			if next == nil {
				next = e
			}
		}
		out = append(out, c)
	}
	if first != nil {
		out[0].rival = next
	}
	for _, e := range m.index.named {
		if c := m.consider(e); !c.Matches {
			out = append(out, c)
		}
	}
	return out
}

func (m *Match) consider(e *entry) Candidate {
	c := Candidate{Name: e.policy.Name}
	if e.policy.Spec.Selectors == nil {
		c.unselective = true
		return c
	}
	d, missing := m.missing(e)
	if missing {
		c.missing = d
		return c
	}
	c.Matches, c.VMILabels, c.NamespaceLabels = true, e.weight.vmi, e.weight.namespace
	return c
}

// Why returns what excluded the policy, why another one won, or over which it won.
func (c Candidate) Why() string {
	switch {
	case c.unselective:
		return "it has no selectors"
	case !c.Matches && c.missing.namespace:
		return "the namespace has no label " + c.missing.key + "=" + c.missing.value
	case !c.Matches:
		return "the VMI has no label " + c.missing.key + "=" + c.missing.value
	case c.rival == nil:
		return "no other matches"
	}
	own, other := weight{c.VMILabels, c.NamespaceLabels}, c.rival.weight
	if c.Wins {
		return surpasses("it", own, other, fmt.Sprintf("%q", c.rival.policy.Name))
	}
	return surpasses(fmt.Sprintf("%q", c.rival.policy.Name), other, own, "it")
}

// surpasses returns why the winner precedes the loser.
func surpasses(winner string, w, l weight, loser string) string {
	switch {
	case w.total() != l.total():
		return fmt.Sprintf("%s names more labels than %s (%d instead of %d)", winner, loser, w.total(), l.total())
	case w.vmi != l.vmi:
		return fmt.Sprintf("%s names more labels of the VMI than %s (%d instead of %d)", winner, loser, w.vmi, l.vmi)
	}
	return fmt.Sprintf("%s is as specific as %s and comes first by name", winner, loser)
}
