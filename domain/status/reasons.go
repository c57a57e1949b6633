// SPDX-License-Identifier: Apache-2.0

package status

// Reasons of the Synchronized condition that a node sets.
const (
	// ReasonInvalidSpec: the spec is invalid or not supported; the message names field and
	// remedy.
	ReasonInvalidSpec = "InvalidSpec"
	// ReasonSyncFailed: an action has failed and is retried.
	ReasonSyncFailed = "SyncFailed"
	// ReasonNotReady: a resource that the VMI needs on the node is missing.
	ReasonNotReady = "NodeNotReady"
	// ReasonUnproven: no launcher Pod on the node shows that a controller has assigned the
	// VMI to it; see [plan.Snapshot.Proof].
	ReasonUnproven = "NoLauncherPod"
	// ReasonUnresponsive: the hypervisor does not answer about the domain.
	ReasonUnresponsive = "GuestUnresponsive"
)
