// SPDX-License-Identifier: Apache-2.0

package migration

import (
	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"
)

// ConditionProgress tells how far the migration has come. It repeats, word for word, what the node
// that moves the guest says in the guest's condition of the same type: the reason is the mode
// (PreCopy, PostCopy, Paused), the message has the numbers. It is True while the guest is being moved.
// A failed migration keeps what was said last, as False; of one that has succeeded nothing remains, and it says so.
const ConditionProgress v1.VirtualMachineInstanceMigrationConditionType = "virtloom.dev/MigrationProgress"

// progressDone is what ConditionProgress says in the end.
const progressDone = "the guest has moved"

// mirror keeps ConditionProgress. A pass is made when the guest changes, so it is written no more
// often than the node writes.
func (d *decision) mirror() {
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
		return // what the guest says may be of another migration
	}
	for i := range d.s.VMI.Status.Conditions {
		c := &d.s.VMI.Status.Conditions[i]
		if c.Type == v1.VirtualMachineInstanceConditionType(ConditionProgress) && c.Status == corev1.ConditionTrue {
			setCondition(st, isTrue(ConditionProgress, Reason(c.Reason), c.Message), d.stamp())
		}
	}
}
