// SPDX-License-Identifier: Apache-2.0

package template

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/virtloom/virtloom/template/render"
)

// sourceContext is the field with the source's SELinux context in a VMI that is received from another cluster.
const sourceContext = "status.migrationState.sourceState.selinuxContext"

// sameSELinuxLevel sets the categories of the source on the target, which the domain needs to open shared disks.
func sameSELinuxLevel(d *render.Draft) error {
	if d.Config().IgnoreSELinuxLevel {
		return nil
	}
	field, context := "status.selinuxContext", d.VMI().Status.SelinuxContext
	if d.Migration().Receives {
		field, context = sourceContext, source(d).SelinuxContext
	}
	level, err := selinuxLevel(field, context, "wait for the node agent's report, or set Config.IgnoreSELinuxLevel")
	if err != nil || level == "" {
		return err
	}
	d.From(field).Set("spec.securityContext.seLinuxOptions", func(p *corev1.Pod) {
		options := corev1.SELinuxOptions{Level: level}
		if p.Spec.SecurityContext == nil {
			p.Spec.SecurityContext = &corev1.PodSecurityContext{}
		}
		if old := p.Spec.SecurityContext.SELinuxOptions; old != nil {
			options.Type = old.Type
		}
		p.Spec.SecurityContext.SELinuxOptions = &options
	})
	return nil
}

// selinuxLevel returns the level of a context that a node agent has reported in a field; empty on nodes without SELinux. A
// missing context is a missing fact with the given remedy.
func selinuxLevel(field, context, remedy string) (string, error) {
	switch context {
	case "":
		return "", &render.Error{Field: field, Reason: "must be set", Remedy: remedy, Err: render.ErrMissingFact}
	case "none":
		return "", nil
	}
	parts := strings.SplitN(context, ":", 4)
	if len(parts) < 4 || parts[3] == "" {
		return "", render.Invalid(field, fmt.Sprintf("%q must be an SELinux context", context), "use the form user:role:type:level")
	}
	return parts[3], nil
}
