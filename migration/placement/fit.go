// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"
)

// Rule is a reason why a node cannot take a Pod.
type Rule string

// The rules in order of evaluation; the first that applies counts.
const (
	// RuleSource: the VMI is already on this node, and its Pods repel each other.
	RuleSource Rule = "Source"
	// RuleNodeSelector: the node lacks labels of spec.nodeSelector.
	RuleNodeSelector Rule = "NodeSelector"
	// ruleNodeAffinity: no term of the required node affinity matches.
	ruleNodeAffinity Rule = "NodeAffinity"
	// ruleNoAgent: the node is not labeled kubevirt.io/schedulable, so no node agent
	// serves it now, and the labels that the agent writes may be stale or missing.
	ruleNoAgent Rule = "NoAgent"
	// ruleNotReady: the node's condition Ready is not True.
	ruleNotReady Rule = "NotReady"
	// ruleCordoned: the node is unschedulable.
	ruleCordoned Rule = "Cordoned"
	// ruleTaint: the Pod does not tolerate a taint.
	ruleTaint Rule = "Taint"
	// ruleTooSmall: the node's capacity is too small, even when it is empty.
	ruleTooSmall Rule = "TooSmall"
	// ruleFull: the node's free capacity is too small.
	ruleFull Rule = "Full"
)

// rules are all rules in order.
var rules = []Rule{
	RuleSource, RuleNodeSelector, ruleNodeAffinity, ruleNoAgent, ruleNotReady, ruleCordoned, ruleTaint, ruleTooSmall, ruleFull,
}

// Exclusion is a group of nodes excluded for the same reason.
type Exclusion struct {
	// Rule excludes the nodes.
	Rule Rule
	// What are the missing labels (key=value), the taint, or the resources.
	What []string
	// Nodes are the names, sorted.
	Nodes []string
}

// Fitness reports which nodes could take a Pod.
type Fitness struct {
	// Nodes is how many nodes were looked at.
	Nodes int
	// Candidates are the nodes that no rule excludes, sorted by name.
	Candidates []string
	// Excluded are the other nodes, by the order of the rules, then the larger group first.
	Excluded []Exclusion
}

// Static reports whether no node can take the Pod until labels change or nodes are
// added: static properties exclude all nodes, load or state none. Without any node the
// result is unknown, so not static.
func (f Fitness) Static() bool {
	if len(f.Candidates) > 0 || f.Nodes == 0 {
		return false
	}
	return !slices.ContainsFunc(f.Excluded, func(e Exclusion) bool { return !e.Rule.static() })
}

// static reports whether only a change of the node's labels lifts the rule.
func (r Rule) static() bool { return r == RuleSource || r == RuleNodeSelector || r == ruleNodeAffinity }

// Fit judges which of the nodes could take the target Pod of a VMI on the node source. It is
// pure, and judges what decides most often; volumes bound to nodes, topology spread,
// inter-Pod rules other than those of the VMI itself and device claims are left to the
// scheduler, which has the last word.
//
// Without the load of the nodes only a node's capacity is judged; see [NodeUsage.Fit].
func Fit(pod *corev1.Pod, source string, nodes []*corev1.Node) Fitness {
	return NodeUsage(nil).Fit(pod, source, nodes)
}

// Fit is the function [Fit] for nodes with this load.
func (u NodeUsage) Fit(pod *corev1.Pod, source string, nodes []*corev1.Node) Fitness {
	f := newFitting(pod, source, u)
	for _, n := range nodes {
		f.judge(n)
	}
	return f.fitness(len(nodes))
}

// fitting is one run of Fit.
type fitting struct {
	source      string
	selector    []label
	affinity    matcher
	tolerations []corev1.Toleration
	requests    []request
	usage       NodeUsage

	candidates []string
	groups     map[group]*Exclusion
	// lacks is a set of indexes of selector, as bits.
	lacks []byte
}

// label is an entry of a node selector.
type label struct {
	key, value string
	// agents says that the node agent writes it.
	agents bool
}

// matcher is a required node affinity.
type matcher interface {
	Match(node *corev1.Node) (bool, error)
}

// group is a key that distinguishes nodes by why they are excluded.
type group struct {
	rule Rule
	what string
}

func newSelector(pod *corev1.Pod) []label {
	out := make([]label, 0, len(pod.Spec.NodeSelector))
	for k, v := range pod.Spec.NodeSelector {
		out = append(out, label{key: k, value: v, agents: strings.Contains(k, agentLabels)})
	}
	slices.SortFunc(out, func(a, b label) int { return cmp.Compare(a.key, b.key) })
	return out
}

// agentLabels is the common prefix of the labels by which a node agent reports the node's
// capabilities.
const agentLabels = "kubevirt.io/"

// judge adds the node to the candidates or to the group of its exclusion.
func (f *fitting) judge(n *corev1.Node) {
	rule, what := f.excludes(n)
	if rule == "" {
		f.candidates = append(f.candidates, n.Name)
		return
	}
	var e *Exclusion
	if rule == RuleNodeSelector {
		if e = f.groups[group{rule, string(f.lacks)}]; e == nil {
			e = &Exclusion{Rule: rule, What: f.missing()}
			f.groups[group{rule, string(f.lacks)}] = e
		}
	} else if e = f.groups[group{rule, what}]; e == nil {
		e = &Exclusion{Rule: rule}
		if what != "" {
			e.What = []string{what}
		}
		f.groups[group{rule, what}] = e
	}
	e.Nodes = append(e.Nodes, n.Name)
}

// excludes returns the first rule that excludes the node, and its details; those of a
// selector are left in f.lacks.
func (f *fitting) excludes(n *corev1.Node) (Rule, string) {
	served, label := f.served(n)
	switch {
	case n.Name == f.source:
		return RuleSource, ""
	case !f.selects(n, served):
		return RuleNodeSelector, ""
	case !f.matches(n):
		return ruleNodeAffinity, ""
	case !served:
		return ruleNoAgent, label
	case !ready(n):
		return ruleNotReady, ""
	case n.Spec.Unschedulable && !f.tolerates(&corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}):
		return ruleCordoned, ""
	}
	if t := f.taint(n); t != nil {
		return ruleTaint, t.ToString()
	}
	return f.lacking(n)
}

// served reports whether a node agent serves the node, as far as the Pod requires it.
func (f *fitting) served(n *corev1.Node) (bool, string) {
	for _, l := range f.selector {
		if l.key == v1.NodeSchedulable {
			return n.Labels[l.key] == l.value, l.key + "=" + l.value
		}
	}
	return true, ""
}

// selects records the labels that the node lacks and reports whether it lacks none. Without a
// node agent its labels are not counted.
func (f *fitting) selects(n *corev1.Node, served bool) bool {
	clear(f.lacks)
	all := true
	for i, l := range f.selector {
		if l.key == v1.NodeSchedulable || l.agents && !served {
			continue
		}
		if have, found := n.Labels[l.key]; !found || have != l.value {
			f.lacks[i/8] |= 1 << (i % 8)
			all = false
		}
	}
	return all
}

// missing returns the labels in f.lacks.
func (f *fitting) missing() []string {
	var out []string
	for i, l := range f.selector {
		if f.lacks[i/8]&(1<<(i%8)) != 0 {
			out = append(out, l.key+"="+l.value)
		}
	}
	return out
}

func (f *fitting) matches(n *corev1.Node) bool {
	if f.affinity == nil {
		return true
	}
	ok, err := f.affinity.Match(n)
	return ok && err == nil
}

// fitness sorts the result.
func (f *fitting) fitness(nodes int) Fitness {
	out := Fitness{Nodes: nodes, Candidates: f.candidates}
	slices.Sort(out.Candidates)
	for _, e := range f.groups {
		slices.Sort(e.Nodes)
		out.Excluded = append(out.Excluded, *e)
	}
	slices.SortFunc(out.Excluded, func(a, b Exclusion) int {
		return cmp.Or(
			cmp.Compare(slices.Index(rules, a.Rule), slices.Index(rules, b.Rule)),
			cmp.Compare(len(b.Nodes), len(a.Nodes)), slices.Compare(a.What, b.What),
		)
	})
	return out
}
