// SPDX-License-Identifier: Apache-2.0

package migration

import (
	"fmt"
	"strings"

	v1 "kubevirt.io/api/core/v1"
)

const (
	// namedGroups is how many groups of nodes are told, namedLabels how many labels of
	// one. The rest is counted.
	namedGroups = 6
	namedLabels = 3
)

// Text explains the fitness like the scheduler does: how many nodes are left of how many,
// and how many are out for which reason.
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

// Text counts the nodes of the group and says why they are excluded.
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
	case RuleNodeAffinity:
		return form("does not match the node affinity", "do not match the node affinity")
	case RuleNoAgent:
		return form("has", "have") + " no node agent at work (label " + what + ")"
	case RuleNotReady:
		return form("is not ready", "are not ready")
	case RuleCordoned:
		return form("is cordoned", "are cordoned")
	case RuleTaint:
		return form("has", "have") + " the taint " + what
	case RuleTooSmall:
		return form("is", "are") + " too small (" + what + ")"
	case RuleFull:
		return form("has", "have") + " not enough left (" + what + ")"
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

// remedies say what can be done where nodes lack a label, by how the label begins. The
// first that fits counts.
var remedies = []struct{ label, text string }{
	{v1.SupportedHostModelMigrationCPU, hostModelRemedy},
	{v1.CPUFeatureLabel, hostModelRemedy},
	{v1.CPUModelLabel, "another node must offer the CPU model that spec.domain.cpu.model names, or the guest must be restarted with one that more nodes offer"},
	{v1.CPUModelVendorLabel, "a running guest cannot change the CPU vendor: add a node of the same vendor"},
	{v1.SupportedMachineTypeLabel, "no other node's QEMU knows the guest's machine type: update the nodes, or restart the guest with another machine type"},
	{v1.HypervLabel, "the guest's Hyper-V features need a node that has them"},
	{"scheduling.node.kubevirt.io/tsc-frequency", "the guest's clock needs a node with the same or a scalable TSC frequency"},
	{v1.RealtimeLabel, "add a node that is prepared for realtime guests"},
	{v1.CPUManager, "dedicated CPUs need another node with the static CPU manager policy"},
	{v1.DeprecatedCPUManager, "dedicated CPUs need another node with the static CPU manager policy"},
	{"kubernetes.io/hostname", "the node selector ties the guest to one node: take it out of the guest's or the migration's selector"},
	{"kubernetes.io/arch", "add a node of the guest's architecture"},
}

const hostModelRemedy = "the guest has the CPU of the node it was started on (host-model), labels that came from there are kept: " +
	"restart the guest to have them made anew, or give it a named CPU model that all nodes offer"

// Remedies says what would make more nodes fit, as far as labels are in the way; those
// that concern the most nodes come first.
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
