// SPDX-License-Identifier: Apache-2.0

package handoff

import (
	"encoding/json"
	"fmt"

	v1 "kubevirt.io/api/core/v1"
)

// Of returns the lease of the VirtualMachineInstance. Without the annotation
// it is understood from what a stock virt-controller and virt-handler write
// (see the specification of the hand-over labels), with epoch zero. The error
// tells of an annotation that is not a lease; the guest must then be left
// alone, since nothing is known of its owner.
func Of(vmi *v1.VirtualMachineInstance) (Lease, error) {
	raw, found := vmi.Annotations[Annotation]
	if !found {
		return stock(vmi), nil
	}
	var l Lease
	if err := json.Unmarshal([]byte(raw), &l); err != nil {
		return Lease{}, fmt.Errorf("handoff: VirtualMachineInstance %s/%s: annotation %s is not a lease (restore or delete it): %w",
			vmi.Namespace, vmi.Name, Annotation, err)
	}
	return l.withStock(vmi), nil
}

// Put stores the lease on the VirtualMachineInstance; the caller writes the
// object under its resourceVersion.
func Put(vmi *v1.VirtualMachineInstance, l Lease) error {
	raw, err := json.Marshal(l)
	if err != nil {
		return fmt.Errorf("handoff: encode the lease of %s/%s: %w", vmi.Namespace, vmi.Name, err)
	}
	if vmi.Annotations == nil {
		vmi.Annotations = map[string]string{}
	}
	vmi.Annotations[Annotation] = string(raw)
	return nil
}

// stock understands ownership from KubeVirt's labels and status alone.
func stock(vmi *v1.VirtualMachineInstance) Lease {
	node := vmi.Labels[v1.NodeNameLabel]
	if node == "" {
		node = vmi.Status.NodeName
	}
	switch {
	case vmi.IsFinal():
		return Lease{State: Released}
	case node == "":
		return Lease{}
	case vmi.Status.Phase == v1.Scheduled:
		return Lease{State: Offered, Holder: node}
	}
	l := Lease{State: Owned, Holder: node}
	m := vmi.Status.MigrationState
	if !open(m, node) {
		return l
	}
	l.Target, l.Tag = m.TargetNode, m.MigrationUID
	switch {
	case m.StartTimestamp != nil:
		l.State = Moving
	case m.TargetNodeAddress != "":
		l.State = Prepared
	default:
		l.State = Preparing
	}
	return l
}

// open tells whether a migration away from the node was asked for and has not
// ended.
func open(m *v1.VirtualMachineInstanceMigrationState, node string) bool {
	return m != nil && !m.Completed && !m.Failed && m.TargetNode != "" && m.TargetNode != node
}

// withStock adds to a stored lease what a stock virt-controller can only say in
// the migration state. A controller that knows the lease writes both at once, so
// that there is nothing to add.
func (l Lease) withStock(vmi *v1.VirtualMachineInstance) Lease {
	m := vmi.Status.MigrationState
	if m == nil || m.MigrationUID == "" {
		return l
	}
	switch l.State {
	case Owned:
		if !asked(l, m) {
			return l
		}
		return Lease{State: Preparing, Epoch: l.Epoch + 1, Holder: l.Holder, Target: m.TargetNode, Tag: m.MigrationUID, Last: l.Last}
	case Preparing, Prepared:
		if m.MigrationUID != l.Tag || !m.Completed && !m.Failed {
			return l
		}
		return settle(l, Event{Message: m.FailureReason}, l.Holder, ResultCancelled)
	default:
		return l
	}
}

// asked tells whether the migration state asks for a move that the lease has
// not seen, and that no node has acted on.
func asked(l Lease, m *v1.VirtualMachineInstanceMigrationState) bool {
	known := l.Last != nil && l.Last.Tag == m.MigrationUID
	return !known && open(m, l.Holder) && m.StartTimestamp == nil && m.TargetNodeAddress == ""
}
