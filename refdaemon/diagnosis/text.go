// SPDX-License-Identifier: Apache-2.0

package diagnosis

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"time"
)

// String returns the diagnosis as text for operators: a tree of VM, VMI, Pod and migrations.
func (m *Machine) String() string {
	var b strings.Builder
	writeLine(&b, "VM", "%s/%s", m.Namespace, m.Name)
	writeLine(&b, "Status", "%s", cmp.Or(string(m.Status), "(new)"))
	if m.Becomes != "" {
		writeLine(&b, "", "becomes %s in the next pass", m.Becomes)
	}
	writeLine(&b, "Run strategy", "%s", cmp.Or(string(m.Strategy), "contradictory"))
	for _, line := range []struct{ label, text string }{{"Instance type", m.Instancetype}, {"Preference", m.Preference}} {
		if line.text != "" {
			writeLine(&b, line.label, "%s", line.text)
		}
	}
	if m.Failures > 0 {
		writeLine(&b, "Failures", "%d VMIs in a row have failed before they ran%s", m.Failures, m.retry())
	}
	for _, r := range m.Requests {
		writeLine(&b, "Request", "%s", r)
	}
	for _, s := range m.Next {
		writeLine(&b, "Next write", "%s %s: %s", s.Verb, s.Name, s.Why)
	}
	writeLine(&b, "Turn", "%s", m.Turn.text())
	if len(m.Findings) == 0 {
		writeLine(&b, "Findings", "none")
	}
	for i := range m.Findings {
		b.WriteString(m.Findings[i].TextAt(m.At))
	}
	m.vmi(&b)
	m.Controller.text(&b, len(m.Next) > 0)
	return b.String()
}

// vmi writes the diagnosis of the VMI, one level deeper.
func (m *Machine) vmi(b *strings.Builder) {
	if m.VMI == nil {
		writeLine(b, "VMI", "none")
		return
	}
	writeLine(b, "VMI", "%s, and below it its Pod and migrations", cmp.Or(string(m.VMI.Phase), "(new)"))
	var below strings.Builder
	m.VMI.text(&below)
	if m.VMI.Controller.Asked {
		m.VMI.Controller.text(&below, len(m.VMI.Next) > 0)
	}
	for line := range strings.Lines(below.String()) {
		b.WriteString("  " + line)
	}
}

func (m *Machine) retry() string {
	if m.RetryAt == nil {
		return ""
	}
	if left := m.RetryAt.Sub(m.At).Round(time.Second); left > 0 {
		return fmt.Sprintf("; the next start is at %s (in %s)", m.RetryAt.UTC().Format(time.RFC3339), left)
	}
	return "; the back-off ended at " + m.RetryAt.UTC().Format(time.RFC3339)
}

// Write writes the diagnosis as text for operators.
func (m *Machine) Write(w io.Writer) error {
	_, err := io.WriteString(w, m.String())
	return err
}

func (t *Turn) text() string {
	if t == nil {
		return "nobody: nothing is waited for"
	}
	text := string(t.Responsible)
	if t.Object != "" {
		text += ", for " + t.Object
	}
	if t.Until != "" {
		text += ", until " + t.Until
	}
	return text
}

// String returns the diagnosis as text for operators.
func (g *VMI) String() string {
	var b strings.Builder
	g.text(&b)
	g.Controller.text(&b, len(g.Next) > 0)
	return b.String()
}

// text writes all but the view of the controller.
func (g *VMI) text(b *strings.Builder) {
	b.WriteString(g.Diagnosis.String())
	for _, m := range g.Migrations {
		writeLine(b, "Migration", "%s: %s", m.Name, cmp.Or(string(m.Phase), "(new)"))
		writeLine(b, "", "waits for %s: %s", m.Responsible, strings.Trim(string(m.Reason)+": "+m.Message, ": "))
		if m.Unblock != "" {
			writeLine(b, "", "continues when %s", m.Unblock)
		}
	}
}

// Write writes the diagnosis as text for operators.
func (g *VMI) Write(w io.Writer) error {
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
	counts := make([]string, 0, len(n.VMIs))
	for _, g := range n.VMIs {
		counts = append(counts, fmt.Sprintf("%d %s", g.VMIs, g.Phase))
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
