// SPDX-License-Identifier: Apache-2.0

package explore

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
)

// Walks bound random walks.
type Walks struct {
	// Count is how many there are, Length how many steps each takes at most.
	Count, Length int
	// Seed makes them repeatable.
	Seed uint64
	// Workers is how many goroutines walk. The result does not depend on it.
	Workers int
	// Stop, if not nil, is asked between walks whether time is up.
	Stop func() bool
}

// WalkReport is the result of walks.
type WalkReport struct {
	// Walks were made, with Steps in all, through States distinct states.
	Walks, Steps, States int
	// Violation is that of the first walk with one, nil if there is none.
	Violation *Violation
}

// String prints the report on one line.
func (r WalkReport) String() string {
	s := fmt.Sprintf("%d walks, %d steps, %d states", r.Walks, r.Steps, r.States)
	if r.Violation != nil {
		s += ", violation: " + r.Violation.Rule
	}
	return s
}

// walked is what came of one walk.
type walked struct {
	steps     int
	keys      []key
	violation *Violation
	err       error
}

// Walk takes random walks through the scenario, far longer than a search can reach,
// each of which ends by letting the world come to rest. It is deterministic.
func Walk(s *Scenario, l Walks) (WalkReport, error) {
	workers, known := max(l.Workers, 1), &memory{}
	var r WalkReport
	seen := map[key]struct{}{}
	for next := 0; next < l.Count && (l.Stop == nil || !l.Stop()); next += workers {
		found := make([]walked, min(workers, l.Count-next))
		var wait sync.WaitGroup
		for i := range found {
			wait.Go(func() { found[i] = s.walk(known, l.Seed+uint64(next+i), l.Length) })
		}
		wait.Wait()
		for i := range found {
			f := &found[i]
			if f.err != nil {
				return r, f.err
			}
			r.Walks, r.Steps = r.Walks+1, r.Steps+f.steps
			for _, k := range f.keys {
				seen[k] = struct{}{}
			}
			r.States = len(seen)
			if f.violation != nil {
				r.Violation = f.violation
				return r, nil
			}
		}
	}
	return r, nil
}

// walk takes one walk.
func (s *Scenario) walk(known *memory, seed uint64, length int) (out walked) {
	m, err := s.newMachine(known)
	if err != nil {
		return walked{err: err}
	}
	first, err := s.first(m)
	if err != nil {
		return walked{err: err}
	}
	random := rand.New(rand.NewPCG(seed, seed))
	w := first
	var taken, actions []action
	var c canon
	for len(taken) < length {
		if actions = m.enabled(&w, actions[:0]); len(actions) == 0 {
			break
		}
		a := choose(random, actions)
		taken = append(taken, a)
		m.apply(&w, a)
		out.keys = append(out.keys, c.key(&w))
		if m.broken != "" {
			break
		}
	}
	out.steps = len(taken)
	rule := m.broken
	if rule == "" {
		if err := m.rests(w); err != nil {
			rule = err.Error()
		}
	}
	if rule != "" {
		out.violation = &Violation{Rule: rule, Script: lines(m.shrink(first, taken))}
	}
	return out
}

// endings is how much rarer than others the faults are after which little can happen.
const endings = 8

// ends reports whether a fault leaves little to happen.
func (f fault) ends() bool { return f == death || f == deletion || f == guestEnd }

// choose picks an action: faults and time rarely, so that something happens between
// them.
func choose(random *rand.Rand, actions []action) action {
	rare := random.IntN(16) == 0
	for range 8 {
		a := actions[random.IntN(len(actions))]
		f := costs[a.does]
		if rare == (f != noFault) && (!f.ends() || random.IntN(endings) == 0) {
			return a
		}
	}
	return actions[random.IntN(len(actions))]
}

func lines(taken []action) []string {
	out := make([]string, 0, len(taken))
	for _, a := range taken {
		out = append(out, a.String())
	}
	return out
}

// shrink leaves out of a script what is not needed to break a rule.
func (m *machine) shrink(first world, taken []action) []action {
	for size := len(taken) / 2; size > 0; size /= 2 {
		for i := 0; i+size <= len(taken); {
			less := slices.Concat(taken[:i], taken[i+size:])
			if m.breaksBy(first, less) {
				taken = less
			} else {
				i += size
			}
		}
	}
	return taken
}

// breaksBy reports whether the actions, as far as they are possible, lead to a broken
// rule.
func (m *machine) breaksBy(w world, taken []action) bool {
	var actions []action
	for _, a := range taken {
		w.focus = -1
		if actions = m.enabled(&w, actions[:0]); !slices.Contains(actions, a) {
			continue
		}
		if m.apply(&w, a); m.broken != "" {
			return true
		}
	}
	return m.rests(w) != nil
}
