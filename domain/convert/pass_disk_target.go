// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain/internal/xmlspec"
)

// pciAddress parses a PCI address such as 0000:81:01.0.
func (c *Conversion) pciAddress(field, s string) (*libvirtxml.DomainAddress, error) {
	var dom, bus, slot, fn uint
	if n, err := fmt.Sscanf(s, "%04x:%02x:%02x.%1x", &dom, &bus, &slot, &fn); err != nil || n != 4 ||
		fmt.Sprintf("%04x:%02x:%02x.%x", dom, bus, slot, fn) != strings.ToLower(s) || slot > 0x1f || fn > 7 {
		return nil, c.Invalid(field, fmt.Sprintf("Invalid value: %q is not a PCI address", s), "use the form 0000:81:01.0")
	}
	return &libvirtxml.DomainAddress{PCI: &libvirtxml.DomainAddressPCI{Domain: &dom, Bus: &bus, Slot: &slot, Function: &fn}}, nil
}

// driveAddress returns the address of a SCSI disk. The guest sees it, so it is derived from the
// target name, which is stable.
func driveAddress(target string) *libvirtxml.DomainAddress {
	return &libvirtxml.DomainAddress{Drive: &libvirtxml.DomainAddressDrive{
		Controller: new(uint(0)), Bus: new(uint(0)), Target: new(uint(0)), Unit: new(letterIndex(target[2:])),
	}}
}

// targetForm matches the target names that are allocated here.
var targetForm = regexp.MustCompile(`^(vd|sd)[a-z]{1,3}$`)

// targetNames allocates target names: vda, vdb, … for virtio, sda, sdb, … for other buses. Names
// must not change while the guest runs, so names of the running domain, or recorded in the status,
// are kept.
type targetNames struct {
	kept map[string]string // volume → name
	used map[string]bool
	// from is the index at which to look for the next free name, by prefix: names are never
	// released.
	from map[string]uint
}

func newTargetNames(vmi *v1.VirtualMachineInstance, layout Layout) *targetNames {
	t := &targetNames{kept: map[string]string{}, used: map[string]bool{}, from: map[string]uint{}}
	for _, volume := range slices.Sorted(maps.Keys(layout.Targets)) {
		t.keep(volume, layout.Targets[volume])
	}
	for i := range vmi.Status.VolumeStatus {
		t.keep(vmi.Status.VolumeStatus[i].Name, vmi.Status.VolumeStatus[i].Target)
	}
	return t
}

// keep reserves the name of a volume, unless another volume has it.
func (t *targetNames) keep(volume, name string) {
	if t.kept[volume] != "" || t.used[name] || !targetForm.MatchString(name) {
		return
	}
	t.kept[volume], t.used[name] = name, true
}

func (t *targetNames) next(volume, bus string) string {
	prefix := "sd"
	if bus == xmlspec.BusVirtio {
		prefix = "vd"
	}
	if name := t.kept[volume]; strings.HasPrefix(name, prefix) {
		return name
	}
	for ; ; t.from[prefix]++ {
		if name := prefix + targetLetters(t.from[prefix]); !t.used[name] {
			t.used[name] = true
			return name
		}
	}
}

// targetLetters returns a, b, …, z, aa, ab, … for 0, 1, ….
func targetLetters(i uint) string {
	s := ""
	for i++; i > 0; i = (i - 1) / 26 {
		s = string(rune('a'+(i-1)%26)) + s
	}
	return s
}

// letterIndex is the inverse of [letters].
func letterIndex(s string) uint {
	n := uint(0)
	for _, r := range s {
		n = n*26 + uint(r-'a') + 1
	}
	return n - 1
}
