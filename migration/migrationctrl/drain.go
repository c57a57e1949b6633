// SPDX-License-Identifier: Apache-2.0

package migrationctrl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/virtloom/virtloom/internal/plaintext"
	"github.com/virtloom/virtloom/migration"
	"github.com/virtloom/virtloom/migration/migrationsim"
)

// Assumptions are what a plan has to guess at.
type Assumptions struct {
	// Rate is how many bytes a second a migration moves that no policy bounds more narrowly;
	// Link how many a node can send, and receive, for all; Dirty how many a guest
	// writes meanwhile. See migrationsim.Options.
	Rate, Link, Dirty float64
	// Queue is how the controller's queue is tuned.
	Queue migration.QueueOptions
	// Horizon is how far the plan looks ahead; default 24 h.
	Horizon time.Duration
}

// DrainPlan is what a drain of a node would do.
type DrainPlan struct {
	// Node is the node, Guests how many run on it.
	Node   string `json:"node"`
	Guests int    `json:"guests"`
	// Makespan is how long it takes until the last of them has left, LowerBound how long
	// it takes at least; in seconds.
	Makespan   float64 `json:"makespanSeconds"`
	LowerBound float64 `json:"lowerBoundSeconds"`
	// Bound explains the lower bound.
	Bound string `json:"bound"`
	// Moves are the guests that leave, in the order in which they start.
	Moves []DrainMove `json:"moves"`
	// Stays are the guests that do not leave, and why.
	Stays []DrainStay `json:"stays,omitempty"`
}

// DrainMove is a guest that leaves.
type DrainMove struct {
	// Namespace and Guest name it.
	Namespace string `json:"namespace"`
	Guest     string `json:"guest"`
	// Target is where it goes in the simulation, Candidates all nodes that could take it
	// now: the scheduler chooses.
	Target     string   `json:"target"`
	Candidates []string `json:"candidates"`
	// Starts and Ends are when it has its slots, and when it is on the target, in seconds from
	// the beginning.
	Starts float64 `json:"startsSeconds"`
	Ends   float64 `json:"endsSeconds"`
	// Priority is its migration's.
	Priority int `json:"priority"`
	// Attempts is how many migrations it took.
	Attempts int `json:"attempts"`
}

// DrainStay is a guest that does not leave.
type DrainStay struct {
	// Namespace and Guest name it.
	Namespace string `json:"namespace"`
	Guest     string `json:"guest"`
	// Reason and Message say why.
	Reason  migration.Reason `json:"reason"`
	Message string           `json:"message"`
	// Nodes counts the nodes by what excludes them, where that is the reason.
	Nodes string `json:"nodes,omitempty"`

	node string
}

// ErrNoNode means that the node to drain does not exist.
var ErrNoNode = errors.New("migrationctrl: there is no such Node")

// PlanDrain tells what would happen if the node were drained now: it lets the same decisions be
// made about the cluster as it is, on a virtual clock. It reads from the caches, and
// writes nothing.
func (r *Reconciler) PlanDrain(ctx context.Context, node string, a Assumptions) (*DrainPlan, error) {
	c, err := r.picture(ctx)
	if err != nil {
		return nil, err
	}
	sim, err := r.simulate(ctx, c, a)
	if err != nil {
		return nil, err
	}
	return c.drain(sim, node, a)
}

// drain lets the node be drained in the simulation, and tells what came of it.
func (c *picture) drain(sim *migrationsim.Sim, node string, a Assumptions) (*DrainPlan, error) {
	begin := sim.Now()
	p := &DrainPlan{Node: node, Moves: []DrainMove{}}
	before := map[types.NamespacedName]migration.Fitness{}
	guests := sim.Guests(node)
	for _, g := range guests {
		if f, err := sim.Fit(g); err == nil {
			before[g] = f
		}
	}
	if err := sim.Drain(node); err != nil {
		return nil, fmt.Errorf("%w: %q", ErrNoNode, node)
	}
	b := sim.Bound(guests...)
	if err := sim.RunAll(begin.Add(cmp.Or(a.Horizon, 24*time.Hour))); err != nil {
		return nil, err
	}
	p.outcome(sim, guests, before, begin)
	for _, s := range c.left {
		if s.node == node {
			p.Stays = append(p.Stays, s)
		}
	}
	p.Guests = len(p.Moves) + len(p.Stays)
	if len(p.Moves) > 0 {
		p.LowerBound, p.Bound = b.Total.Seconds(), b.String()
	}
	return p, nil
}

// outcome sorts the guests by whether they have left.
func (p *DrainPlan) outcome(sim *migrationsim.Sim, guests []types.NamespacedName, before map[types.NamespacedName]migration.Fitness, begin time.Time) {
	courses := map[types.NamespacedName][]migrationsim.Migration{}
	for _, m := range sim.Result().Migrations {
		if !m.Ended.IsZero() && m.Ended.Before(begin) {
			continue // history
		}
		key := types.NamespacedName{Namespace: m.Namespace, Name: m.Guest}
		courses[key] = append(courses[key], m)
	}
	stay := map[types.NamespacedName]migration.Standing{}
	for _, s := range sim.Standings(p.Node) {
		stay[types.NamespacedName{Namespace: s.Guest.Namespace, Name: s.Guest.Name}] = s
	}
	for _, g := range guests {
		runs := courses[g]
		standing, stays := stay[g]
		switch {
		case stays:
			s := DrainStay{Namespace: g.Namespace, Guest: g.Name, Reason: standing.Reason, Message: standing.Message}
			if m := telling(runs); m != nil {
				s.Reason, s.Message = m.Reason, m.Message
			}
			if f, known := before[g]; known && len(f.Candidates) == 0 {
				s.Nodes = f.Text()
			}
			p.Stays = append(p.Stays, s)
		case len(runs) > 0:
			p.move(g, runs, before[g], begin)
		}
	}
	slices.SortStableFunc(p.Moves, func(a, b DrainMove) int { return cmp.Compare(a.Starts, b.Starts) })
}

// telling returns the last of the migrations that says what is in the way: not one that is
// new, nor one that only waits because those before have failed. It is nil if there is none.
func telling(runs []migrationsim.Migration) *migrationsim.Migration {
	for i := range slices.Backward(runs) {
		if r := runs[i].Reason; r != "" && r != migration.ReasonBackoff {
			return &runs[i]
		}
	}
	return nil
}

func (p *DrainPlan) move(g types.NamespacedName, runs []migrationsim.Migration, f migration.Fitness, begin time.Time) {
	last := runs[len(runs)-1]
	m := DrainMove{
		Namespace: g.Namespace, Guest: g.Name, Target: last.Target, Candidates: f.Candidates, Priority: last.Priority, Attempts: len(runs),
		Starts: max(0, last.Admitted.Sub(begin).Seconds()), Ends: last.Ended.Sub(begin).Seconds(),
	}
	p.Moves = append(p.Moves, m)
	p.Makespan = max(p.Makespan, m.Ends)
}

// Write writes the plan as an operator reads it.
func (p *DrainPlan) Write(out io.Writer) error {
	var b strings.Builder
	line := plaintext.Line // much of it was written by users
	span := func(seconds float64) string { return (time.Duration(seconds) * time.Second).String() }
	fmt.Fprintf(&b, "Node %s: %d guests, %d leave within %s, %d stay\n", line(p.Node), p.Guests, len(p.Moves), span(p.Makespan), len(p.Stays))
	if p.Bound != "" {
		fmt.Fprintf(&b, "It takes at least %s\n", line(p.Bound))
	}
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	if len(p.Moves) > 0 {
		_, _ = fmt.Fprintln(w, "\nSTARTS\tENDS\tGUEST\tCOULD GO TO\tGOES TO (SIMULATED)")
	}
	for _, m := range p.Moves {
		_, _ = fmt.Fprintf(w, "%s\t%s\t%s/%s\t%s\t%s\n", span(m.Starts), span(m.Ends), line(m.Namespace), line(m.Guest), line(few(m.Candidates)), line(m.Target))
	}
	if len(p.Stays) > 0 {
		_, _ = fmt.Fprintln(w, "\nSTAYS\tREASON\tWHY")
	}
	for _, s := range p.Stays {
		// It may quote what others have written, in lines and columns of their own.
		why := strings.Join(strings.Fields(s.Message), " ")
		if s.Nodes != "" {
			why += "; now " + s.Nodes
		}
		_, _ = fmt.Fprintf(w, "%s/%s\t%s\t%s\n", line(s.Namespace), line(s.Guest), line(string(s.Reason)), line(why))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	_, err := io.WriteString(out, b.String())
	return err
}

// few names a few nodes and counts the others.
func few(nodes []string) string {
	if n := len(nodes); n > 3 {
		return fmt.Sprintf("%s and %d more", strings.Join(nodes[:3], ", "), n-3)
	}
	return cmp.Or(strings.Join(nodes, ", "), "none now")
}
