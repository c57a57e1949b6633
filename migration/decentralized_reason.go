// SPDX-License-Identifier: Apache-2.0

package migration

// Reasons of decentralized migrations.
const (
	// reasonSynchronizing: the other side has not reported enough to continue.
	reasonSynchronizing Reason = "Synchronizing"
	// reasonWaitingForReceiver: the receiving cluster has no target for the VMI yet.
	reasonWaitingForReceiver Reason = "WaitingForReceiver"
	// reasonSynchronizeTimeout: the other side did not answer in time.
	reasonSynchronizeTimeout Reason = "SynchronizeTimeout"
	// reasonReceiverTimeout: the receiving cluster created no target Pod in time.
	reasonReceiverTimeout Reason = "ReceiverTimeout"
	// reasonOtherReported: the other side reports that the migration has failed.
	reasonOtherReported Reason = "OtherClusterReportedFailure"
	// ReasonGate: KubeVirt's feature gate DecentralizedLiveMigration is off.
	ReasonGate Reason = "FeatureGateDisabled"
	// reasonNotReceivable: the VMI was not created to be received.
	reasonNotReceivable Reason = "GuestNotReceivable"
)
