// SPDX-License-Identifier: Apache-2.0

package handoff

import (
	"fmt"

	v1 "kubevirt.io/api/core/v1"
)

// Annotation is the key under which the lease travels on the
// VirtualMachineInstance, as JSON.
const Annotation = "virtloom.dev/handoff"

// Elsewhere is the target of a move that leaves the cluster, or the namespace: the guest
// becomes another object there, and no node of this cluster may take itself for the
// target, whatever the other node is called. No node can have this name. What the other
// side reports is said in its name by the controller, which reads it in
// status.migrationState.targetState.
const Elsewhere = "another_cluster"

// HeartbeatAnnotation is on a Node whose agent accepts leases. Its value is that of KubeVirt's annotation
// kubevirt.io/heartbeat, and is written with it: where that differs, KubeVirt's own agent has reported since, which
// knows no lease.
const HeartbeatAnnotation = "virtloom.dev/heartbeat"

// Of returns the lease of the VirtualMachineInstance. Without the annotation
// it is understood from what a stock virt-controller and virt-handler write
// (see the specification of the hand-over labels), with epoch zero. The error is
// ErrNotALease; the guest must then be left alone, since nothing is known of its
// owner.
func Of(vmi *v1.VirtualMachineInstance) (Lease, error) {
	raw, found := vmi.Annotations[Annotation]
	if !found {
		return stock(vmi), nil
	}
	var l Lease
	if err := l.UnmarshalJSON([]byte(raw)); err != nil {
		return Lease{}, fmt.Errorf("VirtualMachineInstance %s/%s: annotation %s (restore it; or delete it once no node runs the guest): %w",
			vmi.Namespace, vmi.Name, Annotation, err)
	}
	return l.withStock(vmi), nil
}

// Put stores the lease on the VirtualMachineInstance, together with what stock
// KubeVirt reads the same from: the labels kubevirt.io/nodeName and
// kubevirt.io/migrationTargetNodeName, and status.nodeName. The caller writes the
// object under its resourceVersion, or on the condition that all that Of reads is
// as it was: the annotation, both labels, and status.nodeName, phase and
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

// label keeps KubeVirt's own marks of ownership right. A guest that has ended
// keeps the node it was on.
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

// stock understands ownership from KubeVirt's labels and status alone.
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

// moveOf is the lease in the move that a stock virt-controller asks for.
func (l Lease) moveOf(m *v1.VirtualMachineInstanceMigrationState) Lease {
	l.State, l.Cause = Preparing, CauseStock
	prepare(&l, Event{Node: m.TargetNode, Tag: m.MigrationUID})
	return l
}

// underWay tells whether a migration away from the node was asked for and has not
// ended.
func underWay(m *v1.VirtualMachineInstanceMigrationState, node string) bool {
	return m != nil && !m.Completed && !m.Failed && m.TargetNode != "" && m.TargetNode != node
}

// withStock adds to a stored lease what the stock half beside us can only say in its
// own fields: a virt-handler that it runs the guest it was offered, a
// virt-controller that a move is asked for or taken back. A half that knows the
// lease writes both at once, so that there is nothing to add.
func (l Lease) withStock(vmi *v1.VirtualMachineInstance) Lease {
	if l.State == Offered && vmi.Status.Phase == v1.Running {
		l.State, l.Cause, l.Deadline = Owned, CauseStock, nil
		if node := vmi.Status.NodeName; node != "" {
			l.Holder = node // such nodes may have moved it since
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
			moveEnds(ResultCancelled)(&l, Event{Message: m.FailureReason})
		}
	}
	return l
}

// asked tells whether the migration state asks for a move that the lease has
// not seen, and that no node has acted on. The target of a move to another cluster is
// told before the guest's own side has agreed; what it agrees to is in the lease.
func asked(l Lease, m *v1.VirtualMachineInstanceMigrationState) bool {
	if _, known := l.MoveOutcome(m.MigrationUID); known || l.isOpen(CommandStart) || leaves(m) {
		return false
	}
	return underWay(m, l.Holder) && m.StartTimestamp == nil && m.TargetNodeAddress == ""
}

// leaves tells whether the migration goes to another cluster or namespace: only such a
// one knows where that can be reached.
func leaves(m *v1.VirtualMachineInstanceMigrationState) bool {
	return m.TargetState != nil && m.TargetState.SyncAddress != nil && *m.TargetState.SyncAddress != ""
}
