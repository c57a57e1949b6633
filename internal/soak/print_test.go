// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// Print writes the report as tables.
func (r Report) Print(out io.Writer) error {
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	names := map[string]bool{}
	for _, s := range r.Samples {
		for name := range s.Values {
			names[name] = true
		}
	}
	columns := slices.Sorted(maps.Keys(names))
	fmt.Fprintf(t, "at rest after\toperations\t%s\n", strings.Join(columns, "\t"))
	for _, s := range r.Samples {
		fmt.Fprintf(t, "%s\t%d", s.At.Round(time.Second), s.Operations)
		for _, name := range columns {
			fmt.Fprintf(t, "\t%.6g", s.Values[name])
		}
		fmt.Fprintln(t)
	}
	fmt.Fprintln(t)
	fmt.Fprintln(t, "growth of\tfrom\tover\tto\tan hour\tallowed")
	for _, g := range r.Growth {
		fmt.Fprintf(t, "%s\t%.6g\t%.6g\t%.6g\t%.3g\t%.4g\n", g.Name, g.First, g.Middle, g.Last, g.PerHour, g.Allowed)
	}
	fmt.Fprintln(t)
	for _, of := range []struct {
		what   string
		counts map[string]int
	}{{"done", r.Done}, {"faults", r.Faults}, {"writes", r.Writes}} {
		fmt.Fprintf(t, "%s\t%s\n", of.what, counts(of.counts))
	}
	fmt.Fprintf(t, "refused writes\t%d\n", r.Refused)
	fmt.Fprintf(t, "most in a minute\t%s; %s\n", r.WorstObject, r.WorstEvents)
	for _, wrong := range r.Wrong {
		fmt.Fprintf(t, "WRONG\t%s\n", wrong)
	}
	return t.Flush()
}

func counts(of map[string]int) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(of)) {
		parts = append(parts, fmt.Sprintf("%s %d", name, of[name]))
	}
	return strings.Join(parts, ", ")
}
