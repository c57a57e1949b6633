// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"fmt"
	"strings"

	v1 "kubevirt.io/api/core/v1"
)

const (
	// namedGroups is how many groups of nodes the text names, namedLabels how many labels of
	// each. The rest is counted.
	namedGroups = 6
	namedLabels = 3
)

// Text explains the fitness in the scheduler's form: the number of candidates, and the number
// of excluded nodes per reason.
func (f Fitness) Text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d of %d nodes", len(f.Candidates), f.Nodes)
	sep := ": "
	for i, e := range f.Excluded {
		if i == namedGroups {
			rest := 0
			for _, e := range f.Excluded[i:] {
				rest += len(e.Nodes)
			}
			fmt.Fprintf(&b, ", %d are excluded for %d other reasons", rest, len(f.Excluded)-i)
			break
		}
		b.WriteString(sep + e.Text())
		sep = ", "
	}
	return b.String()
}

// Text returns the number of nodes of the group and why they are excluded.
func (e Exclusion) Text() string {
	n := len(e.Nodes)
	form := func(one, many string) string {
		if n == 1 {
			return fmt.Sprintf("1 %s", one)
		}
		return fmt.Sprintf("%d %s", n, many)
	}
	what := e.what()
	switch e.Rule {
	case RuleSource:
		return form("is the source", "are the source")
	case RuleNodeSelector:
		return form("lacks ", "lack ") + what
	case ruleNodeAffinity:
		return form("does not match the node affinity", "do not match the node affinity")
	case ruleNoAgent:
		return form("has", "have") + " no active node agent (label " + what + ")"
	case ruleNotReady:
		return form("is not ready", "are not ready")
	case ruleCordoned:
		return form("is cordoned", "are cordoned")
	case ruleTaint:
		return form("has", "have") + " the taint " + what
	case ruleTooSmall:
		return form("is", "are") + " too small (" + what + ")"
	case ruleFull:
		return form("has", "have") + " insufficient free resources (" + what + ")"
	}
	return form("is", "are") + " excluded by " + string(e.Rule)
}

func (e Exclusion) what() string {
	if e.Rule != RuleNodeSelector {
		return strings.Join(e.What, ", ")
	}
	text := "label "
	if len(e.What) > 1 {
		text = "labels "
	}
	if more := len(e.What) - namedLabels; more > 0 {
		return fmt.Sprintf("%s%s and %d more", text, strings.Join(e.What[:namedLabels], ", "), more)
	}
	return text + strings.Join(e.What, ", ")
}

// remedies holds what to do where nodes lack a label, by the label's prefix. The first
// match counts.
var remedies = []struct{ label, text string }{
	{v1.SupportedHostModelMigrationCPU, hostModelRemedy},
	{v1.CPUFeatureLabel, hostModelRemedy},
	{v1.CPUModelLabel, "add a node that supports the CPU model spec.domain.cpu.model, or restart the VMI with a model that more nodes support"},
	{v1.CPUModelVendorLabel, "a running VMI cannot change the CPU vendor: add a node of the same vendor"},
	{v1.SupportedMachineTypeLabel, "no other node's QEMU supports the VMI's machine type: update the nodes, or restart the VMI with another machine type"},
	{v1.HypervLabel, "add a node that supports the VMI's Hyper-V features"},
	{"scheduling.node.kubevirt.io/tsc-frequency", "add a node with the same or a scalable TSC frequency"},
	{v1.RealtimeLabel, "add a node that is configured for realtime VMIs"},
	{v1.CPUManager, "add a node with the static CPU manager policy, which dedicated CPUs require"},
	{v1.DeprecatedCPUManager, "add a node with the static CPU manager policy, which dedicated CPUs require"},
	{"kubernetes.io/hostname", "the node selector binds the VMI to one node: remove the label from the VMI's or the migration's selector"},
	{"kubernetes.io/arch", "add a node of the VMI's architecture"},
}

const hostModelRemedy = "the VMI keeps the CPU model labels of the node on which it was started (host-model): " +
	"restart the VMI to renew them, or set a named CPU model that all nodes support"

// Remedies returns what would make more nodes fit, as far as labels exclude them; those for
// the most nodes come first.
func (f Fitness) Remedies() []string {
	var out []string
	seen := map[string]bool{}
	for _, e := range f.Excluded {
		if e.Rule != RuleNodeSelector {
			continue
		}
		for _, label := range e.What {
			text := remedy(label)
			if !seen[text] {
				seen[text] = true
				out = append(out, text)
			}
		}
	}
	return out
}

func remedy(label string) string {
	for _, r := range remedies {
		if strings.HasPrefix(label, r.label) {
			return r.text
		}
	}
	return "label another node " + label
}
