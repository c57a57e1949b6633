// SPDX-License-Identifier: Apache-2.0

// Package xmlspec holds what the packages below domain share about specs and libvirt XML: names of
// architectures and buses, aliases of devices, units of quantities, the CPU topology of a spec. It
// depends on no other package of the module.
package xmlspec

// Architectures in libvirt's spelling.
const (
	ArchX86   = "x86_64"
	ArchARM   = "aarch64"
	ArchS390X = "s390x"
)

// Arch returns libvirt's name of an architecture in the spelling of specs (amd64, arm64, s390x);
// empty if it is unknown.
func Arch(spec string) string {
	return map[string]string{"amd64": ArchX86, "arm64": ArchARM, "s390x": ArchS390X}[spec]
}

// Buses in libvirt's and the spec's spelling.
const (
	BusVirtio = "virtio"
	BusSCSI   = "scsi"
	BusSATA   = "sata"
	BusUSB    = "usb"
)
