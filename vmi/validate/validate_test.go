// SPDX-License-Identifier: Apache-2.0

package validate_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/virtloom/virtloom/vmi/validate"
)

func parse(t *testing.T, text string) *v1.VirtualMachineInstance {
	t.Helper()
	vmi := &v1.VirtualMachineInstance{}
	if err := yaml.UnmarshalStrict([]byte(text), vmi); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return vmi
}

func devices(text string) string { return "{spec: {domain: {devices: {" + text + "}}}}" }

// gatedGuests has a VMI for each gated field.
var gatedGuests = []struct{ guest, gate, field string }{
	{"{metadata: {annotations: {hooks.kubevirt.io/hookSidecars: '[]'}}}", validate.Sidecar, "metadata.annotations[hooks.kubevirt.io/hookSidecars]"},
	{"{metadata: {annotations: {kubevirt.io/ignitiondata: ''}}}", validate.Ignition, "metadata.annotations[kubevirt.io/ignitiondata]"},
	{"{spec: {volumes: [{name: a}, {name: b, hostDisk: {path: /etc/kubernetes/pki/ca.key, type: Disk}}]}}", validate.HostDisk, "spec.volumes[1].hostDisk"},
	{"{spec: {volumes: [{name: b, downwardMetrics: {}}]}}", validate.DownwardMetrics, "spec.volumes[0].downwardMetrics"},
	{devices("downwardMetrics: {}"), validate.DownwardMetrics, "spec.domain.devices.downwardMetrics"},
	{"{spec: {volumes: [{name: b, containerPath: {path: /etc}}]}}", validate.ContainerPaths, "spec.volumes[0].containerPath"},
	{"{spec: {volumes: [{name: b, dataVolume: {name: c}}], domain: {devices: {filesystems: [{name: b, virtiofs: {}}]}}}}", validate.VirtiofsStorage, "spec.domain.devices.filesystems[0].name"},
	{"{spec: {utilityVolumes: [{name: b, claimName: c}]}}", validate.UtilityVolumes, "spec.utilityVolumes[0]"},
	{devices("hostDevices: [{name: a, deviceName: x/y}]"), validate.HostDevices, "spec.domain.devices.hostDevices[0]"},
	{devices("gpus: [{name: a, claimName: c}]"), validate.GPUsWithDRA, "spec.domain.devices.gpus[0].claimName"},
	{"{spec: {networks: [{name: a, resourceClaim: {claimName: c}}]}}", validate.NetworksWithDRA, "spec.networks[0].resourceClaim"},
	{devices("disks: [{name: a, lun: {reservation: true}}]"), validate.PersistentReservation, "spec.domain.devices.disks[0].lun.reservation"},
	{devices("autoattachVSOCK: true"), validate.VSOCK, "spec.domain.devices.autoattachVSOCK"},
	{"{spec: {domain: {launchSecurity: {sev: {}}}}}", validate.SEV, "spec.domain.launchSecurity.sev"},
	{"{spec: {domain: {launchSecurity: {snp: {}}}}}", validate.SEV, "spec.domain.launchSecurity.snp"},
	{"{spec: {domain: {launchSecurity: {tdx: {}}}}}", validate.TDX, "spec.domain.launchSecurity.tdx"},
}

func TestGates_Disabled(t *testing.T) {
	for _, g := range gatedGuests {
		vmi := parse(t, g.guest)
		faults := validate.Closed(vmi, validate.Gates{Off: []string{g.gate}})
		if len(faults) != 1 || faults[0].Field != g.field || faults[0].Kind != validate.Gated || !strings.Contains(faults[0].Reason, g.gate) {
			t.Errorf("%s: %+v, want one for %s", g.guest, faults, g.field)
		}
		if needed := validate.Needed(vmi); !slices.Equal(needed, []string{g.gate}) {
			t.Errorf("%s: needs %q", g.guest, needed)
		}
	}
}

func TestGates_Enabled(t *testing.T) {
	for _, g := range gatedGuests {
		if faults := validate.Closed(parse(t, g.guest), validate.Gates{On: []string{g.gate}, Off: []string{g.gate}}); len(faults) > 0 {
			t.Errorf("%s: %+v", g.guest, faults)
		}
	}
	claims := devices("hostDevices: [{name: a, claimName: c}]")
	faults := validate.Closed(parse(t, claims), validate.Gates{On: []string{validate.HostDevices}, Off: []string{validate.HostDevicesWithDRA}})
	if len(faults) != 1 || faults[0].Field != "spec.domain.devices.hostDevices[0].claimName" {
		t.Errorf("%+v", faults)
	}
	if faults := validate.Closed(parse(t, claims), validate.Gates{On: []string{validate.HostDevices}}); len(faults) > 0 {
		t.Errorf("on by default: %+v", faults)
	}
}

func TestBounds_Exceeded(t *testing.T) {
	vmi := parse(t, "{}")
	disk := func(i int) v1.Disk { return v1.Disk{Name: fmt.Sprintf("d%d", i)} }
	for i := range validate.MaxDevices {
		vmi.Spec.Domain.Devices.Disks = append(vmi.Spec.Domain.Devices.Disks, disk(i))
		vmi.Spec.Volumes = append(vmi.Spec.Volumes, v1.Volume{VolumeSource: v1.VolumeSource{HostDisk: &v1.HostDisk{Path: ".."}}})
	}
	if faults := validate.Bounds(vmi); len(faults) > 0 {
		t.Errorf("as many as there may be: %+v", faults)
	}
	if faults := validate.Check(vmi, validate.Gates{}); len(faults) != 2*validate.MaxDevices {
		t.Errorf("%d faults of host disks", len(faults))
	}
	vmi.Spec.Domain.Devices.Disks = append(vmi.Spec.Domain.Devices.Disks, disk(-1))
	faults := validate.Check(vmi, validate.Gates{})
	if len(faults) != 1 || faults[0].Field != "spec.domain.devices.disks" || faults[0].Kind != validate.Excess {
		t.Errorf("one more: %+v", faults)
	}
}

func TestBounds_Texts(t *testing.T) {
	long := strings.Repeat("x", 300<<10)
	for field, vmi := range map[string]string{
		"metadata.annotations": "{metadata: {annotations: {a: " + long + "}}}",
		"metadata.labels":      "{metadata: {labels: {a: " + long + "}}}",
		"metadata.annotations[hooks.kubevirt.io/hookSidecars]": "{metadata: {annotations: {hooks.kubevirt.io/hookSidecars: '[" + strings.TrimSuffix(strings.Repeat("{},", validate.MaxSidecars+1), ",") + "]'}}}",
		"spec.volumes[0].downwardAPI.fields":                   "{spec: {volumes: [{name: a, downwardAPI: {fields: [" + strings.Repeat("{path: a},", validate.MaxTerms+1) + "]}}]}}",
	} {
		faults := validate.Bounds(parse(t, vmi))
		if len(faults) != 1 || faults[0].Field != field {
			t.Errorf("%s: %+v", field, faults)
		}
		for _, f := range faults {
			if len(f.Text()) > 200 {
				t.Errorf("%s: a text of %d bytes", field, len(f.Text()))
			}
		}
	}
}

// badValues are VMIs with an invalid amount or path, by their field.
var badValues = map[string]string{
	"{spec: {domain: {memory: {guest: 99999999999999999999999E}}}}":            "spec.domain.memory.guest",
	"{spec: {domain: {memory: {guest: 9E}}}}":                                  "spec.domain.memory.guest",
	"{spec: {domain: {memory: {guest: -1Gi}}}}":                                "spec.domain.memory.guest",
	"{spec: {domain: {memory: {guest: 1500m}}}}":                               "spec.domain.memory.guest",
	"{spec: {domain: {memory: {maxGuest: 1e30}}}}":                             "spec.domain.memory.maxGuest",
	"{spec: {domain: {memory: {reservedOverhead: {addedOverhead: -1}}}}}":      "spec.domain.memory.reservedOverhead.addedOverhead",
	"{spec: {domain: {memory: {hugepages: {pageSize: -2Mi}}}}}":                "spec.domain.memory.hugepages.pageSize",
	"{spec: {domain: {memory: {hugepages: {pageSize: 9E}}}}}":                  "spec.domain.memory.hugepages.pageSize",
	"{spec: {domain: {resources: {requests: {memory: 9E}}}}}":                  "spec.domain.resources.requests.memory",
	"{spec: {domain: {resources: {limits: {memory: -1}}}}}":                    "spec.domain.resources.limits.memory",
	"{spec: {domain: {resources: {limits: {cpu: 9E}}}}}":                       "spec.domain.resources.limits.cpu",
	"{spec: {domain: {resources: {requests: {cpu: -1}}}}}":                     "spec.domain.resources.requests.cpu",
	"{spec: {domain: {resources: {requests: {ephemeral-storage: -1}}}}}":       "spec.domain.resources.requests[ephemeral-storage]",
	"{spec: {domain: {resources: {requests: {x/y: 9E}}}}}":                     "spec.domain.resources.requests[x/y]",
	"{spec: {volumes: [{name: a, emptyDisk: {capacity: 9E}}]}}":                "spec.volumes[0].emptyDisk.capacity",
	"{spec: {volumes: [{name: a, emptyDisk: {capacity: -1}}]}}":                "spec.volumes[0].emptyDisk.capacity",
	"{spec: {volumes: [{name: a, hostDisk: {path: /a/b, capacity: 1m}}]}}":     "spec.volumes[0].hostDisk.capacity",
	"{spec: {volumes: [{name: a, hostDisk: {path: /a/../../etc/shadow}}]}}":    "spec.volumes[0].hostDisk.path",
	"{spec: {volumes: [{name: a, hostDisk: {path: /shadow}}]}}":                "spec.volumes[0].hostDisk.path",
	"{spec: {volumes: [{name: a, containerDisk: {image: x, path: ../x}}]}}":    "spec.volumes[0].containerDisk.path",
	"{spec: {volumes: [{name: a, containerDisk: {image: x, path: /}}]}}":       "spec.volumes[0].containerDisk.path",
	"{spec: {volumes: [{name: a, containerPath: {path: /a/..}}]}}":             "spec.volumes[0].containerPath.path",
	"{spec: {volumes: [{name: a, downwardAPI: {fields: [{path: ../../x}]}}]}}": "spec.volumes[0].downwardAPI.fields[0].path",
	"{spec: {volumes: [{name: a, downwardAPI: {fields: [{path: /x}]}}]}}":      "spec.volumes[0].downwardAPI.fields[0].path",
	"{metadata: {annotations: {kubevirt.io/qgs-socket-path: ../x}}}":           "metadata.annotations[kubevirt.io/qgs-socket-path]",

	"{spec: {domain: {firmware: {kernelBoot: {container: {image: x, kernelPath: /boot/../..}}}}}}": "spec.domain.firmware.kernelBoot.container.kernelPath",
	"{spec: {domain: {firmware: {kernelBoot: {container: {image: x, kernelPath: \"/a\\nb\"}}}}}}":  "spec.domain.firmware.kernelBoot.container.kernelPath",
	"{spec: {domain: {firmware: {kernelBoot: {container: {image: x, initrdPath: ..}}}}}}":          "spec.domain.firmware.kernelBoot.container.initrdPath",
	"{spec: {domain: {firmware: {kernelBoot: {container: {image: x, initrdPath: boot/initrd}}}}}}": "spec.domain.firmware.kernelBoot.container.initrdPath",
	"{spec: {domain: {firmware: {kernelBoot: {kernelArgs: " + strings.Repeat("x", 4097) + "}}}}}":  "spec.domain.firmware.kernelBoot.kernelArgs",
	"{spec: {volumes: [{name: a, containerDisk: {image: " + strings.Repeat("x", 1025) + "}}]}}":    "spec.volumes[0].containerDisk.image",
	"{spec: {volumes: [{name: a, containerPath: {path: /" + strings.Repeat("x", 4096) + "}}]}}":    "spec.volumes[0].containerPath.path",
}

func TestValues_Invalid(t *testing.T) {
	for guest, field := range badValues {
		faults := validate.Values(parse(t, guest))
		if len(faults) != 1 || faults[0].Field != field || faults[0].Remedy == "" {
			t.Errorf("%.120s: %+v, want one for %s", guest, faults, field)
		}
		for _, f := range faults {
			if len(f.Text()) > 200 {
				t.Errorf("%s: a text of %d bytes", field, len(f.Text()))
			}
		}
	}
}

func TestValues_Valid(t *testing.T) {
	vmi := parse(t, `{spec: {volumes: [{name: a, containerDisk: {image: x, path: /disk/a.img}}, {name: b, hostDisk: {path: /srv/b.img, capacity: 1Gi}},
		{name: c, downwardAPI: {fields: [{path: a/labels}]}}], domain: {memory: {guest: 128.5M, hugepages: {pageSize: 2Mi}},
		firmware: {kernelBoot: {container: {image: x, kernelPath: /boot/vmlinuz, initrdPath: /initrd}}}}}}`)
	vmi.Spec.Domain.Resources.Requests = corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("1Gi"), "x/y": resource.MustParse("2"),
	}
	if faults := validate.Values(vmi); len(faults) > 0 {
		t.Errorf("%+v", faults)
	}
}
