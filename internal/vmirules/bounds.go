// SPDX-License-Identifier: Apache-2.0

package vmirules

import (
	"encoding/json"
	"fmt"

	v1 "kubevirt.io/api/core/v1"
)

// How much of something a guest may have.
const (
	// MaxDevices is how many devices of one kind a guest can have. The number of a PCI bus has eight bits (PCI Express Base
	// Specification, 7.5.1.3.3), and a device that can be plugged has a bus of its own behind its port; libvirt and QEMU know
	// no other place for it. Disks on SCSI buses take less, but no more than 256 of them have a target each.
	MaxDevices = 256
	// MaxVolumes is one volume for each disk and each file system.
	MaxVolumes = 2 * MaxDevices
	// MaxSidecars is how many hook sidecars a guest may ask for. Each is asked in turn before the domain is defined, within the
	// time that the node gives a guest to start.
	MaxSidecars = 32
	// MaxTerms is how long lists may be that the Pod has from the guest and that are no devices: tolerations, ports, selectors,
	// features of the CPU, of which QEMU knows some hundred. With all of them as long, a Pod still fits into a request to etcd
	// (--max-request-bytes, 1.5 MiB).
	MaxTerms = 1024

	// MaxAnnotations is how many bytes the annotations of a guest may have in all. The API server lets an object have 256 KiB
	// (apimachinery: TotalAnnotationSizeLimitB), and the Pod has what the controllers and its networks write beside the guest's.
	MaxAnnotations = 224 << 10
	// MaxLabels is how many bytes the labels of a guest may have in all. Its Pod has each of them twice, once in managedFields.
	MaxLabels = 64 << 10

	maxKernelArgs = 4096 // COMMAND_LINE_SIZE of s390x, the longest of the architectures
	maxPath       = 4095 // PATH_MAX of Linux, without the NUL
	maxImage      = 1024 // a reference: 255 characters of a repository with registry, 128 of a tag, 135 of a digest, with room
)

// counted is a list or map that is bounded.
type counted struct {
	field string
	most  int
	n     func(*v1.VirtualMachineInstanceSpec) int
}

var lists = []counted{
	{"spec.volumes", MaxVolumes, func(s *v1.VirtualMachineInstanceSpec) int { return len(s.Volumes) }},
	{"spec.utilityVolumes", MaxVolumes, func(s *v1.VirtualMachineInstanceSpec) int { return len(s.UtilityVolumes) }},
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

// Bounds returns what a guest has more of than a guest can have. It costs next to nothing.
func Bounds(vmi *v1.VirtualMachineInstance) (faults []Fault) {
	excess := func(field string, n, most int, unit string) {
		if n > most {
			faults = append(faults, Fault{
				Kind: Excess, Field: field, Value: fmt.Sprintf("%d%s", n, unit), Reason: fmt.Sprintf("are more than %d", most),
				Remedy: fmt.Sprintf("use at most %d", most),
			})
		}
	}
	for i := range lists {
		excess(lists[i].field, lists[i].n(&vmi.Spec), lists[i].most, "")
	}
	for i := range vmi.Spec.Volumes {
		if d := vmi.Spec.Volumes[i].DownwardAPI; d != nil && i < MaxVolumes {
			excess(fmt.Sprintf("spec.volumes[%d].downwardAPI.fields", i), len(d.Fields), MaxTerms, "")
		}
	}
	excess("metadata.annotations", bytesOf(vmi.Annotations), MaxAnnotations, " bytes")
	excess("metadata.labels", bytesOf(vmi.Labels), MaxLabels, " bytes")
	if len(faults) == 0 { // else the text may be of any length
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

// sidecars counts the hook sidecars of a guest, none if they are no list: that is for those to say who read them.
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
