// SPDX-License-Identifier: Apache-2.0

package handoff

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the diagram in doc.go and the golden files")

// order is the order in which the states are drawn.
var order = []State{Unclaimed, Claimed, Offered, Owned, Preparing, Prepared, Moving, Arrived, Releasing, Lost, Fenced, Released}

// diagram draws the table as doc.go shows it.
func diagram() string {
	var b strings.Builder
	b.WriteString(life())
	for _, s := range order {
		rule := states[s]
		fmt.Fprintf(&b, "//	%s\n//	    responsible: %s", title(s), rule.responsible)
		switch {
		case s == Owned:
			b.WriteString(", while it gives signs of life")
		case rule.within > 0:
			fmt.Fprintf(&b, ", within %s", strings.TrimSuffix(rule.within.String(), "0s"))
		}
		b.WriteString("\n")
		for _, t := range transitions {
			if !slices.Contains(t.from, s) {
				continue
			}
			plus := " "
			if t.epoch {
				plus = "+"
			}
			fmt.Fprintf(&b, "//	    %-8s ──▶ %s%-9s  by the %s\n", t.event, plus, target(t, s), t.sender)
		}
	}
	return b.String()
}

// life draws the states of a VMI that is migrated once.
func life() string {
	var b strings.Builder
	s := Unclaimed
	b.WriteString("//	" + title(s))
	for i, k := range []Kind{Claim, Offer, Accept, Prepare, Ready, Begin, TakeOver, Finalize, Stop, Release} {
		t, _ := rowFor(k, s)
		if i%4 == 3 {
			b.WriteString("\n//	   ")
		}
		fmt.Fprintf(&b, " ─%s▶ %s", k, title(t.to))
		s = t.to
	}
	b.WriteString("\n//\n")
	return b.String()
}

func title(s State) string {
	if s == Unclaimed {
		return "Unclaimed"
	}
	return string(s)
}

func target(t transition, from State) string {
	switch t.to {
	case same:
		return title(from)
	case back:
		return "as before"
	}
	return title(t.to)
}

func TestDiagram_MatchesTable(t *testing.T) {
	const begin, end = "refused.\n//\n", "//\n// # Epochs\n"
	raw, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	head, rest, found := strings.Cut(string(raw), begin)
	drawn, tail, closed := strings.Cut(rest, end)
	if !found || !closed {
		t.Fatal("doc.go has no diagram")
	}
	want := diagram()
	if *update {
		if err := os.WriteFile("doc.go", []byte(head+begin+want+end+tail), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	if drawn != want {
		t.Errorf("the diagram in doc.go is not the table (rewrite it with -update):\n%s", want)
	}
}

func TestTable_Sound(t *testing.T) {
	if len(order) != len(states) {
		t.Errorf("%d states are drawn, %d exist", len(order), len(states))
	}
	seen := map[string]bool{}
	into, out := map[State]bool{Unclaimed: true}, map[State]bool{}
	for _, tr := range transitions {
		for _, s := range tr.from {
			if id := string(tr.event) + " in " + title(s); seen[id] {
				t.Errorf("%s has two rows", id)
			} else {
				seen[id] = true
			}
			out[s] = true
		}
		if tr.to != same && tr.to != back {
			into[tr.to] = true
		}
		if tr.cause == "" && tr.event != Fence {
			t.Errorf("%s has no cause", tr.event)
		}
	}
	for s, rule := range states {
		switch {
		case !into[s]:
			t.Errorf("nothing leads to %s", title(s))
		case out[s] == (s == Released):
			t.Errorf("%s has ways out: %t", title(s), out[s])
		case rule.responsible == "" || (rule.responsible == ByNobody) != (s == Released):
			t.Errorf("in %s %q is responsible", title(s), rule.responsible)
		case rule.within == 0 && s != Unclaimed && s != Owned && s != Released:
			t.Errorf("%s has no bound", title(s))
		}
	}
	for s := range states {
		if !leads(s, Released, map[State]bool{}) {
			t.Errorf("%s cannot end", title(s))
		}
	}
}

// leads reports whether events of the table lead from one state to the other.
func leads(from, to State, seen map[State]bool) bool {
	if from == to {
		return true
	}
	seen[from] = true
	return slices.ContainsFunc(transitions, func(t transition) bool {
		return slices.Contains(t.from, from) && t.to != same && t.to != back && !seen[t.to] && leads(t.to, to, seen)
	})
}
