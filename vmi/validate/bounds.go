// SPDX-License-Identifier: Apache-2.0

package validate

import (
	"encoding/json"
	"fmt"

	v1 "kubevirt.io/api/core/v1"
)

// Limits on the elements of a VMI.
const (
	// MaxDevices is the maximum number of devices of one kind. A PCI bus number has eight bits (PCI Express Base
	// Specification, 7.5.1.3.3), and libvirt and QEMU put a hotpluggable device on a bus of its own behind its port. Disks on
	// SCSI buses need fewer buses, but only 256 of them get a target each.
	MaxDevices = 256
	// maxVolumes allows one volume for each disk and each file system.
	maxVolumes = 2 * MaxDevices
	// MaxSidecars is the maximum number of hook sidecars. The launcher calls them one after the other before it defines the
	// domain, within the VMI's start timeout on the node.
	MaxSidecars = 32
	// MaxTerms is the maximum length of lists that the Pod takes from the VMI and that are no devices: tolerations, ports,
	// selectors, CPU features (QEMU knows a few hundred). With all of them at this length, a Pod still fits into a request to
	// etcd (--max-request-bytes, 1.5 MiB).
	MaxTerms = 1024

	// maxAnnotations is the maximum total size of the VMI's annotations, in bytes. The API server allows an object 256 KiB
	// (apimachinery: TotalAnnotationSizeLimitB), and the Pod carries annotations of the controllers and networks as well.
	maxAnnotations = 224 << 10
	// maxLabels is the maximum total size of the VMI's labels, in bytes. Its Pod stores each of them twice, once in
	// managedFields.
	maxLabels = 64 << 10

	maxKernelArgs = 4096 // COMMAND_LINE_SIZE of s390x, the longest of the architectures
	maxPath       = 4095 // PATH_MAX of Linux, without the NUL
	maxImage      = 1024 // a reference: 255 characters of a repository with registry, 128 of a tag, 135 of a digest, with room
)

// boundedList is a list or map with a maximum length.
type boundedList struct {
	field string
	most  int
	n     func(*v1.VirtualMachineInstanceSpec) int
}

var lists = []boundedList{
	{"spec.volumes", maxVolumes, func(s *v1.VirtualMachineInstanceSpec) int { return len(s.Volumes) }},
	{"spec.utilityVolumes", maxVolumes, func(s *v1.VirtualMachineInstanceSpec) int { return len(s.UtilityVolumes) }},
	{"spec.networks", MaxDevices, func(s *v1.VirtualMachineInstanceSpec) int { return len(s.Networks) }},
	{"spec.accessCredentials", MaxDevices, func(s *v1.VirtualMachineInstanceSpec) int { return len(s.AccessCredentials) }},
	{"spec.resourceClaims", MaxDevices, func(s *v1.VirtualMachineInstanceSpec) int { return len(s.ResourceClaims) }},
	{"spec.tolerations", MaxTerms, func(s *v1.VirtualMachineInstanceSpec) int { return len(s.Tolerations) }},
	{"spec.topologySpreadConstraints", MaxTerms, func(s *v1.VirtualMachineInstanceSpec) int { return len(s.TopologySpreadConstraints) }},
	{"spec.nodeSelector", MaxTerms, func(s *v1.VirtualMachineInstanceSpec) int { return len(s.NodeSelector) }},
	{devices + "disks", MaxDevices, func(s *v1.VirtualMachineInstanceSpec) int { return len(s.Domain.Devices.Disks) }},
	{devices + "filesystems", MaxDevices, func(s *v1.VirtualMachineInstanceSpec) int { return len(s.Domain.Devices.Filesystems) }},
	{devices + "interfaces", MaxDevices, func(s *v1.VirtualMachineInstanceSpec) int { return len(s.Domain.Devices.Interfaces) }},
	{devices + "gpus", MaxDevices, func(s *v1.VirtualMachineInstanceSpec) int { return len(s.Domain.Devices.GPUs) }},
	{devices + "hostDevices", MaxDevices, func(s *v1.VirtualMachineInstanceSpec) int { return len(s.Domain.Devices.HostDevices) }},
	{devices + "inputs", MaxDevices, func(s *v1.VirtualMachineInstanceSpec) int { return len(s.Domain.Devices.Inputs) }},
	{devices + "panicDevices", MaxDevices, func(s *v1.VirtualMachineInstanceSpec) int { return len(s.Domain.Devices.PanicDevices) }},
	{"spec.domain.resources.requests", MaxTerms, func(s *v1.VirtualMachineInstanceSpec) int { return len(s.Domain.Resources.Requests) }},
	{"spec.domain.resources.limits", MaxTerms, func(s *v1.VirtualMachineInstanceSpec) int { return len(s.Domain.Resources.Limits) }},
	{"spec.domain.cpu.features", MaxTerms, func(s *v1.VirtualMachineInstanceSpec) int {
		if s.Domain.CPU == nil {
			return 0
		}
		return len(s.Domain.CPU.Features)
	}},
	{devices + "interfaces[*].ports", MaxTerms, func(s *v1.VirtualMachineInstanceSpec) (n int) {
		for i := range s.Domain.Devices.Interfaces {
			n += len(s.Domain.Devices.Interfaces[i].Ports)
		}
		return n
	}},
}

// Bounds returns the lists, maps and texts of a VMI that exceed their maximum. It is cheap.
func Bounds(vmi *v1.VirtualMachineInstance) (faults []Fault) {
	excess := func(field string, n, most int, unit string) {
		if n > most {
			faults = append(faults, Fault{
				Kind: Excess, Field: field, Value: brief(fmt.Sprintf("%d%s", n, unit)), Reason: fmt.Sprintf("exceeds the maximum of %d", most),
				Remedy: fmt.Sprintf("use at most %d", most),
			})
		}
	}
	for i := range lists {
		excess(lists[i].field, lists[i].n(&vmi.Spec), lists[i].most, "")
	}
	for i := range vmi.Spec.Volumes {
		if d := vmi.Spec.Volumes[i].DownwardAPI; d != nil && i < maxVolumes {
			excess(fmt.Sprintf("spec.volumes[%d].downwardAPI.fields", i), len(d.Fields), MaxTerms, "")
		}
	}
	excess("metadata.annotations", bytesOf(vmi.Annotations), maxAnnotations, " bytes")
	excess("metadata.labels", bytesOf(vmi.Labels), maxLabels, " bytes")
	if len(faults) == 0 { // otherwise the annotation may be arbitrarily long
		excess("metadata.annotations["+hookSidecars+"]", sidecars(vmi), MaxSidecars, "")
	}
	return faults
}

func bytesOf(texts map[string]string) (n int) {
	for key, value := range texts {
		n += len(key) + len(value)
	}
	return n
}

// sidecars returns the number of hook sidecars of a VMI, 0 if the annotation cannot be decoded: its readers report that.
func sidecars(vmi *v1.VirtualMachineInstance) int {
	text, there := vmi.Annotations[hookSidecars]
	if !there {
		return 0
	}
	var list []json.RawMessage
	if json.Unmarshal([]byte(text), &list) != nil {
		return 0
	}
	return len(list)
}
