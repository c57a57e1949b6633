// SPDX-License-Identifier: Apache-2.0

package migration

// OwnerOther: the other cluster, with its own controllers, and what connects the two.
const OwnerOther Owner = "other cluster"

// Reasons of decentralized migrations.
const (
	// ReasonSynchronizing: the other side has not said enough to go on.
	ReasonSynchronizing Reason = "Synchronizing"
	// ReasonWaitingForReceiver: the receiving cluster has no target for the guest yet.
	ReasonWaitingForReceiver Reason = "WaitingForReceiver"
	// ReasonSynchronizeTimeout: the other side did not answer in time.
	ReasonSynchronizeTimeout Reason = "SynchronizeTimeout"
	// ReasonReceiverTimeout: the receiving cluster made no target Pod in time.
	ReasonReceiverTimeout Reason = "ReceiverTimeout"
	// ReasonOtherReported: the other side says that the migration has failed.
	ReasonOtherReported Reason = "OtherClusterReportedFailure"
	// ReasonGate: KubeVirt's feature gate DecentralizedLiveMigration is off.
	ReasonGate Reason = "FeatureGateDisabled"
	// ReasonNotReceivable: the guest was not made to be received.
	ReasonNotReceivable Reason = "GuestNotReceivable"
)
