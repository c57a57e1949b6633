// SPDX-License-Identifier: Apache-2.0

package migration

// OwnerOther is the other cluster, with its controllers and the connection to it.
const OwnerOther Owner = "other cluster"

// Reasons of decentralized migrations.
const (
	// ReasonSynchronizing: the other side has not reported enough to continue.
	ReasonSynchronizing Reason = "Synchronizing"
	// ReasonWaitingForReceiver: the receiving cluster has no target for the VMI yet.
	ReasonWaitingForReceiver Reason = "WaitingForReceiver"
	// ReasonSynchronizeTimeout: the other side did not answer in time.
	ReasonSynchronizeTimeout Reason = "SynchronizeTimeout"
	// ReasonReceiverTimeout: the receiving cluster created no target Pod in time.
	ReasonReceiverTimeout Reason = "ReceiverTimeout"
	// ReasonOtherReported: the other side reports that the migration has failed.
	ReasonOtherReported Reason = "OtherClusterReportedFailure"
	// ReasonGate: KubeVirt's feature gate DecentralizedLiveMigration is off.
	ReasonGate Reason = "FeatureGateDisabled"
	// ReasonNotReceivable: the VMI was not created to be received.
	ReasonNotReceivable Reason = "GuestNotReceivable"
)
