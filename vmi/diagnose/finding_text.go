// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/internal/plaintext"
	"github.com/virtloom/virtloom/vmi"
)

// String returns the diagnosis as text for operators.
func (d Diagnosis) String() string {
	var b strings.Builder
	line := func(label, format string, args ...any) {
		plaintext.Put(&b, "%-13s "+format, append([]any{label}, args...)...)
	}
	line("Guest", "%s/%s", d.Namespace, d.VMI)
	line("Phase", "%s%s", cmp.Or(string(d.Phase), "(new)"), d.sinceText())
	if d.Becomes != v1.VmPhaseUnset {
		line("", "becomes %s in the next pass", d.Becomes)
	}
	line("Node", "%s", cmp.Or(d.Node, "none yet"))
	line("Lease", "%s", d.Lease)
	line("Pod", "%s", d.Pod.text())
	for _, s := range d.Next {
		line("Next write", "%s: %s", s.Verb, s.Why)
	}
	if len(d.Findings) == 0 {
		line("Findings", "none")
	}
	for i := range d.Findings {
		d.Findings[i].text(&b, d.At)
	}
	return b.String()
}

// Write writes the diagnosis as text for operators.
func (d Diagnosis) Write(w io.Writer) error {
	_, err := io.WriteString(w, d.String())
	return err
}

func (d Diagnosis) sinceText() string {
	if d.Since == nil {
		return ""
	}
	return fmt.Sprintf(", since %s (%s)", d.Since.UTC().Format(time.RFC3339), d.At.Sub(*d.Since).Round(time.Second))
}

func (p *PodStanding) text() string {
	if p == nil {
		return "none"
	}
	is := "not ready"
	switch {
	case p.Ending:
		is = "ending"
	case p.Ready:
		is = "ready"
	}
	return fmt.Sprintf("%s, %s, %s, %s", p.Name, cmp.Or(p.Phase, "new"), is, podText(p.Node))
}

// String returns the finding as text for operators: observation, why and remedy, a line each.
func (f Finding) String() string { return f.TextAt(time.Time{}) }

// TextAt returns the finding as String does, with the time that is left at now until its deadline.
func (f Finding) TextAt(now time.Time) string {
	var b strings.Builder
	f.text(&b, now)
	return b.String()
}

// text writes the finding with its deadline relative to now.
func (f Finding) text(b *strings.Builder, now time.Time) {
	kind := string(f.Kind)
	if f.Reason != "" && f.Reason != kind {
		kind += " (" + f.Reason + ")"
	}
	plaintext.Put(b, "%-13s %s: %s", "Finding", kind, f.What)
	for _, l := range f.Details {
		plaintext.Put(b, "  %-11s %s", "", l)
	}
	plaintext.Put(b, "  %-11s %s", "why", f.Why)
	if f.Until != "" {
		until := fmt.Sprintf("%s, by %s", f.Until, cmp.Or(string(f.Responsible), "nobody"))
		if f.Deadline != nil {
			until += ", at the latest " + f.Deadline.UTC().Format(time.RFC3339)
			if !now.IsZero() {
				until += fmt.Sprintf(" (in %s)", f.Deadline.Sub(now).Round(time.Second))
			}
		}
		plaintext.Put(b, "  %-11s %s", "until", until)
	}
	plaintext.Put(b, "  %-11s %s", "remedy", f.Remedy)
}

// computeContainer is the container that runs QEMU.
const computeContainer = "compute"

func podStanding(p *corev1.Pod) *PodStanding {
	if p == nil {
		return nil
	}
	return &PodStanding{Name: p.Name, Node: p.Spec.NodeName, Phase: string(p.Status.Phase), Ready: vmi.PodReady(p), Ending: endingPod(p)}
}

// podEnd describes how the Pod ended.
func podEnd(p *corev1.Pod) string {
	text := string(p.Status.Phase)
	for i := range p.Status.ContainerStatuses {
		if c := &p.Status.ContainerStatuses[i]; c.Name == computeContainer && c.State.Terminated != nil {
			text += fmt.Sprintf(", exit code %d", c.State.Terminated.ExitCode)
		}
	}
	if p.Status.Reason != "" {
		text += ", " + p.Status.Reason + ": " + p.Status.Message
	}
	return text
}

// containers returns one line for each container of the Pod that does not run as it should.
func containers(p *corev1.Pod) []string {
	var lines []string
	add := func(all []corev1.ContainerStatus, initial bool) {
		for i := range all {
			if text := containerText(&all[i], initial); text != "" {
				lines = append(lines, fmt.Sprintf("container %s: %s", all[i].Name, text))
			}
		}
	}
	add(p.Status.InitContainerStatuses, true)
	add(p.Status.ContainerStatuses, false)
	return lines
}

// containerText describes why a container does not run; empty if it runs.
func containerText(c *corev1.ContainerStatus, initial bool) string {
	text := ""
	switch {
	case c.State.Waiting != nil:
		text = "waiting: " + strings.TrimSuffix(c.State.Waiting.Reason+": "+c.State.Waiting.Message, ": ")
	case c.State.Terminated != nil && (!initial || c.State.Terminated.ExitCode != 0):
		text = fmt.Sprintf("ended with exit code %d: %s", c.State.Terminated.ExitCode, strings.TrimSuffix(c.State.Terminated.Reason+": "+c.State.Terminated.Message, ": "))
	case c.State.Running != nil && !c.Ready && !initial && c.Name != computeContainer:
		text = "running and not ready"
	}
	if last := c.LastTerminationState.Terminated; text != "" && last != nil {
		text += fmt.Sprintf(" (restarted %d times, last with exit code %d)", c.RestartCount, last.ExitCode)
	}
	return text
}
