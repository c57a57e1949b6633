// SPDX-License-Identifier: Apache-2.0

package evacuation

import (
	"fmt"

	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/migration"
)

// updateAnnotation is the annotation of migrations created for an update with a hash of its target: the
// launcher image, KubeVirt's configuration and the VMI's spec.
const updateAnnotation = "virtloom.dev/update"

// ReasonUpdateInVain: the VMI was updated, and its Pod still does not have the required image.
const ReasonUpdateInVain migration.Reason = "UpdateInVain"

// intent is the value of updateAnnotation for an update of the VMI now.
func (u *updating) intent(vmi *v1.VirtualMachineInstance) string {
	return hashTexts(u.target, jsonText(vmi.Spec))
}

// vain holds back a VMI whose Pod does not have the required image although it results from an update
// to the same target: something else, such as a webhook that rewrites images, decides about the image,
// and would again.
func (u *updating) vain(c updatable) *Standing {
	if c.need.change {
		return nil
	}
	last := c.newest(func(m *v1.VirtualMachineInstanceMigration) bool {
		_, update := m.Annotations[v1.WorkloadUpdateMigrationAnnotation]
		return update && m.IsFinal()
	})
	if last == nil || !succeeded(last) || last.Annotations[updateAnnotation] != u.intent(c.VMI) {
		return nil
	}
	s := c.leave(ReasonUpdateInVain, fmt.Sprintf("%s although migration %q was created to change that (check for webhooks that rewrite Pod images); "+
		"the VMI is updated again after the launcher image, KubeVirt's configuration or its spec changes, or the migration is deleted", c.need.message, last.Name))
	s.Migration = last
	return s
}
