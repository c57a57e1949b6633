// SPDX-License-Identifier: Apache-2.0

package vmi_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/vmi"
)

// decided returns the plan for a new VMI in a cluster with some feature gates.
func decided(change func(*v1.VirtualMachineInstance), gates ...string) vmi.Plan {
	s := vmi.Snapshot{}
	for _, c := range given(of(v1.Pending, change)) {
		c(&s)
	}
	s.Config.FeatureGates = gates
	return vmi.Decide(s, now)
}

// creates reports whether the plan creates the launcher Pod.
func creates(p vmi.Plan) bool {
	return slices.ContainsFunc(p.Actions, func(a vmi.Action) bool { return a.Verb == vmi.CreateLauncher || a.Verb == vmi.CreateTemporary })
}

// refusal returns the message of the condition that blocks the Pod.
func refusal(p vmi.Plan) string {
	for _, c := range p.VMI.Status.Conditions {
		if c.Type == v1.VirtualMachineInstanceSynchronized && c.Reason == vmi.ReasonFailedCreateValidation {
			return c.Message
		}
	}
	return ""
}

func TestFeatureGates_Disabled(t *testing.T) {
	for gate, tt := range map[string]struct {
		change func(*v1.VirtualMachineInstance)
		field  string
	}{
		"HostDisk": {func(g *v1.VirtualMachineInstance) {
			g.Spec.Volumes = append(g.Spec.Volumes, v1.Volume{Name: "key", VolumeSource: v1.VolumeSource{
				HostDisk: &v1.HostDisk{Path: "/etc/kubernetes/pki/ca.key", Type: v1.HostDiskExists}}})
		}, ".hostDisk"},
		"Sidecar": {func(g *v1.VirtualMachineInstance) {
			g.Annotations = map[string]string{"hooks.kubevirt.io/hookSidecars": `[{"image": "x"}]`}
		}, "metadata.annotations[hooks.kubevirt.io/hookSidecars]"},
		"DownwardMetrics": {func(g *v1.VirtualMachineInstance) {
			g.Spec.Domain.Devices.DownwardMetrics = &v1.DownwardMetrics{}
		}, "spec.domain.devices.downwardMetrics"},
		"HostDevices": {func(g *v1.VirtualMachineInstance) {
			g.Spec.Domain.Devices.HostDevices = []v1.HostDevice{{Name: "a", DeviceName: "x/y"}}
		}, "spec.domain.devices.hostDevices[0]"},
	} {
		closed := decided(tt.change)
		if text := refusal(closed); creates(closed) || !strings.Contains(text, tt.field) || !strings.Contains(text, gate) {
			t.Errorf("%s, closed: creates a Pod: %t, says %q", gate, creates(closed), text)
		}
		if open := decided(tt.change, gate); !creates(open) || refusal(open) != "" {
			t.Errorf("%s, open: creates a Pod: %t, says %q", gate, creates(open), refusal(open))
		}
	}
}

func TestBounds_Exceeded(t *testing.T) {
	for field, change := range map[string]func(*v1.VirtualMachineInstance){
		"spec.domain.devices.disks": func(g *v1.VirtualMachineInstance) {
			for i := range 5000 {
				g.Spec.Domain.Devices.Disks = append(g.Spec.Domain.Devices.Disks, v1.Disk{Name: fmt.Sprint("d", i)})
			}
		},
		"metadata.annotations": func(g *v1.VirtualMachineInstance) {
			g.Annotations = map[string]string{"a": strings.Repeat("x", 300_000)}
		},
		"spec.domain.memory.guest": func(g *v1.VirtualMachineInstance) {
			most := resource.MustParse("99999999999999999999999E")
			g.Spec.Domain.Memory = &v1.Memory{Guest: &most}
		},
		"spec.domain.firmware.kernelBoot.container.initrdPath": func(g *v1.VirtualMachineInstance) {
			g.Spec.Domain.Firmware = &v1.Firmware{KernelBoot: &v1.KernelBoot{Container: &v1.KernelBootContainer{Image: "x", InitrdPath: ".."}}}
		},
		"spec.volumes[1].hostDisk.path": func(g *v1.VirtualMachineInstance) {
			for range 100 {
				g.Spec.Volumes = append(g.Spec.Volumes, v1.Volume{VolumeSource: v1.VolumeSource{HostDisk: &v1.HostDisk{Path: ".."}}})
			}
		},
	} {
		p := decided(change, "HostDisk")
		if text := refusal(p); creates(p) || !strings.Contains(text, field) || len(text) > 4096 {
			t.Errorf("%s: creates a Pod: %t, says %.200q", field, creates(p), text)
		}
	}
}

// TestRuntimeUser_WithoutWebhook: stock nodes run a VMI without status.runtimeUser as root.
func TestRuntimeUser_WithoutWebhook(t *testing.T) {
	as := func(user uint64) func(*v1.VirtualMachineInstance) {
		return func(g *v1.VirtualMachineInstance) { g.Status.RuntimeUser = user }
	}
	if got := decided(as(0)).VMI.Status.RuntimeUser; got != 107 {
		t.Errorf("without gate Root: %d", got)
	}
	if got := decided(as(0), "Root").VMI.Status.RuntimeUser; got != 0 {
		t.Errorf("with gate Root: %d", got)
	}
}
