// SPDX-License-Identifier: Apache-2.0

package migration

import (
	"fmt"

	v1 "kubevirt.io/api/core/v1"
)

// UpdateAnnotation is on migrations that were made for an update and sums up what it was to bring about:
// the launcher image, KubeVirt's configuration and the guest's spec.
const UpdateAnnotation = "virtloom.dev/update"

// ReasonUpdateInVain: the guest was updated, and its Pod's image is not the one that was asked for.
const ReasonUpdateInVain Reason = "UpdateInVain"

// intent is the value of UpdateAnnotation for an update of the guest now.
func (u *updating) intent(vmi *v1.VirtualMachineInstance) string {
	return sum(u.target, text(vmi.Spec))
}

// vain holds back a guest whose Pod has another image than asked for though it is of an update that
// asked for the same: something else, such as a webhook that rewrites images, decides about that, and
// would again.
func (u *updating) vain(c candidate) *Standing {
	if c.need.change {
		return nil
	}
	last := c.newest(func(m *v1.VirtualMachineInstanceMigration) bool {
		_, update := m.Annotations[v1.WorkloadUpdateMigrationAnnotation]
		return update && m.IsFinal()
	})
	if last == nil || !succeeded(last) || last.Annotations[UpdateAnnotation] != u.intent(c.VMI) {
		return nil
	}
	s := c.leave(ReasonUpdateInVain, fmt.Sprintf("%s though migration %q was to change that (does something rewrite the images of Pods?); "+
		"the guest is not updated before the launcher image, KubeVirt's configuration or its spec changes, or the migration is deleted", c.need.message, last.Name))
	s.Migration = last
	return s
}
