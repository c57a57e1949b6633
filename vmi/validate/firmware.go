// SPDX-License-Identifier: Apache-2.0

package validate

import (
	"regexp"
	"slices"

	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/internal/vmidefaults"
)

var firmwareRules = []Rule{
	{"firmware-uuid", checkFirmwareUUID, false},
	{"firmware-serial", checkFirmwareSerial, false},
	{"bootloader", checkBootloader, false},
	{"secure-boot", checkSecureBoot, false},
	{"kernel-boot", checkKernelBoot, true},
	{"kernel-boot", checkKernelArgs, false},
	{"acpi-tables", checkACPITables, false},
}

var uuidForm = regexp.MustCompile(`^[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}$`)

func checkFirmwareUUID(k *checker) {
	if fw := k.domain.Firmware; fw != nil && fw.UUID != "" && !uuidForm.MatchString(string(fw.UUID)) {
		k.invalid(atFirmware.child("uuid"), string(fw.UUID), "must be a UUID", "use the form 01234567-89ab-cdef-0123-456789abcdef, or remove it")
	}
}

// serialForm matches valid serial numbers of machines and disks.
var serialForm = regexp.MustCompile(`^[A-Za-z0-9_.+-]{1,256}$`)

const serialRemedy = "use 1 to 256 letters, digits, _ . + and -"

func checkFirmwareSerial(k *checker) {
	if fw := k.domain.Firmware; fw != nil && fw.Serial != "" && !serialForm.MatchString(fw.Serial) {
		k.invalid(atFirmware.child("serial"), fw.Serial, "must be a valid serial number", serialRemedy)
	}
}

// efi returns the VMI's UEFI settings; nil without UEFI.
func (k *checker) efi() *v1.EFI {
	if k.domain.Firmware == nil || k.domain.Firmware.Bootloader == nil {
		return nil
	}
	return k.domain.Firmware.Bootloader.EFI
}

func checkBootloader(k *checker) {
	if k.domain.Firmware == nil || k.domain.Firmware.Bootloader == nil {
		return
	}
	at := atFirmware.child("bootloader")
	bios := k.domain.Firmware.Bootloader.BIOS != nil
	switch efi := k.efi() != nil; {
	case efi && bios:
		k.invalid(at, "bios, efi", "must specify one alternative, not 2", "keep one")
	case efi && k.arch == vmidefaults.S390X:
		k.invalid(at.child("efi"), "{}", "UEFI is not supported on s390x", "remove it")
	case bios && k.arch == vmidefaults.ARM64:
		k.invalid(at.child("bios"), "{}", "BIOS is not supported on arm64", "use efi with secureBoot: false")
	}
}

// encrypted reports whether SEV encrypts the guest's memory.
func (k *checker) encrypted() bool {
	s := k.domain.LaunchSecurity
	return s != nil && (s.SEV != nil || s.SNP != nil)
}

func checkSecureBoot(k *checker) {
	efi := k.efi()
	if efi == nil || isFalse(efi.SecureBoot) {
		return
	}
	at := atFirmware.child("bootloader.efi.secureBoot")
	switch {
	case k.arch == vmidefaults.ARM64:
		k.invalid(at, true, "secure boot is not supported on arm64", "set it to false")
	case k.arch == vmidefaults.S390X: // does not support UEFI at all
	case k.encrypted():
		k.invalid(at, true, "is mutually exclusive with SEV", "set it to false")
	case k.domain.LaunchSecurity != nil: // TDX has its own protection
	case k.domain.Features == nil || !vmidefaults.Enabled(k.domain.Features.SMM):
		k.invalid(at, true, "requires system management mode", "enable "+atFeatures.child("smm").String()+", or set it to false")
	}
}

func (k *checker) kernelBoot() *v1.KernelBoot {
	if k.domain.Firmware == nil {
		return nil
	}
	return k.domain.Firmware.KernelBoot
}

func checkKernelArgs(k *checker) {
	if b := k.kernelBoot(); b != nil && b.Container == nil && b.KernelArgs != "" {
		k.invalid(atFirmware.child("kernelBoot.kernelArgs"), b.KernelArgs, "requires a kernel", "set container, or remove it")
	}
}

func checkKernelBoot(k *checker) {
	b, at := k.kernelBoot(), atFirmware.child("kernelBoot.container")
	if b == nil || b.Container == nil {
		return
	}
	k.image(at, b.Container.Image, string(b.Container.ImagePullPolicy))
	if b.Container.KernelPath == "" && b.Container.InitrdPath == "" {
		k.required(at, "must specify a kernel or an initrd", "set kernelPath or initrdPath")
	}
}

func checkACPITables(k *checker) {
	if k.domain.Firmware == nil || k.domain.Firmware.ACPI == nil {
		return
	}
	t, at := k.domain.Firmware.ACPI, atFirmware.child("acpi")
	if t.SlicNameRef == "" && t.MsdmNameRef == "" {
		k.required(at, "must specify a table", "set slicNameRef or msdmNameRef, or remove it")
	}
	for _, table := range []struct{ field, volume string }{{"slicNameRef", t.SlicNameRef}, {"msdmNameRef", t.MsdmNameRef}} {
		secret := slices.ContainsFunc(k.spec.Volumes, func(v v1.Volume) bool { return v.Name == table.volume && v.Secret != nil })
		if table.volume != "" && !secret {
			k.invalid(at.child(table.field), table.volume, "must be a volume with a Secret", "use the name of such a volume in spec.volumes")
		}
	}
}
