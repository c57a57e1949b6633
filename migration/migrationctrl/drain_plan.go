// SPDX-License-Identifier: Apache-2.0

package migrationctrl

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/virtloom/virtloom/internal/plaintext"
	"github.com/virtloom/virtloom/migration"
	"github.com/virtloom/virtloom/migration/evacuation"
	"github.com/virtloom/virtloom/migration/migrationsim"
	"github.com/virtloom/virtloom/migration/placement"
	"github.com/virtloom/virtloom/migration/queue"
)

// Assumptions are the estimates of a plan.
type Assumptions struct {
	// Rate is the bandwidth, in bytes per second, of a migration without a lower limit by
	// policy; Link the bandwidth of a node for all, in each direction; Dirty the rate at
	// which a VMI writes memory. See migrationsim.Options.
	Rate, Link, Dirty float64
	// Queue is the configuration of the controller's queue.
	Queue queue.Options
	// Horizon is how far the plan looks ahead; default 24 h.
	Horizon time.Duration
}

// DrainPlan is the predicted drain of a node.
type DrainPlan struct {
	// Node is the node's name, Guests the number of VMIs on it.
	Node string `json:"node"`
	VMIs int    `json:"guests"`
	// Makespan is the time until the last of them has left, LowerBound its lower bound; in
	// seconds.
	Makespan   float64 `json:"makespanSeconds"`
	LowerBound float64 `json:"lowerBoundSeconds"`
	// Bound explains the lower bound.
	Bound string `json:"bound"`
	// Moves are the VMIs that leave, in the order in which they start.
	Moves []DrainMove `json:"moves"`
	// Stays are the VMIs that do not leave, and why.
	Stays []DrainStay `json:"stays,omitempty"`
}

// DrainMove is a VMI that leaves.
type DrainMove struct {
	// Namespace and Guest name it.
	Namespace string `json:"namespace"`
	VMI       string `json:"guest"`
	// Target is its target in the simulation, Candidates are all nodes that could take it
	// now: the scheduler chooses.
	Target     string   `json:"target"`
	Candidates []string `json:"candidates"`
	// Starts and Ends are when it gets its slots, and when it is on the target, in seconds from
	// the beginning.
	Starts float64 `json:"startsSeconds"`
	Ends   float64 `json:"endsSeconds"`
	// Priority is the priority of its migration.
	Priority int `json:"priority"`
	// Attempts is the number of migrations it took.
	Attempts int `json:"attempts"`
}

// DrainStay is a VMI that does not leave.
type DrainStay struct {
	// Namespace and Guest name it.
	Namespace string `json:"namespace"`
	VMI       string `json:"guest"`
	// Reason and Message say why.
	Reason  migration.Reason `json:"reason"`
	Message string           `json:"message"`
	// Nodes counts the nodes by what excludes them, if that is the reason.
	Nodes string `json:"nodes,omitempty"`

	node string
}

// PlanDrain predicts what would happen if the node were drained now: it runs the same decisions
// on the cluster's current state, with a virtual clock. It reads from the caches, and writes
// nothing.
func (r *Reconciler) PlanDrain(ctx context.Context, node string, a Assumptions) (*DrainPlan, error) {
	c, err := planner{r}.picture(ctx)
	if err != nil {
		return nil, err
	}
	sim, err := planner{r}.simulate(ctx, c, a)
	if err != nil {
		return nil, err
	}
	return c.drain(sim, node, a)
}

// drain drains the node in the simulation and returns the result.
func (c *picture) drain(sim *migrationsim.Sim, node string, a Assumptions) (*DrainPlan, error) {
	begin := sim.Now()
	p := &DrainPlan{Node: node, Moves: []DrainMove{}}
	before := map[types.NamespacedName]placement.Fitness{}
	guests := sim.Guests(node)
	for _, g := range guests {
		if f, err := sim.Fit(g); err == nil {
			before[g] = f
		}
	}
	if err := sim.Drain(node); err != nil {
		return nil, fmt.Errorf("migrationctrl: the Node does not exist: %q", node)
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
	p.VMIs = len(p.Moves) + len(p.Stays)
	if len(p.Moves) > 0 {
		p.LowerBound, p.Bound = b.Total.Seconds(), b.String()
	}
	return p, nil
}

// outcome sorts the VMIs by whether they have left.
func (p *DrainPlan) outcome(sim *migrationsim.Sim, guests []types.NamespacedName, before map[types.NamespacedName]placement.Fitness, begin time.Time) {
	courses := map[types.NamespacedName][]migrationsim.Migration{}
	for _, m := range sim.Result().Migrations {
		if !m.Ended.IsZero() && m.Ended.Before(begin) {
			continue // history
		}
		key := types.NamespacedName{Namespace: m.Namespace, Name: m.Guest}
		courses[key] = append(courses[key], m)
	}
	stay := map[types.NamespacedName]evacuation.Standing{}
	for _, s := range sim.Standings(p.Node) {
		stay[types.NamespacedName{Namespace: s.VMI.Namespace, Name: s.VMI.Name}] = s
	}
	for _, g := range guests {
		runs := courses[g]
		standing, stays := stay[g]
		switch {
		case stays:
			s := DrainStay{Namespace: g.Namespace, VMI: g.Name, Reason: standing.Reason, Message: standing.Message}
			if m := blocking(runs); m != nil {
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

// blocking returns the last of the migrations whose state explains what blocks: not a new one,
// nor one that only backs off after failures. It returns nil if there is none.
func blocking(runs []migrationsim.Migration) *migrationsim.Migration {
	for i := range slices.Backward(runs) {
		if r := runs[i].Reason; r != "" && r != migration.ReasonBackoff {
			return &runs[i]
		}
	}
	return nil
}

func (p *DrainPlan) move(g types.NamespacedName, runs []migrationsim.Migration, f placement.Fitness, begin time.Time) {
	last := runs[len(runs)-1]
	m := DrainMove{
		Namespace: g.Namespace, VMI: g.Name, Target: last.Target, Candidates: f.Candidates, Priority: last.Priority, Attempts: len(runs),
		Starts: max(0, last.Admitted.Sub(begin).Seconds()), Ends: last.Ended.Sub(begin).Seconds(),
	}
	p.Moves = append(p.Moves, m)
	p.Makespan = max(p.Makespan, m.Ends)
}

// Write writes the plan as text for operators.
func (p *DrainPlan) Write(out io.Writer) error {
	var b strings.Builder
	line := plaintext.Line // users control much of the text
	span := func(seconds float64) string { return (time.Duration(seconds) * time.Second).String() }
	fmt.Fprintf(&b, "Node %s: %d VMIs, %d leave within %s, %d stay\n", line(p.Node), p.VMIs, len(p.Moves), span(p.Makespan), len(p.Stays))
	if p.Bound != "" {
		fmt.Fprintf(&b, "Lower bound: %s\n", line(p.Bound))
	}
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	if len(p.Moves) > 0 {
		_, _ = fmt.Fprintln(w, "\nSTARTS\tENDS\tVMI\tCANDIDATES\tTARGET (SIMULATED)")
	}
	for _, m := range p.Moves {
		_, _ = fmt.Fprintf(w, "%s\t%s\t%s/%s\t%s\t%s\n", span(m.Starts), span(m.Ends), line(m.Namespace), line(m.VMI), line(few(m.Candidates)), line(m.Target))
	}
	if len(p.Stays) > 0 {
		_, _ = fmt.Fprintln(w, "\nSTAYS\tREASON\tWHY")
	}
	for _, s := range p.Stays {
		// It may quote users' text, with lines and columns of its own.
		why := strings.Join(strings.Fields(s.Message), " ")
		if s.Nodes != "" {
			why += "; now " + s.Nodes
		}
		_, _ = fmt.Fprintf(w, "%s/%s\t%s\t%s\n", line(s.Namespace), line(s.VMI), line(string(s.Reason)), line(why))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	_, err := io.WriteString(out, b.String())
	return err
}

// few returns the first few nodes and the number of the others.
func few(nodes []string) string {
	if n := len(nodes); n > 3 {
		return fmt.Sprintf("%s and %d more", strings.Join(nodes[:3], ", "), n-3)
	}
	return cmp.Or(strings.Join(nodes, ", "), "none now")
}
