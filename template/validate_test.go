// SPDX-License-Identifier: Apache-2.0

package template_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/template"
	"github.com/virtloom/virtloom/template/render"
)

func pvc(name string) v1.VolumeSource {
	return v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{
		PersistentVolumeClaimVolumeSource: corev1.PersistentVolumeClaimVolumeSource{ClaimName: name},
	}}
}

func image(name string) v1.VolumeSource {
	return v1.VolumeSource{ContainerDisk: &v1.ContainerDiskSource{Image: name}}
}

func hostDisk(path string, kind v1.HostDiskType) v1.VolumeSource {
	return v1.VolumeSource{HostDisk: &v1.HostDisk{Path: path, Type: kind, Capacity: *quantity("1Gi")}}
}

func TestValidate_Invalid(t *testing.T) {
	for name, tc := range map[string]struct {
		vmi   []change
		field string
		class error
	}{
		"no memory":          {[]change{guest("0")}, "spec.domain.memory.guest", render.ErrInvalid},
		"negative memory":    {[]change{guest("-1Gi")}, "spec.domain.memory.guest", render.ErrInvalid},
		"negative request":   {[]change{requests("memory", "-1")}, "spec.domain.resources.requests.memory", render.ErrInvalid},
		"negative CPU limit": {[]change{limits("cpu", "-1")}, "spec.domain.resources.limits.cpu", render.ErrInvalid},
		"request over limit": {[]change{requests("memory", "2G"), limits("memory", "1G")}, "spec.domain.resources.requests.memory", render.ErrInvalid},
		"CPU over limit":     {[]change{requests("cpu", "2"), limits("cpu", "1")}, "spec.domain.resources.requests.cpu", render.ErrInvalid},
		"page size":          {[]change{guest("1Gi"), hugepages("big")}, "spec.domain.memory.hugepages.pageSize", render.ErrInvalid},
		"isolated emulator of shared CPUs": {[]change{func(vmi *v1.VirtualMachineInstance) {
			vmi.Spec.Domain.CPU = &v1.CPU{IsolateEmulatorThread: true}
		}}, "spec.domain.cpu.isolateEmulatorThread", render.ErrInvalid},
		"unnamed feature": {[]change{func(vmi *v1.VirtualMachineInstance) {
			vmi.Spec.Domain.CPU = &v1.CPU{Features: []v1.CPUFeature{{Policy: "require"}}}
		}}, "spec.domain.cpu.features[0].name", render.ErrInvalid},
		"disk without volume": {[]change{disk("a")}, "spec.domain.devices.disks[0].name", render.ErrInvalid},
		"disk twice":          {[]change{volume("a", image("i")), disk("a"), disk("a")}, "spec.domain.devices.disks[1].name", render.ErrInvalid},
		"unknown bus": {[]change{volume("a", image("i")), disk("a"), func(vmi *v1.VirtualMachineInstance) {
			vmi.Spec.Domain.Devices.Disks[0].Disk.Bus = "ide"
		}}, "spec.domain.devices.disks[0].disk.bus", render.ErrInvalid},
		"virtio cdrom": {[]change{volume("a", image("i")), disk("a"), func(vmi *v1.VirtualMachineInstance) {
			vmi.Spec.Domain.Devices.Disks[0].DiskDevice = v1.DiskDevice{CDRom: &v1.CDRomTarget{Bus: v1.DiskBusVirtio}}
		}}, "spec.domain.devices.disks[0].cdrom.bus", render.ErrInvalid},
		"disk and lun": {[]change{volume("a", image("i")), disk("a"), func(vmi *v1.VirtualMachineInstance) {
			vmi.Spec.Domain.Devices.Disks[0].LUN = &v1.LunTarget{}
		}}, "spec.domain.devices.disks[0]", render.ErrInvalid},
		"volume without source":  {[]change{volume("a", v1.VolumeSource{})}, "spec.volumes[0]", render.ErrInvalid},
		"volume with two":        {[]change{volume("a", v1.VolumeSource{ContainerDisk: image("i").ContainerDisk, HostDisk: hostDisk("/a/b", "").HostDisk})}, "spec.volumes[0]", render.ErrInvalid},
		"volume twice":           {[]change{volume("a", image("i")), volume("a", image("i"))}, "spec.volumes[1].name", render.ErrInvalid},
		"volume name":            {[]change{volume("A_", image("i"))}, "spec.volumes[0].name", render.ErrInvalid},
		"volume of the launcher": {[]change{volume("private", image("i"))}, "spec.volumes[0].name", render.ErrInvalid},
		"volume named as another's secret": {[]change{
			volume("a", v1.VolumeSource{CloudInitNoCloud: &v1.CloudInitNoCloudSource{UserDataSecretRef: &corev1.LocalObjectReference{Name: "s"}}}),
			volume("a-udata", hostDisk("/a/b", v1.HostDiskExists)),
		}, "spec.volumes[a-udata]", render.ErrInvalid},
		"image without name":        {[]change{volume("a", image(""))}, "spec.volumes[0].containerDisk.image", render.ErrInvalid},
		"claim without name":        {[]change{volume("a", pvc(""))}, "spec.volumes[0].persistentVolumeClaim.claimName", render.ErrInvalid},
		"data volume, no name":      {[]change{volume("a", v1.VolumeSource{DataVolume: &v1.DataVolumeSource{}})}, "spec.volumes[0].dataVolume.name", render.ErrInvalid},
		"ephemeral of nothing":      {[]change{volume("a", v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{}})}, "spec.volumes[0].ephemeral.persistentVolumeClaim.claimName", render.ErrInvalid},
		"empty disk of no size":     {[]change{volume("a", v1.VolumeSource{EmptyDisk: &v1.EmptyDiskSource{}})}, "spec.volumes[0].emptyDisk.capacity", render.ErrInvalid},
		"sysprep of nothing":        {[]change{volume("a", v1.VolumeSource{Sysprep: &v1.SysprepSource{}})}, "spec.volumes[0].sysprep", render.ErrInvalid},
		"relative host disk":        {[]change{volume("a", hostDisk("a/b", v1.HostDiskExists))}, "spec.volumes[0].hostDisk.path", render.ErrInvalid},
		"climbing host disk":        {[]change{volume("a", hostDisk("/a/../etc/x", v1.HostDiskExists))}, "spec.volumes[0].hostDisk.path", render.ErrInvalid},
		"host disk in the root":     {[]change{volume("a", hostDisk("/x", v1.HostDiskExists))}, "spec.volumes[0].hostDisk.path", render.ErrInvalid},
		"host disk type":            {[]change{volume("a", hostDisk("/a/b", "Folder"))}, "spec.volumes[0].hostDisk.type", render.ErrInvalid},
		"claim unknown":             {[]change{volume("a", pvc("c"))}, "spec.volumes[0].persistentVolumeClaim.claimName", render.ErrMissingFact},
		"interface without network": {[]change{virtio, func(vmi *v1.VirtualMachineInstance) { vmi.Spec.Networks = nil }}, "spec.domain.devices.interfaces[0].name", render.ErrInvalid},
		"network twice": {[]change{virtio, func(vmi *v1.VirtualMachineInstance) {
			vmi.Spec.Networks = append(vmi.Spec.Networks, vmi.Spec.Networks[0])
		}}, "spec.networks[1].name", render.ErrInvalid},
		"port": {[]change{virtio, func(vmi *v1.VirtualMachineInstance) {
			vmi.Spec.Domain.Devices.Interfaces[0].Ports = []v1.Port{{Port: 70000}}
		}}, "spec.domain.devices.interfaces[0].ports[0].port", render.ErrInvalid},
		"grace period": {[]change{func(vmi *v1.VirtualMachineInstance) {
			n := int64(-1)
			vmi.Spec.TerminationGracePeriodSeconds = &n
		}}, "spec.terminationGracePeriodSeconds", render.ErrInvalid},
		"hostname":             {[]change{func(vmi *v1.VirtualMachineInstance) { vmi.Spec.Hostname = "a.b" }}, "spec.hostname", render.ErrInvalid},
		"log level":            {[]change{func(vmi *v1.VirtualMachineInstance) { vmi.Labels = map[string]string{"logVerbosity": "abc"} }}, "metadata.labels[logVerbosity]", render.ErrInvalid},
		"kernel without image": {[]change{kernelBoot("", "/k")}, "spec.domain.firmware.kernelBoot.container.image", render.ErrInvalid},
		"kernel without files": {[]change{kernelBoot("i", "")}, "spec.domain.firmware.kernelBoot.container", render.ErrInvalid},
		"unnamed GPU":          {[]change{gpus("")}, "spec.domain.devices.gpus[0].deviceName", render.ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := template.Default().Launcher(input(newVMI(tc.vmi...)))
			wantError(t, err, tc.field, tc.class)
		})
	}
}

func kernelBoot(image, kernel string) change {
	return func(vmi *v1.VirtualMachineInstance) {
		vmi.Spec.Domain.Firmware = &v1.Firmware{KernelBoot: &v1.KernelBoot{
			Container: &v1.KernelBootContainer{Image: image, KernelPath: kernel},
		}}
	}
}

func wantError(t *testing.T, err error, field string, class error) {
	t.Helper()
	var e *render.Error
	if !errors.As(err, &e) {
		t.Fatalf("got %v, want a *template.Error", err)
	}
	if e.Field != field || !errors.Is(err, class) {
		t.Errorf("got field %q, error %v; want field %q, %v", e.Field, err, field, class)
	}
	if e.Stage == "" || !strings.Contains(e.Object, "default/testvmi") || e.Remedy == "" || e.Reason == "" {
		t.Errorf("incomplete error %+v", e)
	}
	if !strings.Contains(err.Error(), field) {
		t.Errorf("%q does not name the field", err)
	}
}

// TestValidate_EmptyDrive checks that the Pod of a VMI with an empty drive, whose medium is hotplugged, equals that of a
// VMI without the drive.
func TestValidate_EmptyDrive(t *testing.T) {
	drive := func(vmi *v1.VirtualMachineInstance) {
		vmi.Spec.Domain.Devices.Disks = []v1.Disk{{Name: "drive", DiskDevice: v1.DiskDevice{CDRom: &v1.CDRomTarget{Bus: v1.DiskBusSATA}}}}
	}
	if diff := cmp.Diff(launcher(t, input(newVMI())), launcher(t, input(newVMI(drive)))); diff != "" {
		t.Error(diff)
	}
}

func TestValidate_AllFaults(t *testing.T) {
	_, err := template.Default().Launcher(input(newVMI(guest("0"), disk("a"))))
	if err == nil || !strings.Contains(err.Error(), "memory.guest") || !strings.Contains(err.Error(), "disks[0].name") {
		t.Errorf("got %v, want both faults", err)
	}
}

func TestRender_MissingInput(t *testing.T) {
	for name, tc := range map[string]struct {
		spoil func(*template.Input)
		field string
	}{
		"no VMI":         {func(in *template.Input) { in.VMI = nil }, "Input.VMI"},
		"no name":        {func(in *template.Input) { in.VMI.Name = "" }, "metadata.name"},
		"no namespace":   {func(in *template.Input) { in.VMI.Namespace = "" }, "metadata.namespace"},
		"no UID":         {func(in *template.Input) { in.VMI.UID = "" }, "metadata.uid"},
		"no image":       {func(in *template.Input) { in.Config.LauncherImage = "" }, "Config.LauncherImage"},
		"no migration":   {func(in *template.Input) { in.Migration = nil }, "Input.Migration"},
		"no source pod":  {func(in *template.Input) { in.Migration.SourcePod = nil }, "Input.Migration.SourcePod"},
		"unnamed object": {func(in *template.Input) { in.Migration.UID = "" }, "Input.Migration.UID and Name"},
	} {
		t.Run(name, func(t *testing.T) {
			in := targetInput(t)
			tc.spoil(&in)
			_, err := template.Default().MigrationTarget(in)
			var e *render.Error
			if !errors.As(err, &e) || e.Field != tc.field {
				t.Errorf("got %v, want an error about %s", err, tc.field)
			}
		})
	}
}

func TestDevices_OutsidePermittedList(t *testing.T) {
	vmi := newVMI(gpus("vendor.com/gpu"), func(vmi *v1.VirtualMachineInstance) {
		vmi.Spec.Domain.Devices.HostDevices = []v1.HostDevice{{Name: "h", DeviceName: "vendor.com/dev_name"}}
	})
	in := input(vmi)
	in.Config.PermittedHostDevices = &v1.PermittedHostDevices{PciHostDevices: []v1.PciHostDevice{{ResourceName: "vendor.com/gpu"}}}
	_, err := template.Default().Launcher(in)
	wantError(t, err, "spec.domain.devices.hostDevices[0].deviceName", render.ErrInvalid)
	if want := "HostDevice vendor.com/dev_name is not permitted"; !strings.Contains(err.Error(), want) {
		t.Errorf("got %q, want it to contain %q", err, want)
	}
	in.Config.PermittedHostDevices.USB = []v1.USBHostDevice{{ResourceName: "vendor.com/dev_name"}}
	if _, err := template.Default().Launcher(in); err != nil {
		t.Error(err)
	}
}
