// SPDX-License-Identifier: Apache-2.0

package handoff

// Responsible is the component that has to act next: for a lease, and for what a VirtualMachine, a VMI or a migration waits for. Its value
// is what users read.
type Responsible string

// The components.
const (
	// ByNobody: it has ended.
	ByNobody Responsible = "nobody"
	// ByUser: a user must change something.
	ByUser Responsible = "user"
	// ByController: this or another controller, or the capacity that it guards.
	ByController Responsible = "controller"
	// ByStorage: the provisioner, or CDI.
	ByStorage Responsible = "storage"
	// ByScheduler: the scheduler.
	ByScheduler Responsible = "scheduler"
	// ByKubelet: the kubelet.
	ByKubelet Responsible = "kubelet"
	// ByNode: the node agent of the VMI's node.
	ByNode Responsible = "node"
	// BySourceNode and ByTargetNode: the node agents of a migration.
	BySourceNode Responsible = "source node"
	ByTargetNode Responsible = "target node"
	// ByOtherCluster: the other cluster of a migration, with its controllers and the connection to it.
	ByOtherCluster Responsible = "other cluster"
)
