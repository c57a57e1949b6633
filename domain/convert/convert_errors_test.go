// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/internal/domainfixture"
)

func TestConvert_ErrorField(t *testing.T) {
	const disk, nic = "spec.domain.devices.disks[0]", "spec.domain.devices.interfaces[0]"
	type vmiT = v1.VirtualMachineInstance
	first := func(v *vmiT) *v1.Disk { return &v.Spec.Domain.Devices.Disks[0] }
	card := func(v *vmiT) *v1.Interface { return &v.Spec.Domain.Devices.Interfaces[0] }
	boot := func(v *vmiT, k v1.KernelBoot) { v.Spec.Domain.Firmware = &v1.Firmware{KernelBoot: &k} }
	rows := map[string]struct {
		change func(*vmiT, *Facts)
		field  string
		err    error
	}{
		"no uid":          {func(v *vmiT, _ *Facts) { v.UID = "" }, "metadata.uid", domain.ErrInvalid},
		"uid is no uuid":  {func(v *vmiT, _ *Facts) { v.UID = "7" }, "metadata.uid", domain.ErrInvalid},
		"slash in a name": {func(v *vmiT, _ *Facts) { v.Name = "a/b" }, "metadata.name", domain.ErrInvalid},
		"firmware uuid":   {func(v *vmiT, _ *Facts) { v.Spec.Domain.Firmware = &v1.Firmware{UUID: "x"} }, "spec.domain.firmware.uuid", domain.ErrInvalid},
		"no memory":       {func(v *vmiT, _ *Facts) { v.Spec.Domain.Memory = nil }, "spec.domain.memory.guest", domain.ErrInvalid},
		"little memory":   {func(v *vmiT, _ *Facts) { v.Spec.Domain.Memory.Guest = new(resource.MustParse("1k")) }, "spec.domain.memory.guest", domain.ErrInvalid},
		"negative memory": {func(v *vmiT, _ *Facts) { v.Spec.Domain.Memory.Guest = new(resource.MustParse("-1Gi")) }, "spec.domain.memory.guest", domain.ErrInvalid},
		"less memory later": {func(v *vmiT, _ *Facts) { v.Spec.Domain.Memory.MaxGuest = new(resource.MustParse("1Mi")) },
			"spec.domain.memory.maxGuest", domain.ErrInvalid},
		"huge pages":     {func(v *vmiT, _ *Facts) { v.Spec.Domain.Memory.Hugepages = &v1.Hugepages{} }, "spec.domain.memory.hugepages.pageSize", domain.ErrInvalid},
		"too many CPUs":  {func(v *vmiT, _ *Facts) { v.Spec.Domain.CPU = &v1.CPU{Sockets: 1 << 31, Cores: 1 << 31} }, "spec.domain.cpu", domain.ErrInvalid},
		"dedicated CPUs": {func(v *vmiT, _ *Facts) { v.Spec.Domain.CPU = &v1.CPU{DedicatedCPUPlacement: true} }, "spec.domain.cpu.dedicatedCpuPlacement", domain.ErrUnsupported},
		"host CPU while emulated": {func(v *vmiT, _ *Facts) { v.Spec.Domain.CPU = &v1.CPU{Model: "host-passthrough"} },
			"spec.domain.cpu.model", domain.ErrInvalid},
		"policy of a CPU feature": {func(v *vmiT, _ *Facts) {
			v.Spec.Domain.CPU = &v1.CPU{Features: []v1.CPUFeature{{Name: "aes", Policy: "perhaps"}}}
		}, "spec.domain.cpu.features[0].policy", domain.ErrInvalid},
		"other architecture": {func(v *vmiT, _ *Facts) { v.Spec.Architecture = "arm64" }, "spec.architecture", domain.ErrInvalid},
		"EFI": {func(v *vmiT, _ *Facts) {
			v.Spec.Domain.Firmware = &v1.Firmware{Bootloader: &v1.Bootloader{EFI: &v1.EFI{SecureBoot: new(false)}}}
		}, "spec.domain.firmware.bootloader.efi", domain.ErrUnsupported},
		"kernel the node has not": {func(v *vmiT, f *Facts) {
			f.Kernel = ""
			boot(v, v1.KernelBoot{Container: &v1.KernelBootContainer{KernelPath: "/k"}})
		}, "spec.domain.firmware.kernelBoot.container.kernelPath", domain.ErrInvalid},
		"initrd the node has not": {func(v *vmiT, f *Facts) {
			f.Initrd = ""
			boot(v, v1.KernelBoot{Container: &v1.KernelBootContainer{KernelPath: "/k", InitrdPath: "/i"}})
		}, "spec.domain.firmware.kernelBoot.container.initrdPath", domain.ErrInvalid},
		"reboot policy": {func(v *vmiT, _ *Facts) { v.Spec.Domain.RebootPolicy = new(v1.RebootPolicy("x")) }, "spec.domain.rebootPolicy", domain.ErrInvalid},
		"bus":           {func(v *vmiT, _ *Facts) { first(v).Disk.Bus = "ide" }, disk + ".disk.bus", domain.ErrInvalid},
		"two devices":   {func(v *vmiT, _ *Facts) { first(v).CDRom = &v1.CDRomTarget{} }, disk, domain.ErrInvalid},
		"disk name":     {func(v *vmiT, _ *Facts) { first(v).Name = "a.b" }, disk + ".name", domain.ErrInvalid},
		"disk twice": {func(v *vmiT, _ *Facts) {
			v.Spec.Domain.Devices.Disks = append(v.Spec.Domain.Devices.Disks, *first(v))
		}, "spec.domain.devices.disks[1].name", domain.ErrInvalid},
		"no volume":       {func(v *vmiT, _ *Facts) { v.Spec.Volumes = nil }, disk + ".name", domain.ErrInvalid},
		"volume not here": {func(_ *vmiT, f *Facts) { delete(f.Disks, "root") }, "spec.volumes[root]", domain.ErrNotFound},
		"relative path":   {func(_ *vmiT, f *Facts) { f.Disks["root"] = DiskSource{Path: "x"} }, "spec.volumes[root]", domain.ErrInvalid},
		"format":          {func(_ *vmiT, f *Facts) { f.Disks["root"] = DiskSource{Path: "/x", Format: "vmdk"} }, "spec.volumes[root]", domain.ErrUnsupported},
		"volume kind": {func(v *vmiT, _ *Facts) {
			v.Spec.Volumes[0].VolumeSource = v1.VolumeSource{MemoryDump: &v1.MemoryDumpVolumeSource{}}
		}, "spec.volumes[root].memoryDump", domain.ErrInvalid},
		"PCI address off virtio": {func(v *vmiT, _ *Facts) {
			first(v).Disk.Bus, first(v).Disk.PciAddress = "sata", "0000:81:01.0"
		}, disk + ".disk.pciAddress", domain.ErrInvalid},
		"PCI address":         {func(v *vmiT, _ *Facts) { first(v).Disk.PciAddress = "81:1.0" }, disk + ".disk.pciAddress", domain.ErrInvalid},
		"serial number":       {func(v *vmiT, _ *Facts) { first(v).Serial = "a,b" }, disk + ".serial", domain.ErrInvalid},
		"disk boot order":     {func(v *vmiT, _ *Facts) { first(v).BootOrder = new(uint(0)) }, disk + ".bootOrder", domain.ErrInvalid},
		"no cache w/o direct": {func(v *vmiT, _ *Facts) { first(v).Cache = "none" }, disk + ".cache", domain.ErrInvalid},
		"cache mode":          {func(v *vmiT, _ *Facts) { first(v).Cache = "unsafe" }, disk + ".cache", domain.ErrInvalid},
		"native needs none":   {func(v *vmiT, _ *Facts) { first(v).IO = "native" }, disk + ".io", domain.ErrInvalid},
		"I/O mode":            {func(v *vmiT, _ *Facts) { first(v).IO = "fast" }, disk + ".io", domain.ErrInvalid},
		"shared with a cache": {func(v *vmiT, _ *Facts) {
			first(v).Shareable, first(v).Cache = new(true), "writeback"
		}, disk + ".cache", domain.ErrInvalid},
		"error policy":       {func(v *vmiT, _ *Facts) { first(v).ErrorPolicy = new(v1.DiskErrorPolicy("x")) }, disk + ".errorPolicy", domain.ErrInvalid},
		"matched block size": {func(v *vmiT, _ *Facts) { first(v).BlockSize = &v1.BlockSize{MatchVolume: &v1.FeatureState{}} }, disk + ".blockSize.matchVolume", domain.ErrUnsupported},
		"lun of a file":      {func(v *vmiT, _ *Facts) { first(v).DiskDevice = v1.DiskDevice{LUN: &v1.LunTarget{Bus: "scsi"}} }, disk + ".lun", domain.ErrInvalid},
		"reservation": {func(v *vmiT, f *Facts) {
			first(v).DiskDevice = v1.DiskDevice{LUN: &v1.LunTarget{Reservation: true}}
			f.Disks["root"] = DiskSource{Path: "/dev/x", Block: true}
		}, disk + ".lun.reservation", domain.ErrUnsupported},
		"interface name":    {func(v *vmiT, _ *Facts) { card(v).Name = "" }, nic + ".name", domain.ErrInvalid},
		"no binding":        {func(v *vmiT, _ *Facts) { card(v).Masquerade = nil }, nic, domain.ErrInvalid},
		"binding plugin":    {func(v *vmiT, _ *Facts) { card(v).Masquerade, card(v).Binding = nil, &v1.PluginBinding{} }, nic + ".binding", domain.ErrUnsupported},
		"no network":        {func(v *vmiT, _ *Facts) { v.Spec.Networks = nil }, nic + ".name", domain.ErrInvalid},
		"network not here":  {func(_ *vmiT, f *Facts) { f.Bridges = nil }, "spec.networks[default]", domain.ErrNotFound},
		"hardware address":  {func(v *vmiT, _ *Facts) { card(v).MacAddress = "0" }, nic + ".macAddress", domain.ErrInvalid},
		"multicast address": {func(v *vmiT, _ *Facts) { card(v).MacAddress = "01:00:00:00:00:01" }, nic + ".macAddress", domain.ErrInvalid},
		"card boot order":   {func(v *vmiT, _ *Facts) { card(v).BootOrder = new(uint(0)) }, nic + ".bootOrder", domain.ErrInvalid},
		"card state":        {func(v *vmiT, _ *Facts) { card(v).State = "sideways" }, nic + ".state", domain.ErrInvalid},
		"keyboard":          {func(v *vmiT, _ *Facts) { v.Spec.Domain.Devices.Inputs = []v1.Input{{Name: "k", Type: "keyboard"}} }, "spec.domain.devices.inputs[0].type", domain.ErrInvalid},
		"ps2 tablet": {func(v *vmiT, _ *Facts) {
			v.Spec.Domain.Devices.Inputs = []v1.Input{{Name: "k", Type: "tablet", Bus: "ps2"}}
		}, "spec.domain.devices.inputs[0].bus", domain.ErrInvalid},
		"watchdog elsewhere": {func(v *vmiT, _ *Facts) { v.Spec.Domain.Devices.Watchdog = &v1.Watchdog{Name: "w"} }, "spec.domain.devices.watchdog", domain.ErrInvalid},
		"video":              {func(v *vmiT, _ *Facts) { v.Spec.Domain.Devices.Video = &v1.VideoDevice{Type: "x"} }, "spec.domain.devices.video.type", domain.ErrInvalid},
		"Hyper-V emulated":   {func(v *vmiT, _ *Facts) { v.Spec.Domain.Features = &v1.Features{Hyperv: &v1.FeatureHyperv{}} }, "spec.domain.features.hyperv", domain.ErrInvalid},
		"hook sidecars": {func(v *vmiT, _ *Facts) {
			v.Annotations = map[string]string{"hooks.kubevirt.io/hookSidecars": "[{}]"}
		}, "metadata.annotations[hooks.kubevirt.io/hookSidecars]", domain.ErrUnsupported},
		"character XML has not": {func(v *vmiT, _ *Facts) {
			v.Spec.Domain.Chassis = &v1.Chassis{Asset: "a\x00b"}
		}, "spec", domain.ErrInvalid},
	}
	for name, row := range rows {
		t.Run(name, func(t *testing.T) {
			vmi, f := domainfixture.Small(), domainfixture.Facts[Facts]()
			row.change(vmi, &f)
			d, err := Convert(vmi, f)
			if d != nil {
				t.Error("a domain is returned as well")
			}
			if name == "relative path" { // an error of the node, with no remedy in the spec
				if err == nil || !strings.Contains(err.Error(), "absolute") {
					t.Errorf("error is %v", err)
				}
				return
			}
			wantError(t, err, row.field, row.err)
		})
	}
}

func TestConvert_SocketPathTooLong(t *testing.T) {
	f := domainfixture.Facts[Facts]()
	f.Dir = "/" + strings.Repeat("d", 100)
	if _, err := Convert(domainfixture.Small(), f); err == nil || !strings.Contains(err.Error(), "shorter") {
		t.Errorf("error is %v", err)
	}
	f.Dir = ""
	if _, err := Convert(domainfixture.Small(), f); err == nil {
		t.Error("converted without a directory")
	}
}
