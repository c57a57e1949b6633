// SPDX-License-Identifier: Apache-2.0

package render

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/vmi/validate"
)

// wrongInput rejects input that is invalid for Pods of any kind, whatever the Renderer's stages: the parts of Config and
// Migration that appear in Pods and, for Pods whose stages do not validate the VMI, the VMI.
func wrongInput(kind PodKind, in Input) error {
	errs := append(wrongVMI(kind, in.VMI), wrongConfig(kind, &in.Config)...)
	if m := in.Migration; m != nil && kind&(TargetPod|AttachmentPod) != 0 {
		if problems := validate.LabelValue(string(m.UID)); len(problems) > 0 {
			errs = append(errs, Invalid("Input.Migration.UID", fmt.Sprintf("%q: %s", m.UID, problems[0]), "use an object read from the API server"))
		}
		errs = append(errs, Refused(validate.Labels("Input.Migration.AddedNodeSelector", m.AddedNodeSelector))...)
	}
	if kind&HotplugPods != 0 && len(errs) == 0 {
		errs = Refused(validate.Metadata(in.VMI))
		if class := in.VMI.Spec.PriorityClassName; class != "" {
			if problems := validation.IsDNS1123Subdomain(class); len(problems) > 0 {
				errs = append(errs, Invalid("spec.priorityClassName", fmt.Sprintf("%q: %s", class, problems[0]), "use lower case letters, digits, dashes and dots"))
			}
		}
	}
	for _, fault := range errs {
		var e *Error
		if errors.As(fault, &e) {
			e.Stage, e.Object = stageInput, in.Object(kind)
		}
	}
	return errors.Join(errs...)
}

// wrongVMI rejects VMIs that are invalid for Pods of any kind: excessive lists and impossible values.
func wrongVMI(kind PodKind, vmi *v1.VirtualMachineInstance) []error {
	var faults []validate.Fault
	if vmi != nil && kind != ExporterPod {
		faults = validate.Bounds(vmi)
	}
	if vmi != nil && kind&GuestPods != 0 && len(faults) == 0 {
		faults = validate.Values(vmi)
	}
	return Refused(faults)
}

func wrongConfig(kind PodKind, c *Config) (errs []error) {
	policies := []corev1.PullPolicy{"", corev1.PullAlways, corev1.PullIfNotPresent, corev1.PullNever}
	if !slices.Contains(policies, c.ImagePullPolicy) {
		errs = append(errs, Invalid("Config.ImagePullPolicy", fmt.Sprintf("%q is not supported", c.ImagePullPolicy), "use Always or IfNotPresent or Never"))
	}
	image, field := c.LauncherImage, "Config.LauncherImage"
	if kind == ExporterPod {
		image, field = c.ExporterImage, "Config.ExporterImage"
	}
	for _, i := range []struct{ field, image string }{{field, image}, {"Config.SidecarShimImage", c.SidecarShimImage}} {
		if strings.TrimSpace(i.image) != i.image {
			errs = append(errs, Invalid(i.field, fmt.Sprintf("%q must not begin or end with white space", i.image), "remove it"))
		}
	}
	if s := c.Seccomp; s != nil && s.LocalhostProfile != nil {
		profile := *s.LocalhostProfile
		if profile == "" || path.IsAbs(profile) || slices.Contains(strings.Split(profile, "/"), "..") {
			errs = append(errs, Invalid("Config.Seccomp.localhostProfile",
				fmt.Sprintf("%q must be a path below the kubelet's folder of profiles", profile), "use a path such as profiles/launcher.json"))
		}
	}
	return errs
}
