// SPDX-License-Identifier: Apache-2.0

package migration

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"
)

// DefaultDrainTaint is the key of the taint that empties a node, unless KubeVirt's configuration names
// another.
const DefaultDrainTaint = "kubevirt.io/drain"

// SourceDescheduler is the value of the annotation kubevirt.io/eviction-source of guests that a
// descheduler wants to have elsewhere.
const SourceDescheduler = "descheduler"

// Evacuation is one node and what [Evacuate] has to know of it.
type Evacuation struct {
	// Node is the node's name.
	Node string
	// Draining says that the node has the taint by which all guests are to leave it, see [Draining].
	Draining bool
	// Guests are those on the node, and those with an unfinished migration that was made to empty it,
	// wherever they are.
	Guests []Guest
	// Strategy is the cluster's eviction strategy, for guests without one; nil means None.
	Strategy *v1.EvictionStrategy
	// Fleet is what [Fleet] says of the cluster.
	Fleet string
	// Config is the configuration, with defaults filled in.
	Config Config
}

// Draining reports whether the node has the taint by which all guests are to leave it.
func Draining(n *corev1.Node, cluster *v1.MigrationConfiguration) bool {
	if n == nil {
		return false
	}
	key := DefaultDrainTaint
	if cluster != nil && cluster.NodeDrainTaintKey != nil {
		key = *cluster.NodeDrainTaintKey
	}
	for _, t := range n.Spec.Taints {
		if t.Key == key && t.Effect == corev1.TaintEffectNoSchedule {
			return true
		}
	}
	return false
}

// StrategyOf returns the eviction strategy in force for the guest; nil means None.
func StrategyOf(vmi *v1.VirtualMachineInstance, cluster *v1.EvictionStrategy) *v1.EvictionStrategy {
	if vmi.Spec.EvictionStrategy != nil {
		return vmi.Spec.EvictionStrategy
	}
	return cluster
}

// Evacuate tells for each of the guests whether a migration is to be created so that it leaves the
// node, whether one that was created for that is to be called off, or why nothing is done. It is pure.
//
// A guest is to leave a node while the node has the drain taint, or while the guest's
// status.evacuationNodeName names the node it is on. That is followed in both directions: when neither
// holds any more, migrations that were made for it and have not begun to move the guest are deleted.
// There is never more than one migration of a guest. How many migrate at a time is not its concern: all
// are created, and wait in the queue.
func Evacuate(e Evacuation, now time.Time) []Standing {
	out := make([]Standing, 0, len(e.Guests))
	for _, g := range e.Guests {
		out = append(out, *e.standing(g, now))
	}
	return out
}

func (e Evacuation) standing(g Guest, now time.Time) *Standing {
	if s := first(g.unsettled, g.ended); s != nil {
		return s
	}
	if s := e.unwanted(g); s != nil {
		return e.callOff(g, s)
	}
	held := first(
		func() *Standing { return e.lower(g) },
		g.busy,
		func() *Standing { return immovable(g) },
		g.crowded,
		func() *Standing { return g.behind(now) },
		func() *Standing { return e.balanced(g, now) },
		func() *Standing { return g.hopeless(e.Fleet, now) },
	)
	if held != nil {
		return held
	}
	why := "the guest was asked to leave node " + e.Node
	if e.Draining {
		why = "node " + e.Node + " is being drained"
	}
	return &Standing{
		Guest: g.VMI, Verb: Create, Reason: ReasonEvacuating, Message: why,
		Migration: g.automatic(e.Fleet, e.priority(g), v1.EvacuationMigrationAnnotation, e.Node),
	}
}

// unwanted says why the guest need not leave the node by a migration; nil if it has to.
func (e Evacuation) unwanted(g Guest) *Standing {
	vmi := g.VMI
	switch here := vmi.Status.NodeName == e.Node; {
	case !here:
		return g.leave(ReasonNotAsked, "the guest is not on node "+e.Node)
	case !e.Draining && vmi.Status.EvacuationNodeName != e.Node:
		return g.leave(ReasonNotAsked, "neither is node "+e.Node+" drained nor was the guest asked to leave it")
	}
	strategy := StrategyOf(vmi, e.Strategy)
	switch {
	case strategy == nil || *strategy == v1.EvictionStrategyNone:
		return g.leave(ReasonStrategyNone, "the guest's eviction strategy is None: it is not migrated, and ends with its Pod")
	case *strategy == v1.EvictionStrategyExternal:
		return g.leave(ReasonStrategyExternal, "the guest's eviction strategy is External: it is left to who manages it")
	}
	return nil
}

// callOff deletes the migrations that were made to empty this node, as far as they have not begun.
func (e Evacuation) callOff(g Guest, why *Standing) *Standing {
	for _, m := range g.Migrations {
		if m.Annotations[v1.EvacuationMigrationAnnotation] == e.Node && !m.IsFinal() && m.DeletionTimestamp == nil && !begun(m, g.VMI) {
			why.Verb, why.Cancel = Cancel, append(why.Cancel, m)
		}
	}
	return why
}

// lower calls off a migration away from this node that was made for less than what asks for it now, so
// that it is made anew; nil if there is none. One that was handed over to the nodes waits for nobody.
func (e Evacuation) lower(g Guest) *Standing {
	m, want := g.unfinished(), e.priority(g)
	switch {
	case m == nil || m.DeletionTimestamp != nil || m.Annotations[v1.EvacuationMigrationAnnotation] != e.Node,
		PriorityOf(m.Spec.Priority) >= PriorityOf(&want),
		begun(m, g.VMI) || withNodes(m, g.VMI),
		immovable(g) != nil:
		return nil
	}
	s := g.leave(ReasonEvacuating, fmt.Sprintf("migration %q is of a lower priority than %s, with which it is made anew", m.Name, want))
	s.Verb, s.Cancel = Cancel, []*v1.VirtualMachineInstanceMigration{m}
	return s
}

// immovable holds back guests whose node does not say that they can be migrated.
func immovable(g Guest) *Standing {
	if g.VMI.IsMigratable() {
		return nil
	}
	c := conditionOf(g.VMI, v1.VirtualMachineInstanceIsMigratable)
	if c == nil {
		return g.leave(ReasonNotMigratable, "the guest's node has not said yet whether the guest can be migrated")
	}
	return g.leave(ReasonNotMigratable, fmt.Sprintf("the guest is not live migratable: %s: %s", c.Reason, c.Message))
}

// balanced has a guest rest that is only wanted elsewhere to spread load.
func (e Evacuation) balanced(g Guest, now time.Time) *Standing {
	if e.Draining || !descheduled(g.VMI) {
		return nil
	}
	return g.cooling(e.Config, time.Time{}, now)
}

// priority is lower for guests that are only wanted elsewhere to spread load.
func (e Evacuation) priority(g Guest) v1.MigrationPriority {
	if !e.Draining && descheduled(g.VMI) {
		return v1.PrioritySystemMaintenance
	}
	return v1.PrioritySystemCritical
}

func descheduled(vmi *v1.VirtualMachineInstance) bool {
	return vmi.Annotations[v1.EvictionSourceAnnotation] == SourceDescheduler
}
