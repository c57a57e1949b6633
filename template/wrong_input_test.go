// SPDX-License-Identifier: Apache-2.0

package template_test

import (
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/template"
	"github.com/virtloom/virtloom/template/render"
)

// configured sets the resources of a kind of container.
func configured(kind v1.SupportContainerType, requests, limits corev1.ResourceList) func(*template.Input) {
	return func(in *template.Input) {
		in.Config.ContainerResources = []v1.SupportContainerResources{{
			Type: kind, Resources: v1.ResourceRequirementsWithoutClaims{Requests: requests, Limits: limits},
		}}
	}
}

// TestRender_InvalidInput has input that is rejected for Pods of every kind.
func TestRender_InvalidInput(t *testing.T) {
	up := "../secrets"
	for name, tc := range map[string]struct {
		change func(*template.Input)
		field  string
	}{
		"pull policy":     {func(in *template.Input) { in.Config.ImagePullPolicy = "Sometimes" }, "Config.ImagePullPolicy"},
		"launcher image":  {func(in *template.Input) { in.Config.LauncherImage += "\n" }, "Config.LauncherImage"},
		"shim image":      {func(in *template.Input) { in.Config.SidecarShimImage = " shim" }, "Config.SidecarShimImage"},
		"seccomp profile": {func(in *template.Input) { in.Config.Seccomp = &v1.CustomProfile{LocalhostProfile: &up} }, "Config.Seccomp.localhostProfile"},
		"limit below the default request": {
			configured(v1.GuestConsoleLog, nil, list("memory", "30M")), "Config.ContainerResources[guest-console-log].requests.memory",
		},
		"negative limit of a container": {
			configured(v1.GuestConsoleLog, nil, list("cpu", "-1")), "Config.ContainerResources[guest-console-log].limits.cpu",
		},
		"negative request of a container": {
			configured(v1.GuestConsoleLog, list("memory", "-1"), nil), "Config.ContainerResources[guest-console-log].requests.memory",
		},
		"request with its limit": {configured(v1.GuestConsoleLog, list("cpu", "2"), list("cpu", "2")), ""},
		"architecture":           {func(in *template.Input) { in.VMI.Spec.Architecture = "-1" }, "spec.architecture"},
		"resource that is none": {
			func(in *template.Input) { in.VMI.Spec.Domain.Resources.Requests = list("disk", "1") }, "spec.domain.resources.requests[disk]",
		},
		"device without a limit": {
			func(in *template.Input) { in.VMI.Spec.Domain.Resources.Requests = list("example.com/card", "1") },
			"spec.domain.resources.requests[example.com/card]",
		},
		"half a device": {
			func(in *template.Input) { in.VMI.Spec.Domain.Resources.Limits = list("example.com/card", "500m") },
			"spec.domain.resources.limits[example.com/card]",
		},
		"device of the launcher": {
			func(in *template.Input) { in.VMI.Spec.Domain.Resources.Limits = list("devices.kubevirt.io/kvm", "2") },
			"spec.domain.resources.limits[devices.kubevirt.io/kvm]",
		},
		"console log that requests more than the default limit": {
			func(in *template.Input) {
				in.Config.ContainerResources = []v1.SupportContainerResources{{
					Type: v1.GuestConsoleLog, Resources: v1.ResourceRequirementsWithoutClaims{Requests: list("memory", "100M")},
				}}
			}, "Config.ContainerResources[guest-console-log].requests.memory",
		},
		"console log of dedicated CPUs that requests more than its limit, which counts": {
			func(in *template.Input) {
				cpu(v1.CPU{Cores: 1, DedicatedCPUPlacement: true})(in.VMI)
				in.Config.ContainerResources = []v1.SupportContainerResources{{
					Type: v1.GuestConsoleLog, Resources: v1.ResourceRequirementsWithoutClaims{Requests: list("memory", "100M")},
				}}
			}, "",
		},
		"no reading of a quota is no quota": {func(in *template.Input) { in.Facts.Quotas = []*corev1.ResourceQuota{nil} }, ""},
		"device with its limit": {func(in *template.Input) {
			in.VMI.Spec.Domain.Resources.Requests, in.VMI.Spec.Domain.Resources.Limits = list("example.com/card", "2"), list("example.com/card", "2")
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			in := input(newVMI())
			tc.change(&in)
			pod, err := template.Default().Launcher(in)
			var e *render.Error
			switch {
			case tc.field == "" && err != nil:
				t.Error(err)
			case tc.field == "":
				for _, fault := range faultsOf(pod) {
					t.Error(fault)
				}
			case !errors.As(err, &e) || e.Field != tc.field || !errors.Is(err, render.ErrInvalid) || e.Stage == "" || e.Object == "" || e.Remedy == "":
				t.Errorf("got %v, want %s to be refused", err, tc.field)
			}
		})
	}
}

// TestRender_InvalidMigration has invalid values of a migration in its Pods.
func TestRender_InvalidMigration(t *testing.T) {
	for field, change := range map[string]func(*template.Input){
		"Input.Migration.UID":                  func(in *template.Input) { in.Migration.UID = "a b" },
		"Input.Migration.AddedNodeSelector":    func(in *template.Input) { in.Migration.AddedNodeSelector = map[string]string{"a b": ""} },
		"Input.Migration.AddedNodeSelector[a]": func(in *template.Input) { in.Migration.AddedNodeSelector = map[string]string{"a": "b c"} },
	} {
		t.Run(field, func(t *testing.T) {
			in := targetInput(t)
			change(&in)
			_, err := template.Default().MigrationTarget(in)
			var e *render.Error
			if !errors.As(err, &e) || e.Field != field {
				t.Errorf("got %v", err)
			}
		})
	}
}

// TestRender_InvalidContainerResources has the containers that are alone in their Pods.
func TestRender_InvalidContainerResources(t *testing.T) {
	for name, tc := range map[string]struct {
		kind  render.PodKind
		in    template.Input
		of    v1.SupportContainerType
		field string
	}{
		"attachment": {render.AttachmentPod, plugInput(t, "v1"), v1.HotplugAttachment, "Config.ContainerResources[hotplug-disk].requests.memory"},
		"trigger":    {render.TriggerPod, plugInput(t, "v1"), v1.HotplugAttachment, "Config.ContainerResources[hotplug-disk].requests.memory"},
		"exporter":   {render.ExporterPod, exportInput(), v1.VMExport, "Config.ContainerResources[vmexport].requests.memory"},
	} {
		t.Run(name, func(t *testing.T) {
			configured(tc.of, nil, list("memory", "1M"))(&tc.in)
			_, err := template.Default().Render(tc.kind, tc.in)
			var e *render.Error
			if !errors.As(err, &e) || e.Field != tc.field || !errors.Is(err, render.ErrInvalid) || e.Remedy == "" {
				t.Errorf("got %v, want %s to be refused", err, tc.field)
			}
		})
	}
}
