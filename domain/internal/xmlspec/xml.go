// SPDX-License-Identifier: Apache-2.0

package xmlspec

import (
	"strings"
	"unicode"

	"libvirt.org/go/libvirtxml"
)

// AliasPrefix is the prefix of aliases that come from the spec and not from libvirt: disk "root"
// has the alias ua-root.
const AliasPrefix = "ua-"

// Alias returns the alias of the device with the given name in the spec.
func Alias(name string) *libvirtxml.DomainAlias {
	return &libvirtxml.DomainAlias{Name: AliasPrefix + name}
}

// NameOf returns the name in the spec of the device with the given alias, empty if the alias does
// not come from the spec or is nil.
func NameOf(a *libvirtxml.DomainAlias) string {
	if a == nil || len(a.Name) <= len(AliasPrefix) || a.Name[:len(AliasPrefix)] != AliasPrefix {
		return ""
	}
	return a.Name[len(AliasPrefix):]
}

// Aliases returns the aliases of all devices that can be hotplugged; entries may be nil.
func Aliases(l *libvirtxml.DomainDeviceList) []*libvirtxml.DomainAlias {
	var out []*libvirtxml.DomainAlias
	for i := range l.Disks {
		out = append(out, l.Disks[i].Alias)
	}
	for i := range l.Interfaces {
		out = append(out, l.Interfaces[i].Alias)
	}
	for i := range l.Hostdevs {
		out = append(out, l.Hostdevs[i].Alias)
	}
	for i := range l.Memorydevs {
		out = append(out, l.Memorydevs[i].Alias)
	}
	for i := range l.Inputs {
		out = append(out, l.Inputs[i].Alias)
	}
	for i := range l.Watchdogs {
		out = append(out, l.Watchdogs[i].Alias)
	}
	for i := range l.Serials {
		out = append(out, l.Serials[i].Alias)
	}
	return out
}

// PathOf returns the path of the file or block device of a disk source: empty for nil, "elsewhere" for
// a source of another type.
func PathOf(s *libvirtxml.DomainDiskSource) string {
	switch {
	case s == nil:
		return ""
	case s.File != nil:
		return s.File.File
	case s.Block != nil:
		return s.Block.Dev
	}
	return "elsewhere"
}

// BytesOf converts a scaled integer of libvirt to bytes. The default unit is KiB.
func BytesOf(v uint, unit string) uint64 {
	scale := uint64(1 << 10)
	switch unit {
	case "b", "bytes":
		scale = 1
	case "KB":
		scale = 1000
	case "MB":
		scale = 1000 * 1000
	case "GB":
		scale = 1000 * 1000 * 1000
	case "TB":
		scale = 1000 * 1000 * 1000 * 1000
	case "M", "MiB":
		scale = 1 << 20
	case "G", "GiB":
		scale = 1 << 30
	case "T", "TiB":
		scale = 1 << 40
	}
	return uint64(v) * scale
}

// PluggedCPUs returns the number of CPUs that are present, out of the maximum v.Value.
func PluggedCPUs(v *libvirtxml.DomainVCPU) uint {
	if v.Current != 0 {
		return v.Current
	}
	return v.Value
}

// UnfitForXML returns the first character of s that XML 1.0 cannot hold; false if there is none.
func UnfitForXML(s string) (rune, bool) {
	for i, r := range s {
		if r == 0xFFFD && !strings.HasPrefix(s[i:], "\uFFFD") {
			return r, true
		}
		if !unicode.Is(xmlCharacters, r) {
			return r, true
		}
	}
	return 0, false
}

// xmlCharacters are the characters of XML 1.0 (production Char).
var xmlCharacters = &unicode.RangeTable{
	R16: []unicode.Range16{{Lo: 0x9, Hi: 0xA, Stride: 1}, {Lo: 0xD, Hi: 0xD, Stride: 1}, {Lo: 0x20, Hi: 0xD7FF, Stride: 1}, {Lo: 0xE000, Hi: 0xFFFD, Stride: 1}},
	R32: []unicode.Range32{{Lo: 0x10000, Hi: 0x10FFFF, Stride: 1}},
}

// Prefixes of the names of host devices in aliases.
const (
	PrefixSRIOV = "sriov-"
	PrefixHost  = "hostdevice-"
	PrefixUSB   = "usb-host-"
	PrefixGPU   = "gpu-"
)

// PrefixMemory is the prefix of aliases of memory devices, which follow from the size of memory and
// not from a device of the spec.
const PrefixMemory = AliasPrefix + "virtio-mem-"

// PrefixVirtualFunction is the prefix of aliases of SR-IOV interfaces.
const PrefixVirtualFunction = AliasPrefix + PrefixSRIOV

// IsVirtualFunction reports whether a host device is an SR-IOV interface.
func IsVirtualFunction(h *libvirtxml.DomainHostdev) bool {
	return h.Alias != nil && strings.HasPrefix(h.Alias.Name, PrefixVirtualFunction)
}

// LinkState returns the link state of an interface: up, which is the default, or down.
func LinkState(nic *libvirtxml.DomainInterface) string {
	if nic.Link != nil && nic.Link.State == "down" {
		return "down"
	}
	return "up"
}
