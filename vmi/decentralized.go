// SPDX-License-Identifier: Apache-2.0

package vmi

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"
)

// decentralized decides about a migration between clusters.
type decentralized struct{ *decision }

// awaitsTarget reports whether the VMI is a migration target whose node is not known yet.
func (d decentralized) awaitsTarget() bool {
	return receiver(d.VMI) && d.VMI.Labels[v1.MigrationTargetNodeNameLabel] == ""
}

// targetExists reports whether a migration target that waits for its Pod has one.
func (d decentralized) targetExists() bool {
	m := d.VMI.Status.MigrationState
	return d.VMI.DeletionTimestamp == nil && d.pod != nil && (m == nil || !m.Failed) && (!receiver(d.VMI) || !podGoingDown(d.pod))
}

func (d decentralized) targetLost() bool {
	return receiver(d.VMI) && (d.pod == nil || podGoingDown(d.pod))
}

func (d decentralized) failed() bool {
	m := d.VMI.Status.MigrationState
	return receiver(d.VMI) && (d.pod == nil || podFinished(d.pod) || m != nil && m.Failed)
}

// fail marks the incoming migration of the VMI as failed.
func (d decentralized) fail() error {
	m := d.plan.VMI.Status.MigrationState
	if m == nil || m.Completed {
		return nil
	}
	m.Failed, m.Completed = true, true
	if m.EndTimestamp == nil {
		now := metav1.NewTime(d.now)
		m.EndTimestamp = &now
	}
	return nil
}

// sent reports whether the VMI was migrated to another cluster.
func (d decentralized) sent() bool {
	m := d.VMI.Status.MigrationState
	if m == nil || !m.Completed || d.pod.Status.Phase != corev1.PodSucceeded {
		return false
	}
	source := m.SourceState != nil && m.SourceState.SyncAddress != nil && *m.SourceState.SyncAddress != ""
	target := m.TargetState != nil && m.TargetState.SyncAddress != nil && *m.TargetState.SyncAddress != ""
	return source != target
}
