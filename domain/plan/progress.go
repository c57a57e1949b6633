// SPDX-License-Identifier: Apache-2.0

package plan

import (
	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain/status"
	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/internal/vmistatus"
)

// reflectProgress updates the condition [status.MigrationProgress] and the mode during a
// migration, and removes the condition at its end. Mode PostCopy is never left.
func (d *decision) reflectProgress() {
	vmi, node := d.plan.VMI, d.Node
	switch {
	case vmi == nil, d.next.State == handoff.Lost:
		return
	case d.next.Holder != node && d.next.State == d.lease.State:
		return // the holder owns the condition
	case d.next.State != handoff.Moving:
		vmistatus.RemoveCondition(vmi, status.MigrationProgress)
		return
	case d.Shown == nil:
		return
	}
	mode := d.MigrationMode
	if m := vmi.Status.MigrationState; m != nil {
		if mode == "" || m.Mode == v1.MigrationPostCopy {
			mode = m.Mode
		}
		m.Mode = mode
	}
	if mode == "" {
		mode = v1.MigrationPreCopy
	}
	vmistatus.SetCondition(vmi, v1.VirtualMachineInstanceCondition{
		Type: status.MigrationProgress, Status: corev1.ConditionTrue, Reason: string(mode), Message: d.Shown.String(),
	}, d.now)
}
