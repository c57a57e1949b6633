// SPDX-License-Identifier: Apache-2.0

package evacuation

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/internal/vmistatus"
	"github.com/virtloom/virtloom/migration"
	"github.com/virtloom/virtloom/migration/queue"
)

// DefaultDrainTaint is the key of the taint that drains a node, unless KubeVirt's configuration names
// another.
const DefaultDrainTaint = "kubevirt.io/drain"

// SourceDescheduler is the value of the annotation kubevirt.io/eviction-source of VMIs that a
// descheduler wants to migrate.
const SourceDescheduler = "descheduler"

// Evacuation is the input of [Evacuate] about one node.
type Evacuation struct {
	// Node is the node's name.
	Node string
	// Draining says that the node has the drain taint, see [Draining].
	Draining bool
	// Guests are the VMIs on the node, and those with an unfinished migration that was created to empty
	// it, wherever they are.
	VMIs []Candidate
	// Strategy is the cluster's eviction strategy, for VMIs without one; nil means None.
	Strategy *v1.EvictionStrategy
	// Fleet is the result of [Fleet] for the cluster.
	Fleet string
	// Config is the configuration, with defaults filled in.
	Config migration.Config
}

// Draining reports whether the node has the taint by which all VMIs are to leave it.
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

// strategyOf returns the eviction strategy in force for the VMI; nil means None.
func strategyOf(vmi *v1.VirtualMachineInstance, cluster *v1.EvictionStrategy) *v1.EvictionStrategy {
	if vmi.Spec.EvictionStrategy != nil {
		return vmi.Spec.EvictionStrategy
	}
	return cluster
}

// Evacuate decides for each of the VMIs whether to create a migration so that it leaves the node,
// whether to cancel one that was created for that, or why nothing is done. It is pure.
//
// A VMI is to leave a node while the node has the drain taint, or while the VMI's
// status.evacuationNodeName names its node. This is followed in both directions: when neither holds
// any more, migrations that were created for it and have not begun are deleted. There is never more
// than one migration of a VMI. The number of parallel migrations is not limited here: all are
// created, and wait in the queue.
//
// Differences from KubeVirt:
//
//   - An evacuation follows its cause. When the drain taint goes, status.evacuationNodeName is
//     cleared, the VMI is elsewhere or its strategy forbids it, its migrations that have not begun
//     are deleted. A waiting one that was created for a descheduler is recreated with a higher
//     priority when the node is drained or a person requests it.
//   - A VMI that a descheduler, or an update that its owner has not just requested, would migrate
//     again has a cooldown ([migration.Config.Cooldown]).
//   - On a node with the drain taint a descheduler's mark does not lower a VMI's priority.
//   - A VMI whose object is older than the end of its last migration is not migrated again.
func Evacuate(e Evacuation, now time.Time) []Standing {
	out := make([]Standing, 0, len(e.VMIs))
	for _, g := range e.VMIs {
		out = append(out, *e.standing(g, now))
	}
	return out
}

func (e Evacuation) standing(g Candidate, now time.Time) *Standing {
	if s := firstStanding(g.unsettled, g.ended); s != nil {
		return s
	}
	if s := e.unwanted(g); s != nil {
		return e.callOff(g, s)
	}
	held := firstStanding(
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
	why := "requested to leave node " + e.Node
	if e.Draining {
		why = "node " + e.Node + " is being drained"
	}
	return &Standing{
		VMI: g.VMI, Verb: Create, Reason: reasonEvacuating, Message: why,
		Migration: g.automatic(e.Fleet, e.priority(g), v1.EvacuationMigrationAnnotation, e.Node),
	}
}

// unwanted returns why the VMI need not leave the node by a migration; nil if it must.
func (e Evacuation) unwanted(g Candidate) *Standing {
	vmi := g.VMI
	switch here := vmi.Status.NodeName == e.Node; {
	case !here:
		return g.leave(reasonNotAsked, "the VMI is not on node "+e.Node)
	case !e.Draining && vmi.Status.EvacuationNodeName != e.Node:
		return g.leave(reasonNotAsked, "node "+e.Node+" is not drained, and the VMI was not requested to leave it")
	}
	strategy := strategyOf(vmi, e.Strategy)
	switch {
	case strategy == nil || *strategy == v1.EvictionStrategyNone:
		return g.leave(ReasonStrategyNone, "the VMI's eviction strategy is None: it is shut down with its Pod")
	case *strategy == v1.EvictionStrategyExternal:
		return g.leave(reasonStrategyExternal, "the VMI's eviction strategy is External: an external controller manages it")
	}
	return nil
}

// callOff deletes the migrations that were created to empty this node and have not begun.
func (e Evacuation) callOff(g Candidate, why *Standing) *Standing {
	for _, m := range g.Migrations {
		if m.Annotations[v1.EvacuationMigrationAnnotation] == e.Node && !m.IsFinal() && m.DeletionTimestamp == nil && !begun(m, g.VMI) {
			why.Verb, why.Cancel = Cancel, append(why.Cancel, m)
		}
	}
	return why
}

// lower cancels a migration away from this node whose priority is lower than the current request's,
// so that it is recreated; nil if there is none. One that was handed off to the nodes does not wait.
func (e Evacuation) lower(g Candidate) *Standing {
	m, want := g.unfinished(), e.priority(g)
	switch {
	case m == nil || m.DeletionTimestamp != nil || m.Annotations[v1.EvacuationMigrationAnnotation] != e.Node,
		queue.PriorityOf(m.Spec.Priority) >= queue.PriorityOf(&want),
		begun(m, g.VMI) || withNodes(m, g.VMI),
		immovable(g) != nil:
		return nil
	}
	s := g.leave(reasonEvacuating, fmt.Sprintf("migration %q has a lower priority than %s and is recreated", m.Name, want))
	s.Verb, s.Cancel = Cancel, []*v1.VirtualMachineInstanceMigration{m}
	return s
}

// immovable holds back VMIs whose node does not report that they can be migrated.
func immovable(g Candidate) *Standing {
	if g.VMI.IsMigratable() {
		return nil
	}
	c := vmistatus.Condition(g.VMI, v1.VirtualMachineInstanceIsMigratable)
	if c == nil {
		return g.leave(migration.ReasonNotMigratable, "the VMI's node has not reported yet whether the VMI is live migratable")
	}
	return g.leave(migration.ReasonNotMigratable, fmt.Sprintf("the VMI is not live migratable: %s: %s", c.Reason, c.Message))
}

// balanced applies the cooldown to a VMI that a descheduler wants to migrate.
func (e Evacuation) balanced(g Candidate, now time.Time) *Standing {
	if e.Draining || !descheduled(g.VMI) {
		return nil
	}
	return g.cooling(e.Config, time.Time{}, now)
}

// priority returns the migration's priority, which is lower for a descheduler's.
func (e Evacuation) priority(g Candidate) v1.MigrationPriority {
	if !e.Draining && descheduled(g.VMI) {
		return v1.PrioritySystemMaintenance
	}
	return v1.PrioritySystemCritical
}

func descheduled(vmi *v1.VirtualMachineInstance) bool {
	return vmi.Annotations[v1.EvictionSourceAnnotation] == SourceDescheduler
}
