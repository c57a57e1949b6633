// SPDX-License-Identifier: Apache-2.0

package migrationsim

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/virtloom/virtloom/migration/placement"
)

// placing is a target Pod that is not bound to a node yet.
type placing struct {
	guest  *simulatedGuest
	pod    *corev1.Pod
	source string
	queued bool
}

// scheduler places target Pods.
type scheduler struct{ *Sim }

// adoptPod adds a target Pod that existed at the start.
func (s scheduler) adoptPod(g *simulatedGuest, p *corev1.Pod) {
	pl := &placing{guest: g, pod: p, source: g.VMI.Status.NodeName}
	switch {
	case p.Spec.NodeName == "":
		s.schedule(pl)
	case p.Status.Phase == corev1.PodPending:
		s.usage.Add(p.Spec.NodeName, p)
		kubelet(s).start(pl)
	default:
		s.usage.Add(p.Spec.NodeName, p)
	}
}

// schedule runs the scheduler for the Pod.
func (s scheduler) schedule(p *placing) {
	if p.queued {
		return
	}
	p.queued = true
	s.after(s.o.Latency.Schedule, func() {
		p.queued = false
		s.place(p)
	})
}

// place binds the Pod to the least loaded node that fits, or reports that none does.
func (s scheduler) place(p *placing) {
	if p.pod.DeletionTimestamp != nil || !slices.Contains(p.guest.pods, p.pod) {
		return
	}
	fits := s.usage.Fit(p.pod, p.source, s.nodes)
	if len(fits.Candidates) == 0 {
		s.homeless = append(s.homeless, p)
		s.reportUnschedulable(p, fits)
		return
	}
	best, least, liked := "", 0.0, 0
	for _, name := range fits.Candidates {
		load, likes := s.load(name), preference(p.pod, s.byName[name].obj)
		if best == "" || likes > liked || likes == liked && load < least {
			best, least, liked = name, load, likes
		}
	}
	p.pod.Spec.NodeName = best
	p.pod.Status.Conditions = nil
	s.usage.Add(best, p.pod)
	controller(s).changed(p.guest)
	kubelet(s).start(p)
}

// preference returns the node's weight in the Pod's preferred node affinity.
func preference(p *corev1.Pod, n *corev1.Node) int {
	if p.Spec.Affinity == nil || p.Spec.Affinity.NodeAffinity == nil {
		return 0
	}
	sum := 0
	for _, t := range p.Spec.Affinity.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution {
		if prefers(&t.Preference, n) {
			sum += int(t.Weight)
		}
	}
	return sum
}

// prefers reports whether the node matches the term, as far as its name and the values of
// labels are concerned.
func prefers(t *corev1.NodeSelectorTerm, n *corev1.Node) bool {
	for _, f := range t.MatchFields {
		if slices.Contains(f.Values, n.Name) != (f.Operator == corev1.NodeSelectorOpIn) {
			return false
		}
	}
	for _, e := range t.MatchExpressions {
		have, there := n.Labels[e.Key]
		ok := there && slices.Contains(e.Values, have)
		switch e.Operator {
		case corev1.NodeSelectorOpNotIn:
			ok = !ok
		case corev1.NodeSelectorOpExists:
			ok = there
		case corev1.NodeSelectorOpDoesNotExist:
			ok = !there
		}
		if !ok {
			return false
		}
	}
	return true
}

func (s scheduler) reportUnschedulable(p *placing, f placement.Fitness) {
	c := corev1.PodCondition{
		Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: f.Text(),
	}
	if len(p.pod.Status.Conditions) == 1 && p.pod.Status.Conditions[0].Message == c.Message {
		return
	}
	p.pod.Status.Conditions = []corev1.PodCondition{c}
	controller(s).changed(p.guest)
}

// load returns the requested share of the node, averaged over memory and CPU.
func (s scheduler) load(name string) float64 {
	free := s.byName[name].obj.Status.Allocatable
	used := s.usage[name]
	sum := 0.0
	for _, r := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		have, taken := free[r], used[r]
		if total := have.AsApproximateFloat64(); total > 0 {
			sum += taken.AsApproximateFloat64() / total
		}
	}
	return sum / 2
}

// retryPods runs the scheduler for unschedulable Pods again, and the controller for those that
// could not be created: resources were freed.
func (s scheduler) retryPods() {
	waiting := s.homeless
	s.homeless = nil
	for _, p := range waiting {
		s.schedule(p)
	}
	refused := s.turnedDown
	s.turnedDown = nil
	for _, j := range refused {
		controller(s).wake(j)
	}
}

// Cordon makes a node unschedulable, Uncordon ends that.
func (s *Sim) Cordon(name string) error { return s.cordon(name, true) }

// Uncordon makes a node schedulable again.
func (s *Sim) Uncordon(name string) error { return s.cordon(name, false) }

func (s *Sim) cordon(name string, on bool) error {
	n, known := s.byName[name]
	if !known {
		return fmt.Errorf("migrationsim: node %q does not exist", name)
	}
	n.obj.Spec.Unschedulable = on
	if !on {
		scheduler{s}.retryPods()
	}
	return nil
}
