// SPDX-License-Identifier: Apache-2.0

package template

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	v1 "kubevirt.io/api/core/v1"
)

// validateVMI rejects a VMI that cannot be rendered. It reports all faults, not only the first.
func validateVMI(d *Draft) error {
	errs := slices.Concat(
		checkMemory(&d.vmi.Spec.Domain),
		checkCPU(&d.vmi.Spec.Domain),
		checkDisks(&d.vmi.Spec),
		checkVolumes(d.vmi.Spec.Volumes),
		checkKernelBoot(&d.vmi.Spec.Domain),
		checkStorage(d),
		checkPod(d),
	)
	return errors.Join(errs...)
}

func checkDisks(spec *v1.VirtualMachineInstanceSpec) (errs []error) {
	volumes := map[string]bool{}
	for _, v := range spec.Volumes {
		volumes[v.Name] = true
	}
	seen := map[string]int{}
	for i := range spec.Domain.Devices.Disks {
		disk := &spec.Domain.Devices.Disks[i]
		at := fmt.Sprintf("spec.domain.devices.disks[%d]", i)
		if first, ok := seen[disk.Name]; ok {
			errs = append(errs, invalid(at+".name", fmt.Sprintf("%q is a duplicate of disks[%d]", disk.Name, first), "use unique disk names"))
		}
		seen[disk.Name] = i
		if !volumes[disk.Name] && disk.CDRom == nil { // a drive may be empty: its medium can be hotplugged
			errs = append(errs, invalid(at+".name", fmt.Sprintf("volume %q is not defined", disk.Name), "add the volume to spec.volumes or remove the disk"))
		}
		errs = append(errs, checkDiskDevice(at, disk)...)
	}
	return errs
}

func checkDiskDevice(at string, disk *v1.Disk) (errs []error) {
	var kinds []string
	var bus v1.DiskBus
	if disk.Disk != nil {
		kinds, bus = append(kinds, "disk"), disk.Disk.Bus
	}
	if disk.LUN != nil {
		kinds, bus = append(kinds, "lun"), disk.LUN.Bus
	}
	if disk.CDRom != nil {
		kinds, bus = append(kinds, "cdrom"), disk.CDRom.Bus
	}
	if len(kinds) > 1 {
		return []error{invalid(at, "must specify one kind, not "+strings.Join(kinds, " and "), "keep one of them")}
	}
	if len(kinds) == 0 {
		return nil // a disk without a kind is a plain disk
	}
	known := []v1.DiskBus{"", v1.DiskBusVirtio, v1.DiskBusSATA, v1.DiskBusSCSI, v1.DiskBusUSB}
	if kinds[0] == "cdrom" {
		known = []v1.DiskBus{"", v1.DiskBusSATA, v1.DiskBusSCSI, v1.DiskBusUSB}
	}
	if !slices.Contains(known, bus) {
		errs = append(errs, invalid(at+"."+kinds[0]+".bus", fmt.Sprintf("%q is not supported for a %s", bus, kinds[0]),
			fmt.Sprintf("use one of %q", known[1:])))
	}
	return errs
}

func checkVolumes(volumes []v1.Volume) (errs []error) {
	seen := map[string]int{}
	for i := range volumes {
		v := &volumes[i]
		at := elementOf(vmiVolumes, i)
		if !plain(v.Name) {
			if problems := validation.IsDNS1123Label(v.Name); len(problems) > 0 {
				errs = append(errs, invalid(at+".name", fmt.Sprintf("%q: %s", v.Name, problems[0]), "use lower case letters, digits and dashes"))
			}
		}
		if first, ok := seen[v.Name]; ok {
			errs = append(errs, invalid(at+".name", fmt.Sprintf("%q is a duplicate of volumes[%d]", v.Name, first), "use unique volume names"))
		}
		seen[v.Name] = i
		if slices.Contains(reservedVolumes, v.Name) {
			errs = append(errs, invalid(at+".name", fmt.Sprintf("%q is reserved for the launcher", v.Name), "use another name"))
		}
		errs = append(errs, checkSource(at, &v.VolumeSource)...)
	}
	return errs
}

func checkSource(at string, s *v1.VolumeSource) []error {
	set := sourcesOf(s)
	switch len(set) {
	case 0:
		return []error{invalid(at, "must specify a source", "add one, such as containerDisk or persistentVolumeClaim")}
	case 1:
	default:
		return []error{invalid(at, "must specify one source, not "+strings.Join(set, ", "), "keep one of them")}
	}
	if field := emptySource(s); field != "" {
		return []error{invalid(at+"."+field, "must be set", "set the source of the volume")}
	}
	switch {
	case s.EmptyDisk != nil && s.EmptyDisk.Capacity.IsZero():
		return []error{invalid(at+".emptyDisk.capacity", s.EmptyDisk.Capacity.String()+" must be a positive size", "use a size such as 1Gi")}
	case s.HostDisk != nil:
		return checkHostDisk(at+".hostDisk", s.HostDisk)
	}
	return nil
}

// emptySource returns the field of a source with a missing object or image.
func emptySource(s *v1.VolumeSource) string {
	claimed := func(c *corev1.PersistentVolumeClaimVolumeSource) bool { return c != nil && c.ClaimName != "" }
	for _, source := range []struct {
		field string
		empty bool
	}{
		{"persistentVolumeClaim.claimName", s.PersistentVolumeClaim != nil && s.PersistentVolumeClaim.ClaimName == ""},
		{"dataVolume.name", s.DataVolume != nil && s.DataVolume.Name == ""},
		{"containerDisk.image", s.ContainerDisk != nil && s.ContainerDisk.Image == ""},
		{"ephemeral.persistentVolumeClaim.claimName", s.Ephemeral != nil && !claimed(s.Ephemeral.PersistentVolumeClaim)},
		{"sysprep", s.Sysprep != nil && s.Sysprep.Secret == nil && s.Sysprep.ConfigMap == nil},
	} {
		if source.empty {
			return source.field
		}
	}
	return ""
}

func checkHostDisk(at string, h *v1.HostDisk) (errs []error) {
	if !slices.Contains([]v1.HostDiskType{"", v1.HostDiskExists, v1.HostDiskExistsOrCreate}, h.Type) {
		errs = append(errs, invalid(at+".type", fmt.Sprintf("%q is not supported", h.Type), "use Disk or DiskOrCreate"))
	}
	if h.Type == v1.HostDiskExistsOrCreate && h.Capacity.IsZero() {
		errs = append(errs, invalid(at+".capacity", "must be a positive size to create the disk", "use a size such as 1Gi"))
	}
	return errs
}

func sourcesOf(s *v1.VolumeSource) (set []string) {
	for _, source := range []struct {
		name string
		set  bool
	}{
		{"hostDisk", s.HostDisk != nil}, {"persistentVolumeClaim", s.PersistentVolumeClaim != nil},
		{"cloudInitNoCloud", s.CloudInitNoCloud != nil}, {"cloudInitConfigDrive", s.CloudInitConfigDrive != nil},
		{"sysprep", s.Sysprep != nil}, {"containerDisk", s.ContainerDisk != nil}, {"ephemeral", s.Ephemeral != nil},
		{"emptyDisk", s.EmptyDisk != nil}, {"dataVolume", s.DataVolume != nil}, {"configMap", s.ConfigMap != nil},
		{"secret", s.Secret != nil}, {"downwardAPI", s.DownwardAPI != nil}, {"serviceAccount", s.ServiceAccount != nil},
		{"downwardMetrics", s.DownwardMetrics != nil}, {"memoryDump", s.MemoryDump != nil},
		{"containerPath", s.ContainerPath != nil},
	} {
		if source.set {
			set = append(set, source.name)
		}
	}
	return set
}

func checkKernelBoot(domain *v1.DomainSpec) []error {
	if domain.Firmware == nil || domain.Firmware.KernelBoot == nil || domain.Firmware.KernelBoot.Container == nil {
		return nil
	}
	c := domain.Firmware.KernelBoot.Container
	const at = "spec.domain.firmware.kernelBoot.container"
	if c.Image == "" {
		return []error{invalid(at+".image", "must be set", "set the image with the kernel")}
	}
	if c.KernelPath == "" && c.InitrdPath == "" {
		return []error{invalid(at, "must specify kernelPath or initrdPath", "set the paths in the image")}
	}
	return nil
}
