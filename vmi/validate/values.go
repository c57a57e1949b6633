// SPDX-License-Identifier: Apache-2.0

package validate

import (
	"fmt"
	"path"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	v1 "kubevirt.io/api/core/v1"
)

const (
	// MaxBytes exceeds the address space of any machine (52 bits, 4Pi); sums of a few such amounts still fit into 64 bits.
	MaxBytes     = 1 << 60
	maxBytesText = "1Ei"
	// MaxCPUs is a hundred times what hypervisors support; 64 bits still hold a billionth of a CPU for each.
	MaxCPUs = 1 << 20
)

// Values returns the amounts of a VMI outside of the supported range, and its invalid paths. It expects a VMI within
// bounds.
func Values(vmi *v1.VirtualMachineInstance) []Fault {
	v := values{}
	v.memory(&vmi.Spec.Domain)
	v.resources("spec.domain.resources.requests", vmi.Spec.Domain.Resources.Requests)
	v.resources("spec.domain.resources.limits", vmi.Spec.Domain.Resources.Limits)
	for i := range vmi.Spec.Volumes {
		v.volume(i, &vmi.Spec.Volumes[i].VolumeSource)
	}
	v.kernel(vmi.Spec.Domain.Firmware)
	if socket, there := vmi.Annotations[v1.QGSSocketPathAnnotation]; there {
		v.absolute("metadata.annotations["+v1.QGSSocketPathAnnotation+"]", socket, "/var/run/tdx-qgs/qgs.socket")
	}
	return v.faults
}

type values struct{ faults []Fault }

func (v *values) add(field string, value brief, reason, remedy string) {
	v.faults = append(v.faults, Fault{Kind: Invalid, Field: field, Value: value, Reason: reason, Remedy: remedy})
}

// bytes rejects an amount of memory or of a disk outside of the supported range. Lower limits of a purpose belong to the
// callers.
func (v *values) bytes(field string, q *resource.Quantity) {
	switch {
	case q == nil:
	case q.Sign() < 0:
		v.add(field, brief(q.String()), "must not be negative", "use a positive amount")
	case q.CmpInt64(MaxBytes) > 0:
		v.add(field, brief(q.String()), "exceeds the maximum of "+maxBytesText, "use an amount that a node can have")
	case q.Cmp(*resource.NewQuantity(q.Value(), q.Format)) != 0:
		v.add(field, brief(q.String()), "must be a whole number of bytes", "use a whole number such as "+resource.NewQuantity(q.Value(), q.Format).String())
	}
}

func (v *values) memory(d *v1.DomainSpec) {
	m := d.Memory
	if m == nil {
		return
	}
	v.bytes("spec.domain.memory.guest", m.Guest)
	v.bytes("spec.domain.memory.maxGuest", m.MaxGuest)
	if r := m.ReservedOverhead; r != nil {
		v.bytes("spec.domain.memory.reservedOverhead.addedOverhead", r.AddedOverhead)
	}
	if h := m.Hugepages; h != nil {
		const field = "spec.domain.memory.hugepages.pageSize"
		size, err := resource.ParseQuantity(h.PageSize)
		if err != nil || size.Sign() <= 0 {
			v.add(field, shorten(h.PageSize), "must be a positive size", "use a page size of the nodes, such as 2Mi or 1Gi")
			return
		}
		v.bytes(field, &size)
	}
}

func (v *values) resources(field string, list corev1.ResourceList) {
	for _, name := range sortedKeys(list) {
		q, at := list[name], field+"["+string(name)+"]"
		switch name {
		case corev1.ResourceMemory:
			at = field + "." + string(name) // Kubernetes rounds parts of a byte
		}
		most, text := int64(MaxBytes), maxBytesText
		if name == corev1.ResourceCPU {
			at, most, text = field+"."+string(name), MaxCPUs, strconv.Itoa(MaxCPUs)
		}
		switch {
		case q.Sign() < 0:
			v.add(at, brief(q.String()), "must not be negative", "use a positive amount")
		case q.CmpInt64(most) > 0:
			v.add(at, brief(q.String()), "exceeds the maximum of "+text, "use an amount that a node can have")
		}
	}
}

func (v *values) volume(i int, s *v1.VolumeSource) {
	at := func(part string) string { return fmt.Sprintf("spec.volumes[%d].%s", i, part) }
	switch {
	case s.EmptyDisk != nil:
		v.bytes(at("emptyDisk.capacity"), &s.EmptyDisk.Capacity)
	case s.HostDisk != nil:
		v.bytes(at("hostDisk.capacity"), &s.HostDisk.Capacity)
	}
	if h := s.HostDisk; h != nil && (!absolute(h.Path) || path.Dir(h.Path) == "/") {
		v.add(at("hostDisk.path"), shorten(h.Path), "must be a clean absolute path of a file in a folder", "use a path like /srv/disks/vm.img")
	}
	if c := s.ContainerDisk; c != nil {
		v.image(at("containerDisk.image"), c.Image)
		if c.Path != "" {
			v.absolute(at("containerDisk.path"), c.Path, "/disk/guest.qcow2")
		}
	}
	if c := s.ContainerPath; c != nil {
		v.absolute(at("containerPath.path"), c.Path, "/etc/podinfo")
	}
	if d := s.DownwardAPI; d != nil {
		for j := range d.Fields {
			if p := d.Fields[j].Path; !relative(p) {
				v.add(at(fmt.Sprintf("downwardAPI.fields[%d].path", j)), shorten(p), "must be a clean relative path", "use the name of a file in the volume, such as labels")
			}
		}
	}
}

func (v *values) kernel(fw *v1.Firmware) {
	if fw == nil || fw.KernelBoot == nil {
		return
	}
	const at = "spec.domain.firmware.kernelBoot."
	if n := len(fw.KernelBoot.KernelArgs); n > maxKernelArgs {
		v.add(at+"kernelArgs", brief(fmt.Sprintf("%d bytes", n)), fmt.Sprintf("exceeds the maximum of %d", maxKernelArgs), "shorten the arguments")
	}
	c := fw.KernelBoot.Container
	if c == nil {
		return
	}
	v.image(at+"container.image", c.Image)
	if c.KernelPath != "" {
		v.absolute(at+"container.kernelPath", c.KernelPath, "/boot/vmlinuz")
	}
	if c.InitrdPath != "" {
		v.absolute(at+"container.initrdPath", c.InitrdPath, "/boot/initrd.img")
	}
}

func (v *values) image(field, reference string) {
	if n := len(reference); n > maxImage {
		v.add(field, brief(fmt.Sprintf("%d characters", n)), fmt.Sprintf("exceeds the maximum of %d", maxImage), "use a shorter image reference")
	}
}

// absolute rejects anything but a clean path of a file from the root of its file system.
func (v *values) absolute(field, p, example string) {
	if !absolute(p) {
		v.add(field, shorten(p), "must be a clean absolute path", "use a path such as "+example)
	}
}

func absolute(p string) bool { return path.IsAbs(p) && p != "/" && isCleanPath(p) }

// relative reports whether a path names a file below its folder.
func relative(p string) bool {
	return p != "" && p != "." && !path.IsAbs(p) && isCleanPath(p) && p != ".." && !strings.HasPrefix(p, "../")
}

func isCleanPath(p string) bool {
	control := func(r rune) bool { return r < ' ' || r == 0x7f }
	return len(p) <= maxPath && path.Clean(p) == p && !strings.ContainsFunc(p, control)
}
