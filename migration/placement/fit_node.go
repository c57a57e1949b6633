// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	podresource "k8s.io/component-helpers/resource"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/virtloom/virtloom/internal/launcherpod"
)

// NodeUsage holds what the Pods of each node request, by node name; "pods" is their number.
// Nil means unknown.
type NodeUsage map[string]corev1.ResourceList

// NewNodeUsage adds up the Pods that are bound to nodes and have not ended.
func NewNodeUsage(running []*corev1.Pod) NodeUsage {
	u := NodeUsage{}
	for _, p := range running {
		if p.Spec.NodeName != "" && !launcherpod.Terminal(p) {
			u.Add(p.Spec.NodeName, p)
		}
	}
	return u
}

// Add counts the Pod as if it were on the node.
func (u NodeUsage) Add(node string, pod *corev1.Pod) {
	have := u[node]
	if have == nil {
		have = corev1.ResourceList{}
		u[node] = have
	}
	for name, q := range needs(pod) {
		sum := have[name]
		sum.Add(q)
		have[name] = sum
	}
}

// Remove counts the Pod as if it had left the node, after Add.
func (u NodeUsage) Remove(node string, pod *corev1.Pod) {
	have := u[node]
	for name, q := range needs(pod) {
		if rest, found := have[name]; found {
			rest.Sub(q)
			have[name] = rest
		}
	}
}

// needs returns what a Pod takes of a node, including the Pod itself.
func needs(pod *corev1.Pod) corev1.ResourceList {
	out := podresource.PodRequests(pod, podresource.PodResourcesOptions{})
	out[corev1.ResourcePods] = *resource.NewQuantity(1, resource.DecimalSI)
	return out
}

func newFitting(pod *corev1.Pod, source string, u NodeUsage) *fitting {
	f := &fitting{
		source: source, selector: newSelector(pod), tolerations: pod.Spec.Tolerations, usage: u,
		groups: map[group]*Exclusion{},
	}
	for name, q := range needs(pod) {
		if !q.IsZero() {
			f.requests = append(f.requests, request{name, q})
		}
	}
	slices.SortFunc(f.requests, func(a, b request) int { return cmp.Compare(a.name, b.name) })
	f.lacks = make([]byte, (len(f.selector)+7)/8)
	if a := pod.Spec.Affinity; a != nil && a.NodeAffinity != nil {
		if required := a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution; required != nil {
			f.affinity = nodeaffinity.NewLazyErrorNodeSelector(required)
		}
	}
	return f
}

// request is the Pod's request for one resource.
type request struct {
	name corev1.ResourceName
	q    resource.Quantity
}

// ready reports whether the node is ready; a node without the condition counts as ready.
func ready(n *corev1.Node) bool {
	for i := range n.Status.Conditions {
		if c := &n.Status.Conditions[i]; c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return true
}

// taint returns the first taint that excludes the Pod, or nil.
func (f *fitting) taint(n *corev1.Node) *corev1.Taint {
	for i := range n.Spec.Taints {
		t := &n.Spec.Taints[i]
		if t.Effect != corev1.TaintEffectPreferNoSchedule && !f.tolerates(t) {
			return t
		}
	}
	return nil
}

// tolerates reports whether the Pod tolerates the taint. An unknown operator counts as
// tolerating: the scheduler decides.
func (f *fitting) tolerates(t *corev1.Taint) bool {
	for i := range f.tolerations {
		have := &f.tolerations[i]
		if have.Effect != "" && have.Effect != t.Effect || have.Key != "" && have.Key != t.Key {
			continue
		}
		switch have.Operator {
		case "", corev1.TolerationOpEqual:
			if have.Value == t.Value {
				return true
			}
		default:
			return true
		}
	}
	return false
}

// lacking returns the first resource of which the node has too little. A node that reports no
// allocatable resources is large enough.
func (f *fitting) lacking(n *corev1.Node) (Rule, string) {
	if len(n.Status.Allocatable) == 0 {
		return "", ""
	}
	used := f.usage[n.Name]
	full := ""
	for i := range f.requests {
		r := &f.requests[i]
		free := n.Status.Allocatable[r.name]
		if r.name == corev1.ResourcePods && free.IsZero() {
			continue
		}
		if free.Cmp(r.q) < 0 {
			return ruleTooSmall, string(r.name)
		}
		if taken, found := used[r.name]; found && full == "" {
			free = free.DeepCopy()
			if free.Sub(taken); free.Cmp(r.q) < 0 {
				full = string(r.name)
			}
		}
	}
	if full != "" {
		return ruleFull, full
	}
	return "", ""
}
