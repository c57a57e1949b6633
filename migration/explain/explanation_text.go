// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/internal/plaintext"
	"github.com/virtloom/virtloom/migration"
)

// String returns the explanation as text for operators.
func (e Explanation) String() string {
	var b strings.Builder
	e.text(&b)
	return b.String()
}

// Write writes the explanation as text for operators.
func (e Explanation) Write(w io.Writer) error {
	_, err := io.WriteString(w, e.String())
	return err
}

func (e Explanation) text(b *strings.Builder) {
	line := func(label, format string, args ...any) {
		plaintext.Put(b, "%-13s "+format, append([]any{label}, args...)...)
	}
	line("Migration", "%s/%s of VMI %s", e.Namespace, e.Migration, e.VMI)
	line("Phase", "%s, since %s (%s)", phaseText(e.Phase), clock(e.Since), ago(e.At.Sub(e.Since)))
	switch text := reasonText(e.Reason, e.Message); {
	case e.Responsible == handoff.ByNobody:
		line("Ended", "%s", text)
	case text != "":
		line("Waits for", "%s: %s", e.Responsible, text)
	default:
		line("Waits for", "%s", e.Responsible)
	}
	if e.Unblock != "" {
		line("Goes on when", "%s", e.Unblock)
	}
	if e.Deadline != nil {
		line("Deadline", "%s (in %s), then it ends %s", clock(*e.Deadline), ago(e.Deadline.Sub(e.At)), e.lateEnd())
	}
	if e.Queue != nil {
		line("Queue", "place %d of %d", e.Queue.Position, e.Queue.Waiting)
	}
	for _, o := range e.Blockers {
		at := ""
		if o.Node != "" {
			at = " of node " + o.Node
		}
		line("Limit", "%s%s: %d of %d in use, by %s", o.Limit, at, o.Used, o.Max, nameList(o.Holders))
	}
	for _, s := range e.Next {
		line("Next write", "%s: %s", s.Kind, s.Why)
	}
	if t := e.Targets; t != nil {
		line("Targets", "%s", t.Summary)
		if len(t.Candidates) > 0 {
			line("", "could go to %s", nameList(t.Candidates))
		}
		for _, r := range t.Remedies {
			line("", "remedy: %s", r)
		}
	}
	e.checksText(b)
	e.policyText(b)
	e.attemptsText(b)
}

// lateEnd returns how the migration ends at its deadline.
func (e Explanation) lateEnd() string {
	if e.Overdue == "" {
		return "as " + string(v1.MigrationSucceeded)
	}
	return "with " + string(e.Overdue)
}

func (e Explanation) checksText(b *strings.Builder) {
	if len(e.Checks) == 0 {
		return
	}
	if !slices.ContainsFunc(e.Checks, func(c CheckResult) bool { return c.Blocked }) {
		plaintext.Put(b, "%-13s none blocks", "Checks")
		return
	}
	plaintext.Put(b, "%-13s blocking:", "Checks")
	for _, c := range e.Checks {
		if !c.Blocked {
			continue
		}
		kind := "permanent"
		if c.Temporary {
			kind = "temporary"
		}
		text := c.Message
		if c.Unblock != "" {
			text += " (" + c.Unblock + ")"
		}
		if c.Until != nil {
			text += ", until " + clock(*c.Until)
		}
		plaintext.Put(b, "  %s: %s: %s: %s", c.Check, kind, c.Reason, text)
	}
}

func (e Explanation) policyText(b *strings.Builder) {
	if p := e.Policy; p != nil {
		name := p.Name
		if name == "" {
			name = "none"
		}
		plaintext.Put(b, "%-13s %s: %s", "Policy", name, p.Why)
		for _, l := range p.Rejected {
			plaintext.Put(b, "  not %s: %s", l.Name, l.Why)
		}
	}
	for _, o := range e.Options {
		def := o.Default
		if def == "" {
			def = "unset"
		}
		plaintext.Put(b, "%-13s %s = %s (default %s)", "Option", o.Name, o.Value, def)
	}
}

func (e Explanation) attemptsText(b *strings.Builder) {
	for _, a := range e.Attempts {
		by := "by a user"
		if a.Automatic {
			by = "automatic"
		}
		path := ""
		if a.TargetNode != "" {
			path = fmt.Sprintf(", %s to %s", a.SourceNode, a.TargetNode)
		}
		why := reasonText(a.Reason, a.Message)
		if why != "" {
			why = ": " + why
		}
		plaintext.Put(b, "%-13s %s, %s%s: %s at %s%s", "Other", a.Name, by, path, phaseText(a.Phase), clock(a.At), why)
	}
}

func phaseText(p v1.VirtualMachineInstanceMigrationPhase) string {
	if p == v1.MigrationPhaseUnset {
		return "(new)"
	}
	return string(p)
}

func reasonText(r migration.Reason, message string) string {
	if r == "" {
		return message
	}
	return string(r) + ": " + message
}

// nameList returns the first few names and the number of the others.
func nameList(names []string) string {
	const shown = 5
	switch {
	case len(names) == 0:
		return "nobody"
	case len(names) <= shown:
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:shown], ", "), len(names)-shown)
}

func clock(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// ago rounds a time span for display.
func ago(d time.Duration) string { return d.Round(time.Second).String() }
