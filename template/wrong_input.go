// SPDX-License-Identifier: Apache-2.0

package template

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
	f := wrongVMI(kind, in.VMI)
	checkConfig(&f, kind, &in.Config)
	if m := in.Migration; m != nil && kind&(TargetPod|AttachmentPod) != 0 {
		f.text("Input.Migration.UID", string(m.UID), validate.LabelValue, "use an object read from the API server")
		f = append(f, refused(validate.Labels("Input.Migration.AddedNodeSelector", m.AddedNodeSelector))...)
	}
	if kind&HotplugPods != 0 && len(f) == 0 {
		f = append(f, refused(validate.Metadata(in.VMI))...)
		if class := in.VMI.Spec.PriorityClassName; class != "" {
			f.text("spec.priorityClassName", class, validation.IsDNS1123Subdomain, useDNSName)
		}
	}
	for _, fault := range f {
		var e *Error
		if errors.As(fault, &e) {
			e.Stage, e.Object = stageInput, in.object(kind)
		}
	}
	return errors.Join(f...)
}

// wrongVMI rejects VMIs that are invalid for Pods of any kind: excessive lists and impossible values.
func wrongVMI(kind PodKind, vmi *v1.VirtualMachineInstance) faults {
	var f faults
	if vmi != nil && kind != ExporterPod {
		f = append(f, refused(validate.Bounds(vmi))...)
	}
	if vmi != nil && kind&GuestPods != 0 && len(f) == 0 {
		f = append(f, refused(validate.Values(vmi))...)
	}
	return f
}

func checkConfig(f *faults, kind PodKind, c *Config) {
	f.oneOf("Config.ImagePullPolicy", string(c.ImagePullPolicy), pullPolicies...)
	image, field := c.LauncherImage, "Config.LauncherImage"
	if kind == ExporterPod {
		image, field = c.ExporterImage, "Config.ExporterImage"
	}
	for _, i := range []struct{ field, image string }{{field, image}, {"Config.SidecarShimImage", c.SidecarShimImage}} {
		if strings.TrimSpace(i.image) != i.image {
			f.add(i.field, fmt.Sprintf("%q must not begin or end with white space", i.image), "remove it")
		}
	}
	if s := c.Seccomp; s != nil && s.LocalhostProfile != nil {
		profile := *s.LocalhostProfile
		if profile == "" || path.IsAbs(profile) || slices.Contains(strings.Split(profile, "/"), "..") {
			f.add("Config.Seccomp.localhostProfile", fmt.Sprintf("%q must be a path below the kubelet's folder of profiles", profile),
				"use a path such as profiles/launcher.json")
		}
	}
}

var pullPolicies = []string{string(corev1.PullAlways), string(corev1.PullIfNotPresent), string(corev1.PullNever)}
