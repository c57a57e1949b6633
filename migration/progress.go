// SPDX-License-Identifier: Apache-2.0

package migration

import (
	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"
)

// ConditionProgress reports the progress of the migration. It repeats verbatim the VMI's condition of the
// same type, written by the node that runs the migration: the reason is the mode (PreCopy, PostCopy,
// Paused), the message has the numbers. It is True while the migration runs. A failed migration keeps the
// last report, as False; a migration that succeeded has only a closing message.
const ConditionProgress v1.VirtualMachineInstanceMigrationConditionType = "virtloom.dev/MigrationProgress"

// progressDone is the message of ConditionProgress after success.
const progressDone = "the VMI has migrated"

// mirror keeps ConditionProgress. A pass is made when the VMI changes, so it is written at most
// as often as the node writes.
func (d conclusion) mirror() {
	st := &d.plan.Status
	if d.final() {
		if c := Condition(*st, ConditionProgress); c != nil && c.Status == corev1.ConditionTrue {
			ended := *c
			ended.Status = corev1.ConditionFalse
			if st.Phase == v1.MigrationSucceeded {
				ended.Message = progressDone
			}
			setCondition(st, ended, d.stamp())
		}
		return
	}
	if d.ms == nil || d.ms.StartTimestamp == nil {
		return // the VMI's condition may be of another migration
	}
	for i := range d.s.VMI.Status.Conditions {
		c := &d.s.VMI.Status.Conditions[i]
		if c.Type == v1.VirtualMachineInstanceConditionType(ConditionProgress) && c.Status == corev1.ConditionTrue {
			setCondition(st, isTrue(ConditionProgress, Reason(c.Reason), c.Message), d.stamp())
		}
	}
}
