// SPDX-License-Identifier: Apache-2.0

package migrationsim

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/migration"
	"github.com/virtloom/virtloom/migration/evacuation"
	"github.com/virtloom/virtloom/migration/placement"
)

// evacuator creates and cancels the migrations of VMIs that must leave their nodes.
type evacuator struct{ *Sim }

// Drain cordons the node and taints it, so that every VMI whose eviction strategy
// allows it leaves by a migration.
func (s *Sim) Drain(node string) error {
	if err := s.Cordon(node); err != nil {
		return err
	}
	n := s.byName[node].obj
	if !evacuation.Draining(n, s.o.Config.Cluster) {
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: evacuator{s}.drainTaint(), Effect: corev1.TaintEffectNoSchedule})
	}
	for _, g := range s.on(node) {
		evacuator{s}.evacuate(g)
	}
	return nil
}

// Undrain ends a drain: migrations that have not begun are canceled, and the node is schedulable
// again.
func (s *Sim) Undrain(node string) error {
	n, known := s.byName[node]
	if !known {
		return fmt.Errorf("migrationsim: node %q does not exist", node)
	}
	key := evacuator{s}.drainTaint()
	n.obj.Spec.Taints = slices.DeleteFunc(n.obj.Spec.Taints, func(t corev1.Taint) bool { return t.Key == key })
	for _, g := range s.on(node) {
		evacuator{s}.evacuate(g)
	}
	return s.Uncordon(node)
}

func (s evacuator) drainTaint() string {
	if c := s.o.Config.Cluster; c != nil && c.NodeDrainTaintKey != nil {
		return *c.NodeDrainTaintKey
	}
	return evacuation.DefaultDrainTaint
}

// Evict requests the eviction of the VMI's Pod, as a drain does or, with descheduler, as a
// descheduler does.
func (s *Sim) Evict(key types.NamespacedName, descheduler bool) (evacuation.EvictionAnswer, error) {
	g := s.guests[key]
	if g == nil {
		return evacuation.EvictionAnswer{}, fmt.Errorf("migrationsim: VMI %s does not exist", key)
	}
	pod := migration.CurrentPod(g.VMI, g.pods, "")
	if pod == nil {
		return evacuation.EvictionAnswer{}, fmt.Errorf("migrationsim: VMI %s has no Pod", key)
	}
	a := evacuation.Evict(evacuation.Eviction{
		Pod: pod, Candidate: evacuator{s}.standing(g), Descheduler: descheduler, Strategy: s.o.EvictionStrategy, Config: s.o.Config,
	}, s.clock.now)
	if a.Mark != nil {
		a.Mark.Apply(g.VMI)
		evacuator{s}.evacuate(g)
	}
	return a, nil
}

// Standings returns, for the VMIs on a node, what an evacuation decides about them.
func (s *Sim) Standings(node string) []evacuation.Standing {
	var out []evacuation.Standing
	for _, g := range s.on(node) {
		out = append(out, evacuator{s}.judge(g, node))
	}
	return out
}

// Fit returns which nodes could take the VMI now, if it were evacuated. It returns an error if its
// target Pod cannot be rendered.
func (s *Sim) Fit(key types.NamespacedName) (placement.Fitness, error) {
	g := s.guests[key]
	if g == nil {
		return placement.Fitness{}, fmt.Errorf("migrationsim: VMI %s does not exist", key)
	}
	m := &v1.VirtualMachineInstanceMigration{}
	m.Namespace, m.Name, m.UID, m.Spec.VMIName = key.Namespace, "plan", "plan", key.Name
	p, err := s.o.Render(g.VMI, m, migration.CurrentPod(g.VMI, g.pods, ""))
	if err != nil {
		return placement.Fitness{}, err
	}
	return s.usage.Fit(p, g.VMI.Status.NodeName, s.nodes), nil
}

// Guests returns the VMIs on a node in the order in which they were added.
func (s *Sim) Guests(node string) []types.NamespacedName {
	var keys []types.NamespacedName
	for _, g := range s.on(node) {
		keys = append(keys, g.key)
	}
	return keys
}

func (s evacuator) standing(g *simulatedGuest) evacuation.Candidate {
	all := make([]*v1.VirtualMachineInstanceMigration, 0, len(g.jobs))
	for _, j := range g.jobs {
		all = append(all, j.m)
	}
	return evacuation.Candidate{VMI: g.VMI, Migrations: all, Pods: g.pods}
}

func (s evacuator) judge(g *simulatedGuest, node string) evacuation.Standing {
	var obj *corev1.Node
	if n := s.byName[node]; n != nil {
		obj = n.obj
	}
	return evacuation.Evacuate(evacuation.Evacuation{
		Node: node, Draining: evacuation.Draining(obj, s.o.Config.Cluster), VMIs: []evacuation.Candidate{s.standing(g)},
		Strategy: s.o.EvictionStrategy, Fleet: "simulated", Config: s.o.Config,
	}, s.clock.now)[0]
}

// evacuate decides about the evacuation of the VMI from its node, and before that from the nodes
// that its migrations were to take it from.
func (s evacuator) evacuate(g *simulatedGuest) {
	g.judged = true
	here := g.VMI.Status.NodeName
	for _, j := range slices.Clone(g.jobs) {
		if node := j.m.Annotations[v1.EvacuationMigrationAnnotation]; node != "" && node != here && !j.m.IsFinal() {
			s.callOff(s.judge(g, node))
		}
	}
	d := s.judge(g, here)
	delete(s.leaving, g)
	switch {
	case d.Verb == evacuation.Create:
		s.fail(s.AddMigration(d.Migration, nil))
	case d.Verb == evacuation.Cancel:
		s.callOff(d)
	case d.Reason == evacuation.ReasonActivePods && g.tidying():
		s.leaving[g] = true // the decision is repeated when the Pod is gone
	case !d.At.IsZero():
		if d.Reason != evacuation.ReasonUnchanged {
			s.leaving[g] = true
		}
		s.reconsider(g, d.At)
	}
}

func (s evacuator) callOff(d evacuation.Standing) {
	for _, m := range d.Cancel {
		s.Cancel(keyOf(m))
	}
}

// tidying reports whether a Pod of the VMI is being deleted, or about to be: the target Pod of a
// migration that has ended is deleted before the migration is released.
func (g *simulatedGuest) tidying() bool {
	going := func(p *corev1.Pod) bool { return p.DeletionTimestamp != nil }
	return slices.ContainsFunc(g.pods, going) || slices.ContainsFunc(g.jobs, func(j *job) bool { return j.m.IsFinal() && !j.done() })
}

// reconsider repeats the decision about an evacuation, if the VMI was ever to leave.
func (s evacuator) reconsider(g *simulatedGuest, at time.Time) {
	if !g.judged || !g.again.IsZero() && !g.again.After(at) && g.again.After(s.clock.now) {
		return
	}
	g.again = at
	s.leaving[g] = true
	s.clock.at(at, func() {
		if g.again.Equal(at) {
			g.again = time.Time{}
			s.evacuate(g)
		}
	})
}
