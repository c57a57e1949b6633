// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// Report is what "-o json" prints.
type Report struct {
	// Phases are those that were asked for, in the order in which they ran.
	Phases []Phase `json:"phases"`
}

// Phase is one part of the measurement.
type Phase struct {
	// Name is guests, migrations, waiting or cached, N how many of them there were.
	Name string `json:"name"`
	N    int    `json:"n"`
	// Figures are single numbers, Steps how long what took, Writes what the controller wrote.
	Figures []Figure `json:"figures"`
	Steps   []Step   `json:"steps,omitempty"`
	Writes  *Writes  `json:"writes,omitempty"`
	// Components is what each component wrote for each object, without events.
	Components map[string]float64 `json:"writesByComponent,omitempty"`
	// Load is who used the processor until the phase was over, and so what limits it next.
	Load *Load `json:"load,omitempty"`
	// Profiles are files with profiles of the controller, taken in this phase.
	Profiles []string `json:"profiles,omitempty"`
}

// Figure is a number, beside that of stock KubeVirt and its limit, where there are any.
type Figure struct {
	// Name says what was measured.
	Name string `json:"name"`
	// Value is what it came to, in Unit.
	Value float64 `json:"value"`
	Unit  string  `json:"unit,omitempty"`
	// Stock is what stock KubeVirt came to, Ratio the value's share of it.
	Stock float64 `json:"stock,omitempty"`
	Ratio float64 `json:"ratio,omitempty"`
	// Limit is what the value may be at most, and Missed says that it is more.
	Limit  float64 `json:"limit,omitempty"`
	Missed bool    `json:"missed,omitempty"`
}

// Step is how long one step took for all objects of a phase.
type Step struct {
	Name string `json:"name"`
	Spread
}

// values are the figures of a phase by their names; none if it did not run.
func (r *Report) values(phase string) map[string]float64 {
	out := map[string]float64{}
	for i := range r.Phases {
		if r.Phases[i].Name != phase {
			continue
		}
		for _, f := range r.Phases[i].Figures {
			out[f.Name] = f.Value
		}
	}
	return out
}

func (p *Phase) add(name string, value float64, unit string) {
	p.Figures = append(p.Figures, Figure{Name: name, Value: round3(value), Unit: unit})
}

func (p *Phase) step(name string, s Spread) { p.Steps = append(p.Steps, Step{Name: name, Spread: s}) }

// wrote adds what the controller wrote.
func (p *Phase) wrote(w Writes) {
	p.Writes = &w
	p.add(writesEach, w.Each, "")
	p.add(withEvents, w.Each+w.Events, "")
	p.add(rejectedEach, w.Rejected, "")
}

// missed are the figures above their limits.
func (r *Report) missed() []string {
	var out []string
	for i := range r.Phases {
		for _, f := range r.Phases[i].Figures {
			if f.Missed {
				out = append(out, fmt.Sprintf("%s: %s: %s, want %s at most", r.Phases[i].Name, f.Name, number(f.Value, f.Unit), number(f.Limit, f.Unit)))
			}
		}
	}
	return out
}

func number(v float64, unit string) string { return strings.TrimSpace(fmt.Sprintf("%.4g %s", v, unit)) }

// line is the phase in one line.
func (p *Phase) line() string {
	parts := make([]string, 0, len(p.Steps)+len(p.Figures))
	for _, s := range p.Steps {
		parts = append(parts, fmt.Sprintf("%s %.2f/%.2f/%.2f s (max %.2f)", s.Name, s.P50, s.P95, s.P99, s.Max))
	}
	for _, f := range p.Figures {
		switch f.Name {
		case allScheduled, allHandedOff, allSucceeded, firstTarget, writesEach, rejectedEach, controllerCPU, peakMemory, idleCore, heapEach, coldStartFull:
			parts = append(parts, f.Name+" "+number(f.Value, f.Unit))
		}
	}
	return fmt.Sprintf("%s %d: %s", p.Name, p.N, strings.Join(parts, ", "))
}

// table lists all figures of the phase beside their references.
func (p *Phase) table(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "  FIGURE\tVALUE\tSTOCK\tRATIO\tLIMIT\t\n")
	for _, f := range p.Figures {
		cells := []string{"", "", "", ""}
		if f.Stock > 0 {
			cells[0], cells[1] = number(f.Stock, f.Unit), fmt.Sprintf("%.2f", f.Ratio)
		}
		if f.Limit > 0 {
			cells[2], cells[3] = number(f.Limit, f.Unit), "ok"
		}
		if f.Missed {
			cells[3] = "MISSED"
		}
		fmt.Fprintf(w, "  %s\t%s\t%s\n", f.Name, number(f.Value, f.Unit), strings.Join(cells, "\t"))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if p.Writes != nil {
		fmt.Fprintf(out, "  writes each: %s\n", p.Writes.kindsText())
		fmt.Fprintf(out, "  refusals: %v, reads: %d\n", p.Writes.Codes, p.Writes.Reads)
	}
	if len(p.Components) > 0 {
		fmt.Fprintf(out, "  writes each by component, without events: %s\n", listed(p.Components))
	}
	if p.Load != nil {
		fmt.Fprintf(out, "  %s\n", p.Load.text())
	}
	for _, f := range p.Profiles {
		fmt.Fprintf(out, "  profile: %s\n", f)
	}
	return nil
}
