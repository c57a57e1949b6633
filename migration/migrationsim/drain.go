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
)

// Drain cordons the node and taints it, so that every guest whose eviction strategy
// allows it leaves by a migration.
func (s *Sim) Drain(node string) error {
	if err := s.Cordon(node); err != nil {
		return err
	}
	n := s.byName[node].obj
	if !migration.Draining(n, s.o.Config.Cluster) {
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: s.drainTaint(), Effect: corev1.TaintEffectNoSchedule})
	}
	for _, g := range s.on(node) {
		s.evacuate(g)
	}
	return nil
}

// Undrain ends a drain: what has not begun to move is called off, and the node takes
// Pods again.
func (s *Sim) Undrain(node string) error {
	n, known := s.byName[node]
	if !known {
		return fmt.Errorf("migrationsim: node %q does not exist", node)
	}
	key := s.drainTaint()
	n.obj.Spec.Taints = slices.DeleteFunc(n.obj.Spec.Taints, func(t corev1.Taint) bool { return t.Key == key })
	for _, g := range s.on(node) {
		s.evacuate(g)
	}
	return s.Uncordon(node)
}

func (s *Sim) drainTaint() string {
	if c := s.o.Config.Cluster; c != nil && c.NodeDrainTaintKey != nil {
		return *c.NodeDrainTaintKey
	}
	return migration.DefaultDrainTaint
}

// Evict asks for the eviction of the guest's Pod, as one who drains a node or, with
// descheduler, one who balances load.
func (s *Sim) Evict(key types.NamespacedName, descheduler bool) (migration.EvictionAnswer, error) {
	g := s.guests[key]
	if g == nil {
		return migration.EvictionAnswer{}, fmt.Errorf("migrationsim: guest %s does not exist", key)
	}
	pod := migration.CurrentPod(g.VMI, g.pods, "")
	if pod == nil {
		return migration.EvictionAnswer{}, fmt.Errorf("migrationsim: guest %s has no Pod", key)
	}
	a := migration.Evict(migration.Eviction{
		Pod: pod, Guest: s.standing(g), Descheduler: descheduler, Strategy: s.o.EvictionStrategy, Config: s.o.Config,
	}, s.clock.now)
	if a.Mark != nil {
		a.Mark.Apply(g.VMI)
		s.evacuate(g)
	}
	return a, nil
}

// Standings tell for the guests on a node what an evacuation does about them.
func (s *Sim) Standings(node string) []migration.Standing {
	var out []migration.Standing
	for _, g := range s.on(node) {
		out = append(out, s.judge(g, node))
	}
	return out
}

// Fit tells which nodes could take the guest now, if it were to be evacuated. The error is that its
// target Pod cannot be rendered.
func (s *Sim) Fit(key types.NamespacedName) (migration.Fitness, error) {
	g := s.guests[key]
	if g == nil {
		return migration.Fitness{}, fmt.Errorf("migrationsim: guest %s does not exist", key)
	}
	m := &v1.VirtualMachineInstanceMigration{}
	m.Namespace, m.Name, m.UID, m.Spec.VMIName = key.Namespace, "plan", "plan", key.Name
	p, err := s.o.Render(g.VMI, m, migration.CurrentPod(g.VMI, g.pods, ""))
	if err != nil {
		return migration.Fitness{}, err
	}
	return s.usage.Fit(p, g.VMI.Status.NodeName, s.nodes), nil
}

// Guests returns the guests on a node in the order in which they were added.
func (s *Sim) Guests(node string) []types.NamespacedName {
	var keys []types.NamespacedName
	for _, g := range s.on(node) {
		keys = append(keys, g.key)
	}
	return keys
}

func (s *Sim) standing(g *guest) migration.Guest {
	all := make([]*v1.VirtualMachineInstanceMigration, 0, len(g.jobs))
	for _, j := range g.jobs {
		all = append(all, j.m)
	}
	return migration.Guest{VMI: g.VMI, Migrations: all, Pods: g.pods}
}

func (s *Sim) judge(g *guest, node string) migration.Standing {
	var obj *corev1.Node
	if n := s.byName[node]; n != nil {
		obj = n.obj
	}
	return migration.Evacuate(migration.Evacuation{
		Node: node, Draining: migration.Draining(obj, s.o.Config.Cluster), Guests: []migration.Guest{s.standing(g)},
		Strategy: s.o.EvictionStrategy, Fleet: "simulated", Config: s.o.Config,
	}, s.clock.now)[0]
}

// evacuate lets the evacuation of the guest's node decide about it, and before that those of
// nodes that its migrations were to take it from.
func (s *Sim) evacuate(g *guest) {
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
	case d.Verb == migration.Create:
		s.fail(s.AddMigration(d.Migration, nil))
	case d.Verb == migration.Cancel:
		s.callOff(d)
	case d.Reason == migration.ReasonActivePods && g.tidying():
		s.leaving[g] = true // it is decided again when the Pod is gone
	case !d.At.IsZero():
		if d.Reason != migration.ReasonUnchanged {
			s.leaving[g] = true
		}
		s.reconsider(g, d.At)
	}
}

func (s *Sim) callOff(d migration.Standing) {
	for _, m := range d.Cancel {
		s.Cancel(keyOf(m))
	}
}

// tidying reports whether a Pod of the guest is on its way out, or about to be: a migration
// that has ended has its target Pod deleted before it is let go of.
func (g *guest) tidying() bool {
	going := func(p *corev1.Pod) bool { return p.DeletionTimestamp != nil }
	return slices.ContainsFunc(g.pods, going) || slices.ContainsFunc(g.jobs, func(j *job) bool { return j.m.IsFinal() && !j.done() })
}

// reconsider lets an evacuation decide again, if the guest was ever asked to leave.
func (s *Sim) reconsider(g *guest, at time.Time) {
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
