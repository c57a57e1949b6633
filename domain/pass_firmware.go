// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"fmt"
	"path/filepath"
	"slices"

	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"
)

const (
	specFirmware = specDomain + "firmware."
	specEFI      = specFirmware + "bootloader.efi"
)

// firmware sets how the guest boots: BIOS or UEFI, a kernel, and tables of the
// firmware.
func firmware(c *Conversion) error {
	fw := c.VMI.Spec.Domain.Firmware
	if fw == nil {
		return nil
	}
	if b := fw.Bootloader; b != nil {
		switch {
		case b.BIOS != nil && b.EFI != nil:
			return c.Invalid(specFirmware+"bootloader", "names BIOS and UEFI", "leave one")
		case b.EFI != nil:
			if err := uefi(c, b.EFI); err != nil {
				return err
			}
		case b.BIOS != nil && isTrue(b.BIOS.UseSerial):
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

// secureBoot tells whether the firmware verifies what it boots. That is what a guest
// gets that does not say otherwise; but on arm64 only if libvirt is left to find an
// image for it, for the usual ones there have no secure boot.
func (c *Conversion) secureBoot(in *v1.EFI) bool {
	if in.SecureBoot != nil {
		return *in.SecureBoot
	}
	return c.Facts.Arch == archX86 || c.Facts.Cluster.FirmwareAutoSelection
}

// uefi sets the firmware image and where its variables are kept. An image the node
// lacks is an error of a type and with a field, so that whoever sees it need not
// search its text, as KubeVirt's node agent does (in vain, for the two texts differ).
func uefi(c *Conversion, in *v1.EFI) error {
	secure := c.secureBoot(in)
	protected := c.encrypted() || c.trustDomain()
	if err := c.checkUEFI(secure, protected); err != nil {
		return err
	}
	if secure && !protected && c.Facts.Cluster.FirmwareAutoSelection {
		return selectFirmware(c, in)
	}
	image, what := c.firmwareImage(secure)
	if image.Code == "" || image.Vars == "" && !stateless(c) {
		return &Error{
			Object: c.object(), Field: specEFI, Reason: "the node has no UEFI image " + what,
			Remedy: "install it on the node, or use a node that has it", Err: ErrUnsupported,
		}
	}
	loader := &libvirtxml.DomainLoader{Path: image.Code, Readonly: "yes", Secure: yesNo(secure && !protected), Type: "pflash"}
	c.Domain.OS.Loader = loader
	if stateless(c) {
		loader.Type = "rom"
		return nil
	}
	path, err := c.nvramPath(in)
	c.Domain.OS.NVRam = &libvirtxml.DomainNVRam{NVRam: path, Template: image.Vars}
	return err
}

// checkUEFI refuses what no image could do.
func (c *Conversion) checkUEFI(secure, protected bool) error {
	switch {
	case !c.arch.uefi:
		return c.Invalid(specEFI, c.arch.name+" has no UEFI", "remove it")
	case secure && c.encrypted():
		return c.Invalid(specEFI+".secureBoot", "secure boot and SEV exclude each other", "set it to false")
	case secure && c.Facts.Arch == archX86 && !protected && !c.smm():
		// Without it the guest could write its variables by itself.
		return c.Invalid(specDomain+"features.smm", "secure boot needs system management mode", "enable it, or set "+specEFI+".secureBoot to false")
	}
	return nil
}

// smm tells whether the guest has system management mode.
func (c *Conversion) smm() bool {
	f := c.VMI.Spec.Domain.Features
	return f != nil && enabled(f.SMM)
}

// stateless tells whether the firmware is measured as a whole and therefore keeps
// no variables: SEV-SNP and TDX.
func stateless(c *Conversion) bool {
	return c.trustDomain() || c.encrypted() && c.VMI.Spec.Domain.LaunchSecurity.SNP != nil
}

// firmwareImage returns the node's image for the guest, and what it is for.
func (c *Conversion) firmwareImage(secure bool) (image FirmwareImage, what string) {
	f := c.Facts.Firmware
	switch {
	case c.trustDomain() && secure:
		return f.TDXSecureBoot, "for TDX with secure boot"
	case c.trustDomain():
		return f.TDX, "for TDX"
	case c.encrypted() && stateless(c):
		return f.SNP, "for SEV-SNP"
	case c.encrypted():
		return f.SEV, "for SEV"
	case secure:
		return f.SecureBoot, "with secure boot"
	}
	return f.Plain, "without secure boot"
}

// selectFirmware lets libvirt find an image with secure boot and keys. On arm64
// such images keep their variables in memory that libvirt manages, elsewhere in
// a file.
func selectFirmware(c *Conversion, in *v1.EFI) error {
	c.Domain.OS.Firmware = "efi"
	c.Domain.OS.FirmwareInfo = &libvirtxml.DomainOSFirmwareInfo{Features: []libvirtxml.DomainOSFirmwareFeature{
		{Enabled: "yes", Name: "secure-boot"}, {Enabled: "yes", Name: "enrolled-keys"},
	}}
	if c.Facts.Arch == archARM {
		return nil
	}
	path, err := c.nvramPath(in)
	c.Domain.OS.NVRam = &libvirtxml.DomainNVRam{NVRam: path, Format: "raw"}
	return err
}

// nvramPath returns the file with the UEFI variables of the guest. Those that
// shall outlive it lie elsewhere; a node that cannot keep them refuses the guest
// rather than forget them.
func (c *Conversion) nvramPath(in *v1.EFI) (string, error) {
	dir := c.Facts.Dir
	if isTrue(in.Persistent) {
		if dir = c.Facts.NVRAMDir; dir == "" {
			return "", &Error{
				Object: c.object(), Field: specEFI + ".persistent", Reason: "the node has no directory for UEFI variables that outlive the guest",
				Remedy: "configure one, or remove it", Err: ErrUnsupported,
			}
		}
	}
	if !filepath.IsAbs(dir) {
		return "", &Error{Object: "node", Reason: fmt.Sprintf("no absolute directory for UEFI variables but %q", dir),
			Remedy: "configure one", Err: ErrInvalid}
	}
	return filepath.Join(dir, c.VMI.Name+"_VARS.fd"), nil
}

// kernelBoot boots the kernel of the facts. Arguments count even without a
// kernel of the spec, as in KubeVirt; QEMU then says that it cannot pass them on.
func kernelBoot(c *Conversion, kb *v1.KernelBoot) error {
	c.Domain.OS.Cmdline = kb.KernelArgs
	if kb.Container == nil {
		return nil
	}
	const field = specFirmware + "kernelBoot.container"
	switch {
	case kb.Container.KernelPath == "" && kb.Container.InitrdPath == "":
		return c.Invalid(field, "names neither a kernel nor an initrd", "set kernelPath")
	case kb.Container.KernelPath != "" && c.Facts.Kernel == "":
		return c.Invalid(field+".kernelPath", "the node has no file for the kernel", "check that the image can be pulled and has that path")
	case kb.Container.InitrdPath != "" && c.Facts.Initrd == "":
		return c.Invalid(field+".initrdPath", "the node has no file for the initrd", "check that the image can be pulled and has that path")
	}
	if kb.Container.KernelPath != "" {
		c.Domain.OS.Kernel = c.Facts.Kernel
	}
	if kb.Container.InitrdPath != "" {
		c.Domain.OS.Initrd = c.Facts.Initrd
	}
	return nil
}

// acpiTables adds the tables that carry licences of an operating system.
func acpiTables(c *Conversion, in *v1.ACPI) error {
	if in == nil {
		return nil
	}
	const field = specFirmware + "acpi"
	if in.SlicNameRef == "" && in.MsdmNameRef == "" {
		return c.Invalid(field, "names no table", "set slicNameRef or msdmNameRef, or remove it")
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
			return c.Invalid(t.field, fmt.Sprintf("no volume %q", t.volume), "add a secret volume of that name to spec.volumes")
		case c.VMI.Spec.Volumes[i].Secret == nil:
			return c.Invalid(t.field, fmt.Sprintf("the volume %q is no secret", t.volume), "name a secret volume")
		case !filepath.IsAbs(c.Facts.SecretDirs[t.volume]):
			return &Error{
				Object: c.object(), Field: fmt.Sprintf("spec.volumes[%s]", t.volume), Reason: "the node has no directory with the secret",
				Remedy: "check that the secret exists", Err: ErrUnsupported,
			}
		}
		out.Tables = append(out.Tables, libvirtxml.DomainACPITable{
			Type: t.kind, Path: filepath.Join(c.Facts.SecretDirs[t.volume], t.kind+".bin"),
		})
	}
	c.Domain.OS.ACPI = out
	return nil
}
