// SPDX-License-Identifier: Apache-2.0

package explore

import (
	"fmt"
	"slices"
	"sync"
)

// Limits bound a search.
type Limits struct {
	// States is after how many distinct states the search stops, at the end of a
	// chunk. Zero means at none.
	States int
	// Depth is the longest path that is looked at. Zero means any.
	Depth int
	// Settle is how many states out of that many are let go on without faults, to
	// see that they come to rest rightly: one in Settle. Zero means none.
	Settle int
	// Workers is how many goroutines search. The result does not depend on it.
	Workers int
	// Stop, if not nil, is asked between chunks whether time is up. A search that
	// was stopped by it is not repeatable.
	Stop func() bool
}

// Report is the result of a search.
type Report struct {
	// States are the distinct states seen, Steps the actions carried out, and Settled
	// how many states were let come to rest.
	States, Steps, Settled int
	// Depth is the length of the longest path whose end was looked at.
	Depth int
	// Complete says that every state the budget allows was seen.
	Complete bool
	// Violation is the first one found, nil if there is none.
	Violation *Violation
}

// Violation is a rule that was broken, and how: a shortest script that leads to it.
type Violation struct {
	Rule   string
	Script []string
}

// String prints the violation with its script, one line for each step.
func (v *Violation) String() string {
	out := "# " + v.Rule + "\n"
	for _, l := range v.Script {
		out += l + "\n"
	}
	return out
}

// step is how a state was reached first.
type step struct {
	from int32
	by   action
}

// node is a state whose successors are to be looked at.
type node struct {
	id int32
	w  world
}

// fresh is a state that a worker has come upon.
type fresh struct {
	key  key
	w    world
	by   action
	from int32
	// broken is the rule the step has broken.
	broken string
}

// search explores breadth first.
type search struct {
	limits Limits
	seen   map[key]struct{}
	steps  []step
	report Report
}

// A batch of chunks of states is looked at together, each chunk by one worker. The
// successors are merged in the order of the chunks, so that the outcome is the same
// with any number of workers.
const (
	chunk = 1024
	batch = 8
)

// Search looks at every state of the scenario up to the limits, nearest first, and
// stops at the first violation. It is deterministic: the same scenario and limits
// give the same report.
func Search(s *Scenario, l Limits) (Report, error) {
	workers := max(l.Workers, 1)
	known := &memory{}
	machines := make([]*machine, workers)
	for i := range machines {
		m, err := s.newMachine(known)
		if err != nil {
			return Report{}, err
		}
		machines[i] = m
	}
	first, err := s.first(machines[0])
	if err != nil {
		return Report{}, err
	}
	x := &search{limits: l, seen: map[key]struct{}{}}
	var c canon
	x.seen[c.key(&first)] = struct{}{}
	x.steps = append(x.steps, step{from: -1})
	level := []node{{0, first}}
	for depth := 0; len(level) > 0; depth++ {
		x.report.Depth = depth
		if l.Depth > 0 && depth >= l.Depth {
			break
		}
		next, err := x.level(level, machines)
		if err != nil {
			return x.report, err
		}
		if x.report.Violation != nil || x.full() {
			break
		}
		level = next
		x.report.Complete = len(level) == 0
	}
	x.report.States = len(x.seen)
	return x.report, nil
}

func (x *search) full() bool {
	return x.limits.States > 0 && len(x.seen) >= x.limits.States || x.limits.Stop != nil && x.limits.Stop()
}

// level looks at all successors of the states of one depth.
func (x *search) level(level []node, machines []*machine) (next []node, err error) {
	for len(level) > 0 && !x.full() {
		n := min(chunk*batch, len(level))
		parts := slices.Collect(slices.Chunk(level[:n], chunk))
		found := make([]part, len(parts))
		var wait sync.WaitGroup
		for k, m := range machines {
			wait.Go(func() {
				for i := k; i < len(parts); i += len(machines) {
					found[i] = x.expand(parts[i], m)
				}
			})
		}
		wait.Wait()
		for i := range found {
			if next = x.merge(&found[i], next); x.report.Violation != nil {
				return nil, nil
			}
		}
		level = level[n:]
	}
	return next, nil
}

// part is what one worker has found.
type part struct {
	fresh   []fresh
	steps   int
	settled int
}

// expand looks at the successors of states. It only reads what the search has seen.
func (x *search) expand(nodes []node, m *machine) part {
	var p part
	var c canon
	var actions []action
	mine := map[key]struct{}{}
	for i := range nodes {
		actions = m.enabled(&nodes[i].w, actions[:0])
		for _, a := range actions {
			w := nodes[i].w
			m.apply(&w, a)
			p.steps++
			k := c.key(&w)
			if m.broken == "" {
				if _, old := x.seen[k]; old {
					continue
				}
				if _, old := mine[k]; old {
					continue
				}
			}
			mine[k] = struct{}{}
			p.fresh = append(p.fresh, fresh{key: k, w: w, by: a, from: nodes[i].id, broken: m.broken})
			if x.limits.Settle > 0 && k.a%uint64(x.limits.Settle) == 0 && m.broken == "" {
				p.settled++
				if err := m.rests(w); err != nil {
					p.fresh[len(p.fresh)-1].broken = err.Error()
				}
			}
		}
	}
	return p
}

// rests lets a copy of the world come to rest and returns its violation then.
func (m *machine) rests(w world) error {
	err := m.settleDown(&w, nil)
	if err == nil {
		err = resting{&w}.right()
	}
	if err != nil {
		return fmt.Errorf("%w (%s)", err, describe(&w))
	}
	return nil
}

// merge adds what a worker has found to what is seen.
func (x *search) merge(p *part, next []node) []node {
	x.report.Steps += p.steps
	x.report.Settled += p.settled
	for i := range p.fresh {
		f := &p.fresh[i]
		if f.broken != "" {
			x.report.Violation = &Violation{Rule: f.broken, Script: x.script(f)}
			return nil
		}
		if _, old := x.seen[f.key]; old {
			continue
		}
		x.seen[f.key] = struct{}{}
		x.steps = append(x.steps, step{f.from, f.by})
		next = append(next, node{int32(len(x.steps) - 1), f.w})
	}
	return next
}

// script is the way to a state.
func (x *search) script(f *fresh) []string {
	lines := []string{f.by.String()}
	for i := f.from; x.steps[i].from >= 0; i = x.steps[i].from {
		lines = append(lines, x.steps[i].by.String())
	}
	slices.Reverse(lines)
	return lines
}

// String prints the report on one line.
func (r Report) String() string {
	s := fmt.Sprintf("%d states, %d steps, depth %d, %d settled", r.States, r.Steps, r.Depth, r.Settled)
	if r.Complete {
		s += ", complete"
	}
	if r.Violation != nil {
		s += ", violation: " + r.Violation.Rule
	}
	return s
}
