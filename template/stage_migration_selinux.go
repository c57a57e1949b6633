// SPDX-License-Identifier: Apache-2.0

package template

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// sameSELinuxLevel gives the target the categories of the source, without which it may not open shared disks.
func sameSELinuxLevel(d *Draft) error {
	const field = "status.selinuxContext"
	context := d.vmi.Status.SelinuxContext
	if d.config.IgnoreSELinuxLevel || context == "none" {
		return nil
	}
	if context == "" {
		return &Error{
			Field: field, Reason: "is not known yet", Err: ErrMissingFact,
			Remedy: "wait for the node agent to report it, or set Config.IgnoreSELinuxLevel",
		}
	}
	parts := strings.SplitN(context, ":", 4)
	if len(parts) < 4 {
		return invalid(field, fmt.Sprintf("%q is no SELinux context", context), "report user:role:type:level")
	}
	d.From(field).Set("spec.securityContext.seLinuxOptions", func(p *corev1.Pod) {
		options := corev1.SELinuxOptions{Level: parts[3]}
		if old := p.Spec.SecurityContext.SELinuxOptions; old != nil {
			options.Type = old.Type
		}
		p.Spec.SecurityContext.SELinuxOptions = &options
	})
	return nil
}
