// SPDX-License-Identifier: Apache-2.0

package handoff

import (
	"fmt"

	v1 "kubevirt.io/api/core/v1"
)

// Annotation is the key of the annotation that holds the lease on the
// VirtualMachineInstance, as JSON.
const Annotation = "virtloom.dev/handoff"

// Elsewhere is the target of a migration to another cluster or namespace: the VMI is
// another object there, and no node of this cluster may take itself for the target,
// whatever the name of the other node. No node can have this name. The controller sends
// the events of the other side in its name, from status.migrationState.targetState.
const Elsewhere = "another_cluster"

// HeartbeatAnnotation is on a Node whose agent accepts leases. Its value equals KubeVirt's annotation
// kubevirt.io/heartbeat, and is written with it: where the two differ, KubeVirt's own agent, which knows no lease, has
// reported since.
const HeartbeatAnnotation = "virtloom.dev/heartbeat"

// Of returns the lease of the VirtualMachineInstance. Without the annotation
// it is derived from the labels and status that a stock virt-controller and
// virt-handler write, with epoch zero. The error is ErrNotALease; the domain must
// then be left alone, since its owner is unknown.
func Of(vmi *v1.VirtualMachineInstance) (Lease, error) {
	raw, found := vmi.Annotations[Annotation]
	if !found {
		return stock(vmi), nil
	}
	var l Lease
	if err := l.UnmarshalJSON([]byte(raw)); err != nil {
		return Lease{}, fmt.Errorf("VirtualMachineInstance %s/%s: annotation %s (restore it; or delete it once no node runs the VMI): %w",
			vmi.Namespace, vmi.Name, Annotation, err)
	}
	return l.withStock(vmi), nil
}

// Put stores the lease on the VirtualMachineInstance, together with its equivalent
// for stock KubeVirt: the labels kubevirt.io/nodeName and
// kubevirt.io/migrationTargetNodeName, and status.nodeName. The caller writes the
// object under its resourceVersion, or on the condition that all fields that Of reads
// are unchanged: the annotation, both labels, and status.nodeName, phase and
// migrationState.
func Put(vmi *v1.VirtualMachineInstance, l Lease) error {
	raw, err := l.MarshalJSON()
	if err != nil {
		return fmt.Errorf("handoff: encode the lease of %s/%s: %w", vmi.Namespace, vmi.Name, err)
	}
	if vmi.Annotations == nil {
		vmi.Annotations = map[string]string{}
	}
	vmi.Annotations[Annotation] = string(raw)
	l.label(vmi)
	return nil
}

// label updates KubeVirt's own marks of ownership. A VMI that has ended keeps its
// last node.
func (l Lease) label(vmi *v1.VirtualMachineInstance) {
	if vmi.Labels == nil {
		vmi.Labels = map[string]string{}
	}
	switch {
	case l.Holder != "":
		vmi.Labels[v1.NodeNameLabel], vmi.Status.NodeName = l.Holder, l.Holder
	case l.State == Unclaimed || l.State == Claimed:
		delete(vmi.Labels, v1.NodeNameLabel)
		vmi.Status.NodeName = ""
	}
	if l.Target != "" && l.Target != Elsewhere {
		vmi.Labels[v1.MigrationTargetNodeNameLabel] = l.Target
	} else {
		delete(vmi.Labels, v1.MigrationTargetNodeNameLabel)
	}
}

// stock derives the lease from KubeVirt's labels and status alone.
func stock(vmi *v1.VirtualMachineInstance) Lease {
	node := vmi.Labels[v1.NodeNameLabel]
	if node == "" {
		node = vmi.Status.NodeName
	}
	switch {
	case vmi.IsFinal():
		return Lease{State: Released, Cause: CauseStock}
	case node == "":
		return Lease{}
	case vmi.Status.Phase == v1.Scheduled:
		return Lease{State: Offered, Holder: node, Cause: CauseStock}
	}
	l := Lease{State: Owned, Holder: node, Cause: CauseStock}
	m := vmi.Status.MigrationState
	if !underWay(m, node) {
		return l
	}
	l = l.moveOf(m)
	switch {
	case m.StartTimestamp != nil:
		l.State = Moving
		l.issue(CommandMigrateOut, l.Holder)
	case m.TargetNodeAddress != "":
		l.State = Prepared
	}
	return l
}

// moveOf returns the lease in the migration that a stock virt-controller requests.
func (l Lease) moveOf(m *v1.VirtualMachineInstanceMigrationState) Lease {
	l.State, l.Cause = Preparing, CauseStock
	prepare(&l, Event{Node: m.TargetNode, Tag: m.MigrationUID})
	return l
}

// underWay reports whether a migration away from the node was requested and has not
// ended.
func underWay(m *v1.VirtualMachineInstanceMigrationState, node string) bool {
	return m != nil && !m.Completed && !m.Failed && m.TargetNode != "" && m.TargetNode != node
}

// withStock adds to a stored lease the state that a stock component can only record in
// KubeVirt's fields: a virt-handler, that it runs the domain it was offered; a
// virt-controller, that a migration was requested or canceled. A component that knows
// the lease writes both at once, so that there is nothing to add.
func (l Lease) withStock(vmi *v1.VirtualMachineInstance) Lease {
	if l.State == Offered && vmi.Status.Phase == v1.Running {
		l.State, l.Cause, l.Deadline = Owned, CauseStock, nil
		if node := vmi.Status.NodeName; node != "" {
			l.Holder = node // stock nodes may have migrated it since
		}
		return l
	}
	m := vmi.Status.MigrationState
	if m == nil || m.MigrationUID == "" {
		return l
	}
	switch l.State {
	case Owned:
		if asked(l, m) {
			l.Epoch++
			return l.moveOf(m)
		}
	case Preparing, Prepared:
		if m.MigrationUID == l.Tag && (m.Completed || m.Failed) {
			l.Epoch++
			l.State, l.Cause, l.Deadline = Owned, CauseStock, nil
			migrationEnds(ResultCancelled)(&l, Event{Message: m.FailureReason})
		}
	}
	return l
}

// asked reports whether the migration state requests a migration that the lease has not
// seen, and that no node has acted on. The target of a migration to another cluster is
// set before the source side has agreed; its agreement is in the lease.
func asked(l Lease, m *v1.VirtualMachineInstanceMigrationState) bool {
	if _, known := l.MoveOutcome(m.MigrationUID); known || l.isOpen(CommandStart) || leaves(m) {
		return false
	}
	return underWay(m, l.Holder) && m.StartTimestamp == nil && m.TargetNodeAddress == ""
}

// leaves reports whether the migration goes to another cluster or namespace: only such a
// migration has a sync address.
func leaves(m *v1.VirtualMachineInstanceMigrationState) bool {
	return m.TargetState != nil && m.TargetState.SyncAddress != nil && *m.TargetState.SyncAddress != ""
}
