// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"fmt"
	"path/filepath"
	"slices"

	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/internal/xmlspec"
)

const (
	specFirmware = specDomain + "firmware."
	specEFI      = specFirmware + "bootloader.efi"
)

// firmwarePass converts boot and firmware.
type firmwarePass struct{ *Conversion }

// firmware sets how the guest boots: BIOS or UEFI, a kernel, and ACPI tables.
func firmware(c *Conversion) error {
	fw := c.VMI.Spec.Domain.Firmware
	if fw == nil {
		return nil
	}
	if b := fw.Bootloader; b != nil {
		switch {
		case b.BIOS != nil && b.EFI != nil:
			return c.Invalid(specFirmware+"bootloader", "Forbidden: bios and efi are mutually exclusive", "set one of them")
		case b.EFI != nil:
			if err := uefi(c, b.EFI); err != nil {
				return err
			}
		case b.BIOS != nil && specIsTrue(b.BIOS.UseSerial):
			c.Domain.OS.BIOS = &libvirtxml.DomainBIOS{UseSerial: "yes"}
		}
	}
	if fw.KernelBoot != nil {
		if err := kernelBoot(c, fw.KernelBoot); err != nil {
			return err
		}
	}
	return acpiTables(c, fw.ACPI)
}

// secureBoot reports whether secure boot is on. That is the default; on arm64 only if libvirt
// chooses the image, since the usual images there lack secure boot.
func (c firmwarePass) secureBoot(in *v1.EFI) bool {
	if in.SecureBoot != nil {
		return *in.SecureBoot
	}
	return c.Facts.Arch == xmlspec.ArchX86 || c.Facts.Cluster.FirmwareAutoSelection
}

// uefi sets the firmware image and the file of its variables. A missing image is a typed error with
// a field, so that callers need not match its text as KubeVirt's node agent does (in vain: the two
// texts differ).
func uefi(c *Conversion, in *v1.EFI) error {
	secure := firmwarePass{c}.secureBoot(in)
	protected := c.encrypted() || c.trustDomain()
	if err := (firmwarePass{c}).checkUEFI(secure, protected); err != nil {
		return err
	}
	if secure && !protected && c.Facts.Cluster.FirmwareAutoSelection {
		return selectFirmware(c, in)
	}
	image, what := firmwarePass{c}.firmwareImage(secure)
	if image.Code == "" || image.Vars == "" && !stateless(c) {
		return &Error{
			Object: c.object(), Field: specEFI, Reason: "the node has no UEFI image " + what,
			Remedy: "install it on the node, or use another node", Err: domain.ErrUnsupported,
		}
	}
	loader := &libvirtxml.DomainLoader{Path: image.Code, Readonly: "yes", Secure: yesNo(secure && !protected), Type: "pflash"}
	c.Domain.OS.Loader = loader
	if stateless(c) {
		loader.Type = "rom"
		return nil
	}
	path, err := firmwarePass{c}.nvramPath(in)
	c.Domain.OS.NVRam = &libvirtxml.DomainNVRam{NVRam: path, Template: image.Vars}
	return err
}

// checkUEFI rejects combinations that no image supports.
func (c firmwarePass) checkUEFI(secure, protected bool) error {
	switch {
	case !c.arch.uefi:
		return c.Invalid(specEFI, "UEFI is not supported on "+c.arch.name, "remove it")
	case secure && c.encrypted():
		return c.Invalid(specEFI+".secureBoot", "Forbidden: secure boot and SEV are mutually exclusive", "set it to false")
	case secure && c.Facts.Arch == xmlspec.ArchX86 && !protected && !c.smm():
		// Otherwise the guest could write UEFI variables directly.
		return c.Invalid(specDomain+"features.smm", "Invalid value: secure boot requires system management mode", "enable it, or set "+specEFI+".secureBoot to false")
	}
	return nil
}

// smm reports whether the guest has system management mode.
func (c firmwarePass) smm() bool {
	f := c.VMI.Spec.Domain.Features
	return f != nil && enabled(f.SMM)
}

// stateless reports whether the firmware is measured as a whole and therefore has no variables, as
// with SEV-SNP and TDX.
func stateless(c *Conversion) bool {
	return c.trustDomain() || c.encrypted() && c.VMI.Spec.Domain.LaunchSecurity.SNP != nil
}

// firmwareImage returns the node's image for the guest, and its purpose.
func (c firmwarePass) firmwareImage(secure bool) (image FirmwareImage, what string) {
	f := c.Facts.Firmware
	switch {
	case c.trustDomain() && secure:
		return f.TDXSecureBoot, "for TDX with secure boot"
	case c.trustDomain():
		return f.TDX, "for TDX"
	case c.encrypted() && stateless(c.Conversion):
		return f.SNP, "for SEV-SNP"
	case c.encrypted():
		return f.SEV, "for SEV"
	case secure:
		return f.SecureBoot, "with secure boot"
	}
	return f.Plain, "without secure boot"
}

// selectFirmware lets libvirt choose an image with secure boot and enrolled keys. On arm64 such
// images keep their variables in memory that libvirt manages, elsewhere in a file.
func selectFirmware(c *Conversion, in *v1.EFI) error {
	c.Domain.OS.Firmware = "efi"
	c.Domain.OS.FirmwareInfo = &libvirtxml.DomainOSFirmwareInfo{Features: []libvirtxml.DomainOSFirmwareFeature{
		{Enabled: "yes", Name: "secure-boot"}, {Enabled: "yes", Name: "enrolled-keys"},
	}}
	if c.Facts.Arch == xmlspec.ArchARM {
		return nil
	}
	path, err := firmwarePass{c}.nvramPath(in)
	c.Domain.OS.NVRam = &libvirtxml.DomainNVRam{NVRam: path, Format: "raw"}
	return err
}

// nvramPath returns the file of the guest's UEFI variables. Persistent variables are in another
// directory; a node without one rejects the VMI rather than lose them.
func (c firmwarePass) nvramPath(in *v1.EFI) (string, error) {
	dir := c.Facts.Dir
	if specIsTrue(in.Persistent) {
		if dir = c.Facts.NVRAMDir; dir == "" {
			return "", &Error{
				Object: c.object(), Field: specEFI + ".persistent", Reason: "the node has no directory for persistent UEFI variables",
				Remedy: "configure one, or remove persistent", Err: domain.ErrUnsupported,
			}
		}
	}
	if !filepath.IsAbs(dir) {
		return "", &Error{Object: "node", Reason: fmt.Sprintf("the directory for UEFI variables is not absolute: %q", dir),
			Remedy: "configure an absolute path", Err: domain.ErrInvalid}
	}
	return filepath.Join(dir, c.VMI.Name+"_VARS.fd"), nil
}

// kernelBoot sets the kernel from the facts. Arguments are set even without a kernel, as in
// KubeVirt; QEMU then reports that it cannot pass them on.
func kernelBoot(c *Conversion, kb *v1.KernelBoot) error {
	c.Domain.OS.Cmdline = kb.KernelArgs
	if kb.Container == nil {
		return nil
	}
	const field = specFirmware + "kernelBoot.container"
	switch {
	case kb.Container.KernelPath == "" && kb.Container.InitrdPath == "":
		return c.Invalid(field, "Required value: kernelPath or initrdPath", "set kernelPath")
	case kb.Container.KernelPath != "" && c.Facts.Kernel == "":
		return c.Invalid(field+".kernelPath", "the node has no file for the kernel", "check that the image can be pulled and contains the path")
	case kb.Container.InitrdPath != "" && c.Facts.Initrd == "":
		return c.Invalid(field+".initrdPath", "the node has no file for the initrd", "check that the image can be pulled and contains the path")
	}
	if kb.Container.KernelPath != "" {
		c.Domain.OS.Kernel = c.Facts.Kernel
	}
	if kb.Container.InitrdPath != "" {
		c.Domain.OS.Initrd = c.Facts.Initrd
	}
	return nil
}

// acpiTables adds the tables with licenses of operating systems.
func acpiTables(c *Conversion, in *v1.ACPI) error {
	if in == nil {
		return nil
	}
	const field = specFirmware + "acpi"
	if in.SlicNameRef == "" && in.MsdmNameRef == "" {
		return c.Invalid(field, "Required value: slicNameRef or msdmNameRef", "set slicNameRef or msdmNameRef, or remove it")
	}
	out := &libvirtxml.DomainACPI{}
	for _, t := range []struct{ kind, volume, field string }{
		{"slic", in.SlicNameRef, field + ".slicNameRef"}, {"msdm", in.MsdmNameRef, field + ".msdmNameRef"},
	} {
		if t.volume == "" {
			continue
		}
		i := slices.IndexFunc(c.VMI.Spec.Volumes, func(v v1.Volume) bool { return v.Name == t.volume })
		switch {
		case i < 0:
			return c.Invalid(t.field, fmt.Sprintf("no matching volume %q", t.volume), "add a secret volume with that name to spec.volumes")
		case c.VMI.Spec.Volumes[i].Secret == nil:
			return c.Invalid(t.field, fmt.Sprintf("Invalid value: volume %q is not a secret", t.volume), "use a secret volume")
		case !filepath.IsAbs(c.Facts.SecretDirs[t.volume]):
			return &Error{
				Object: c.object(), Field: fmt.Sprintf("spec.volumes[%s]", t.volume), Reason: "the node has no directory for the secret",
				Remedy: "check that the secret exists", Err: domain.ErrUnsupported,
			}
		}
		out.Tables = append(out.Tables, libvirtxml.DomainACPITable{
			Type: t.kind, Path: filepath.Join(c.Facts.SecretDirs[t.volume], t.kind+".bin"),
		})
	}
	c.Domain.OS.ACPI = out
	return nil
}
