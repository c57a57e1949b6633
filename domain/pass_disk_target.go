// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"
)

// pciAddress parses 0000:81:01.0.
func (c *Conversion) pciAddress(field, s string) (*libvirtxml.DomainAddress, error) {
	var dom, bus, slot, fn uint
	if n, err := fmt.Sscanf(s, "%04x:%02x:%02x.%1x", &dom, &bus, &slot, &fn); err != nil || n != 4 ||
		fmt.Sprintf("%04x:%02x:%02x.%x", dom, bus, slot, fn) != strings.ToLower(s) || slot > 0x1f || fn > 7 {
		return nil, c.Invalid(field, fmt.Sprintf("%q is no PCI address", s), "use the form 0000:81:01.0")
	}
	return &libvirtxml.DomainAddress{PCI: &libvirtxml.DomainAddressPCI{Domain: &dom, Bus: &bus, Slot: &slot, Function: &fn}}, nil
}

// driveAddress is the place of a SCSI disk, which the guest sees: it follows the
// target name, so it moves no more than that.
func driveAddress(target string) *libvirtxml.DomainAddress {
	return &libvirtxml.DomainAddress{Drive: &libvirtxml.DomainAddressDrive{
		Controller: ptr(uint(0)), Bus: ptr(uint(0)), Target: ptr(uint(0)), Unit: ptr(letterIndex(target[2:])),
	}}
}

// targetForm are the target names that are handed out.
var targetForm = regexp.MustCompile(`^(vd|sd)[a-z]{1,3}$`)

// targetNames hands out target names: vda, vdb, … for virtio, sda, sdb, … for all
// else. They must not change while the guest runs, so one that the running domain
// has, or the status has recorded, is kept.
type targetNames struct {
	kept map[string]string // volume → name
	used map[string]bool
	// from is where to look for the next free name, by prefix: names are never given back.
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

// keep notes that a volume has a name, unless another one has it.
func (t *targetNames) keep(volume, name string) {
	if t.kept[volume] != "" || t.used[name] || !targetForm.MatchString(name) {
		return
	}
	t.kept[volume], t.used[name] = name, true
}

func (t *targetNames) next(volume, bus string) string {
	prefix := "sd"
	if bus == busVirtio {
		prefix = "vd"
	}
	if name := t.kept[volume]; strings.HasPrefix(name, prefix) {
		return name
	}
	for ; ; t.from[prefix]++ {
		if name := prefix + letters(t.from[prefix]); !t.used[name] {
			t.used[name] = true
			return name
		}
	}
}

// letters counts a, b, …, z, aa, ab, …, from 0.
func letters(i uint) string {
	s := ""
	for i++; i > 0; i = (i - 1) / 26 {
		s = string(rune('a'+(i-1)%26)) + s
	}
	return s
}

// letterIndex undoes [letters].
func letterIndex(s string) uint {
	n := uint(0)
	for _, r := range s {
		n = n*26 + uint(r-'a') + 1
	}
	return n - 1
}
