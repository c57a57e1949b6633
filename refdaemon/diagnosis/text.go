// SPDX-License-Identifier: Apache-2.0

package diagnosis

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"time"
)

// String returns the diagnosis as text for operators.
func (g *Guest) String() string {
	var b strings.Builder
	b.WriteString(g.Diagnosis.String())
	for _, m := range g.Migrations {
		writeLine(&b, "Migration", "%s: %s", m.Name, cmp.Or(string(m.Phase), "(new)"))
		writeLine(&b, "", "waits for %s: %s", m.Responsible, strings.Trim(string(m.Reason)+": "+m.Message, ": "))
		if m.Unblock != "" {
			writeLine(&b, "", "continues when %s", m.Unblock)
		}
	}
	g.Controller.text(&b, len(g.Next) > 0)
	return b.String()
}

// Write writes the diagnosis as text for operators.
func (g *Guest) Write(w io.Writer) error {
	_, err := io.WriteString(w, g.String())
	return err
}

// String returns the diagnosis as text for operators.
func (m *Migration) String() string {
	var b strings.Builder
	b.WriteString(m.Explanation.String())
	m.Controller.text(&b, false)
	return b.String()
}

// Write writes the diagnosis as text for operators.
func (m *Migration) Write(w io.Writer) error {
	_, err := io.WriteString(w, m.String())
	return err
}

// String returns the diagnosis as text for operators.
func (n *Node) String() string {
	var b strings.Builder
	writeLine(&b, "Node", "%s, %s", n.Name, n.Ready)
	switch {
	case n.Heartbeat == nil:
		writeLine(&b, "Heartbeat", "none")
	case n.Silent:
		writeLine(&b, "Heartbeat", "%s (%s ago): unresponsive", n.Heartbeat.UTC().Format(time.RFC3339), n.At.Sub(*n.Heartbeat).Round(time.Second))
	default:
		writeLine(&b, "Heartbeat", "%s (%s ago)", n.Heartbeat.UTC().Format(time.RFC3339), n.At.Sub(*n.Heartbeat).Round(time.Second))
	}
	takes := "yes"
	switch {
	case n.Cordoned:
		takes = "no, it is cordoned"
	case !n.Schedulable:
		takes = "no, by its label kubevirt.io/schedulable"
	}
	writeLine(&b, "Schedulable", "%s", takes)
	for _, t := range n.Taints {
		writeLine(&b, "Taint", "%s", t)
	}
	counts := make([]string, 0, len(n.Guests))
	for _, g := range n.Guests {
		counts = append(counts, fmt.Sprintf("%d %s", g.Guests, g.Phase))
	}
	writeLine(&b, "Guests", "%s", cmp.Or(strings.Join(counts, ", "), "none"))
	writeLine(&b, "Leaving", "%s: %s", n.Outbound.text(), cmp.Or(few(n.Leaving), "nobody"))
	writeLine(&b, "Entering", "%s: %s", n.Inbound.text(), cmp.Or(few(n.Entering), "nobody"))
	writeLine(&b, "Cluster", "%s", n.Cluster.text())
	if len(n.Findings) == 0 {
		writeLine(&b, "Findings", "none")
	}
	for i := range n.Findings {
		b.WriteString(n.Findings[i].String())
	}
	n.Controller.text(&b, false)
	return b.String()
}

// Write writes the diagnosis as text for operators.
func (n *Node) Write(w io.Writer) error {
	_, err := io.WriteString(w, n.String())
	return err
}

func (s Slots) text() string { return fmt.Sprintf("%d of %d slots in use", s.Used, s.Limit) }
