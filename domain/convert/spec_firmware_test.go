// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"testing"

	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/internal/domainfixture"
	"github.com/virtloom/virtloom/domain/internal/xmlspec"
)

// giveFirmware sets the firmware images of KubeVirt's launcher on the node.
func giveFirmware(v *v1.VirtualMachineInstance, f *Facts) {
	const dir = "/usr/share/edk2/ovmf/"
	f.NVRAMDir = "/var/run/kubevirt-private/libvirt/qemu/nvram"
	f.Firmware = Firmware{
		SecureBoot: FirmwareImage{Code: dir + "OVMF_CODE.secboot.fd", Vars: dir + "OVMF_VARS.secboot.fd"},
		Plain:      FirmwareImage{Code: dir + "OVMF_CODE.secboot.fd", Vars: dir + "OVMF_VARS.fd"},
		SEV:        FirmwareImage{Code: dir + "OVMF_CODE.cc.fd", Vars: dir + "OVMF_VARS.fd"},
		SNP:        FirmwareImage{Code: dir + "OVMF.amdsev.fd"},
		TDX:        FirmwareImage{Code: dir + "OVMF.inteltdx.fd"}, TDXSecureBoot: FirmwareImage{Code: dir + "OVMF.inteltdx.secboot.fd"},
	}
	if v.Spec.Architecture == "arm64" {
		f.Firmware = Firmware{Plain: FirmwareImage{Code: "/usr/share/AAVMF/AAVMF_CODE.fd", Vars: "/usr/share/AAVMF/AAVMF_VARS.fd"}}
	}
}

// giveEFI boots from UEFI, with system management mode.
func giveEFI(efi v1.EFI) func(*v1.VirtualMachineInstance, *Facts) {
	return changes(giveFirmware, func(v *v1.VirtualMachineInstance, _ *Facts) {
		v.Spec.Domain.Firmware = &v1.Firmware{Bootloader: &v1.Bootloader{EFI: &efi}}
		v.Spec.Domain.Features = &v1.Features{SMM: &v1.FeatureState{}}
	})
}

func protect(ls v1.LaunchSecurity) func(*v1.VirtualMachineInstance, *Facts) {
	return func(v *v1.VirtualMachineInstance, _ *Facts) { v.Spec.Domain.LaunchSecurity = &ls }
}

func autoSelect(_ *v1.VirtualMachineInstance, f *Facts) { f.Cluster.FirmwareAutoSelection = true }

const (
	amd64Boot = `<os><type arch="x86_64" machine="q35">hvm</type>`
	arm64Boot = `<os><type arch="aarch64" machine="virt">hvm</type>`
	bootEnd   = `<smbios mode="sysinfo"/></os>`
	ownDir    = "/var/lib/virtloom/guests/5b6c1a2e/"
	ovmf      = "/usr/share/edk2/ovmf/"
)

func pflash(secure, code, template, nvram string) string {
	return `<loader readonly="yes" secure="` + secure + `" type="pflash">` + code + `</loader><nvram template="` + template + `">` + nvram + `</nvram>`
}

func romOnly(code string) string {
	return `<loader readonly="yes" secure="no" type="rom">` + code + `</loader>`
}

func TestSpecFirmware(t *testing.T) {
	const nvram = ownDir + "testvmi_VARS.fd"
	secure := amd64Boot + pflash("yes", ovmf+"OVMF_CODE.secboot.fd", ovmf+"OVMF_VARS.secboot.fd", nvram) + bootEnd
	plain := pflash("no", ovmf+"OVMF_CODE.fd", ovmf+"OVMF_VARS.fd", nvram)
	onlyPlain := func(_ *v1.VirtualMachineInstance, f *Facts) { f.Firmware.Plain.Code = ovmf + "OVMF_CODE.fd" }
	off, on := v1.EFI{SecureBoot: new(false)}, v1.EFI{SecureBoot: new(true)}
	chosen := `<os firmware="efi"><type arch="x86_64" machine="q35">hvm</type><firmware><feature enabled="yes" name="secure-boot"/>` +
		`<feature enabled="yes" name="enrolled-keys"/></firmware><nvram format="raw">` + nvram + `</nvram>` + bootEnd
	sev := v1.LaunchSecurity{SEV: &v1.SEV{}}
	runMachineRows(t, map[string]machineRow{
		"C68: UEFI that says nothing boots securely": {change: giveEFI(v1.EFI{}), element: "os", want: secure},
		"C68: UEFI with secure boot":                 {change: giveEFI(on), element: "os", want: secure},
		"C68: UEFI without secure boot":              {change: changes(giveEFI(off), onlyPlain), element: "os", want: amd64Boot + plain + bootEnd},
		"firmware: variables that last lie elsewhere": {
			change: giveEFI(v1.EFI{SecureBoot: new(true), Persistent: new(true)}), element: "nvram",
			want: `<nvram template="` + ovmf + `OVMF_VARS.secboot.fd">/var/run/kubevirt-private/libvirt/qemu/nvram/testvmi_VARS.fd</nvram>`,
		},
		"firmware: arm64 has images of its own, and no secure boot": {
			change: onArch(xmlspec.ArchARM, giveEFI(v1.EFI{})), element: "os",
			want: arm64Boot + pflash("no", "/usr/share/AAVMF/AAVMF_CODE.fd", "/usr/share/AAVMF/AAVMF_VARS.fd", nvram) + bootEnd,
		},
		"firmware: libvirt may choose an image with secure boot": {change: changes(giveEFI(on), autoSelect), element: "os", want: chosen},
		"firmware: libvirt may choose even if the node names none": {
			change: changes(giveEFI(on), autoSelect, func(_ *v1.VirtualMachineInstance, f *Facts) { f.Firmware = Firmware{} }), element: "os", want: chosen,
		},
		"firmware: libvirt keeps the variables it chooses on arm64": {
			change: onArch(xmlspec.ArchARM, giveEFI(v1.EFI{}), autoSelect), element: "os",
			want: `<os firmware="efi"><type arch="aarch64" machine="virt">hvm</type><firmware><feature enabled="yes" name="secure-boot"/>` +
				`<feature enabled="yes" name="enrolled-keys"/></firmware>` + bootEnd,
		},
		"firmware: libvirt chooses nothing without secure boot": {
			change: changes(giveEFI(off), autoSelect, onlyPlain), element: "os", want: amd64Boot + plain + bootEnd,
		},
		"firmware: libvirt chooses nothing for protected guests": {
			change: changes(giveEFI(off), autoSelect, protect(sev)), element: "loader",
			want: `<loader readonly="yes" secure="no" type="pflash">` + ovmf + `OVMF_CODE.cc.fd</loader>`,
		},
		"firmware: SEV has an image of its own": {
			change: changes(giveEFI(off), protect(sev)), element: "os",
			want: amd64Boot + pflash("no", ovmf+"OVMF_CODE.cc.fd", ovmf+"OVMF_VARS.fd", nvram) + bootEnd,
		},
		"firmware: SEV-SNP has an image without variables": {
			change: changes(giveEFI(off), protect(v1.LaunchSecurity{SNP: &v1.SEVSNP{}})), element: "os",
			want: amd64Boot + romOnly(ovmf+"OVMF.amdsev.fd") + bootEnd,
		},
		"firmware: TDX has an image without variables": {
			change: changes(giveEFI(off), protect(v1.LaunchSecurity{TDX: &v1.TDX{}})), element: "os",
			want: amd64Boot + romOnly(ovmf+"OVMF.inteltdx.fd") + bootEnd,
		},
		"firmware: TDX has an image with secure boot, whose loader is not secure": {
			change: changes(giveEFI(on), protect(v1.LaunchSecurity{TDX: &v1.TDX{}})), element: "os",
			want: amd64Boot + romOnly(ovmf+"OVMF.inteltdx.secboot.fd") + bootEnd,
		},
	})
}

func TestSpecFirmware_Errors(t *testing.T) {
	const efi = "spec.domain.firmware.bootloader.efi"
	off, on := v1.EFI{SecureBoot: new(false)}, v1.EFI{SecureBoot: new(true)}
	without := func(clear func(*Firmware)) func(*v1.VirtualMachineInstance, *Facts) {
		return func(_ *v1.VirtualMachineInstance, f *Facts) { clear(&f.Firmware) }
	}
	runMachineErrors(t, map[string]machineError{
		"firmware: no image with secure boot": {
			changes(giveEFI(on), without(func(f *Firmware) { f.SecureBoot = FirmwareImage{} })), efi, domain.ErrUnsupported,
		},
		"firmware: no image without secure boot": {
			changes(giveEFI(off), without(func(f *Firmware) { f.Plain = FirmwareImage{} })), efi, domain.ErrUnsupported,
		},
		"firmware: an image without variables": {
			changes(giveEFI(off), without(func(f *Firmware) { f.Plain.Vars = "" })), efi, domain.ErrUnsupported,
		},
		"firmware: no image for SEV": {
			changes(giveEFI(off), protect(v1.LaunchSecurity{SEV: &v1.SEV{}}), without(func(f *Firmware) { f.SEV = FirmwareImage{} })), efi, domain.ErrUnsupported,
		},
		"firmware: no image for SEV-SNP": {
			changes(giveEFI(off), protect(v1.LaunchSecurity{SNP: &v1.SEVSNP{}}), without(func(f *Firmware) { f.SNP = FirmwareImage{} })), efi, domain.ErrUnsupported,
		},
		"firmware: no image for TDX": {
			changes(giveEFI(off), protect(v1.LaunchSecurity{TDX: &v1.TDX{}}), without(func(f *Firmware) { f.TDX = FirmwareImage{} })), efi, domain.ErrUnsupported,
		},
		"firmware: no image with secure boot on arm64": {onArch(xmlspec.ArchARM, giveEFI(on)), efi, domain.ErrUnsupported},
		"firmware: secure boot without system management mode": {changes(giveEFI(on), func(v *v1.VirtualMachineInstance, _ *Facts) {
			v.Spec.Domain.Features.SMM.Enabled = new(false)
		}), "spec.domain.features.smm", domain.ErrInvalid},
		"firmware: secure boot and SEV":     {changes(giveEFI(v1.EFI{}), protect(v1.LaunchSecurity{SEV: &v1.SEV{}})), efi + ".secureBoot", domain.ErrInvalid},
		"firmware: secure boot and SEV-SNP": {changes(giveEFI(on), protect(v1.LaunchSecurity{SNP: &v1.SEVSNP{}})), efi + ".secureBoot", domain.ErrInvalid},
		"firmware: UEFI on s390x":           {onArch(xmlspec.ArchS390X, giveEFI(off)), efi, domain.ErrInvalid},
		"firmware: nowhere for what shall last": {changes(giveEFI(v1.EFI{Persistent: new(true)}), func(_ *v1.VirtualMachineInstance, f *Facts) {
			f.NVRAMDir = ""
		}), efi + ".persistent", domain.ErrUnsupported},
		"firmware: a relative directory for what shall last": {changes(giveEFI(v1.EFI{Persistent: new(true)}), func(_ *v1.VirtualMachineInstance, f *Facts) {
			f.NVRAMDir = "nvram"
		}), "", domain.ErrInvalid},
	})
}

// bootKernel boots a kernel, from the container if there is one.
func bootKernel(args string, c *v1.KernelBootContainer) func(*v1.VirtualMachineInstance, *Facts) {
	return func(v *v1.VirtualMachineInstance, _ *Facts) {
		v.Spec.Domain.Firmware = &v1.Firmware{KernelBoot: &v1.KernelBoot{KernelArgs: args, Container: c}}
	}
}

// giveTables sets the volumes with ACPI tables.
func giveTables(slic, msdm string) func(*v1.VirtualMachineInstance, *Facts) {
	return func(v *v1.VirtualMachineInstance, f *Facts) {
		v.Spec.Domain.Firmware = &v1.Firmware{ACPI: &v1.ACPI{SlicNameRef: slic, MsdmNameRef: msdm}}
		v.Spec.Volumes = append(v.Spec.Volumes, v1.Volume{Name: "licence", VolumeSource: v1.VolumeSource{Secret: &v1.SecretVolumeSource{}}})
		f.SecretDirs = map[string]string{"licence": "/run/secrets/licence"}
	}
}

func TestSpecKernelAndTables(t *testing.T) {
	const kernel, initrd = "<kernel>" + ownDir + "kernel</kernel>", "<initrd>" + ownDir + "initrd</initrd>"
	runMachineRows(t, map[string]machineRow{
		"firmware: a kernel with its initrd and arguments": {
			change: bootKernel("a=<b>", &v1.KernelBootContainer{KernelPath: "/k", InitrdPath: "/i"}), element: "os",
			want: amd64Boot + kernel + initrd + "<cmdline>a=&lt;b&gt;</cmdline>" + bootEnd,
		},
		"firmware: a kernel alone": {
			change: bootKernel("", &v1.KernelBootContainer{KernelPath: "/k"}), element: "os", want: amd64Boot + kernel + bootEnd,
		},
		"firmware: an initrd alone": {
			change: bootKernel("", &v1.KernelBootContainer{InitrdPath: "/i"}), element: "os", want: amd64Boot + initrd + bootEnd,
		},
		"firmware: arguments alone": {
			change: bootKernel("quiet", nil), element: "os", want: amd64Boot + "<cmdline>quiet</cmdline>" + bootEnd,
		},
		"firmware: both tables": {
			change: giveTables("licence", "licence"), element: "acpi",
			want: `<acpi><table type="slic">/run/secrets/licence/slic.bin</table><table type="msdm">/run/secrets/licence/msdm.bin</table></acpi>`,
		},
		"firmware: one table": {
			change: giveTables("", "licence"), element: "acpi", want: `<acpi><table type="msdm">/run/secrets/licence/msdm.bin</table></acpi>`,
		},
	})
	const acpi = "spec.domain.firmware.acpi"
	runMachineErrors(t, map[string]machineError{
		"firmware: a container without kernel": {bootKernel("", &v1.KernelBootContainer{}), "spec.domain.firmware.kernelBoot.container", domain.ErrInvalid},
		"firmware: no table":                   {giveTables("", ""), acpi, domain.ErrInvalid},
		"firmware: a table of no volume":       {giveTables("other", ""), acpi + ".slicNameRef", domain.ErrInvalid},
		"firmware: a table of no secret":       {giveTables("", "root"), acpi + ".msdmNameRef", domain.ErrInvalid},
		"firmware: a table that is not here": {changes(giveTables("licence", ""), func(_ *v1.VirtualMachineInstance, f *Facts) {
			f.SecretDirs = nil
		}), "spec.volumes[licence]", domain.ErrUnsupported},
	})
}

func TestSpecLaunchSecurity(t *testing.T) {
	off := giveEFI(v1.EFI{SecureBoot: new(false)})
	const unset = `<mrConfigId/><mrOwner/><mrOwnerConfig/>` // libvirtxml always writes them, libvirt ignores them if empty
	tdx := changes(off, protect(v1.LaunchSecurity{TDX: &v1.TDX{}}))
	quotes := func(path string) func(*v1.VirtualMachineInstance, *Facts) {
		return changes(tdx, func(v *v1.VirtualMachineInstance, _ *Facts) { annotate(v, v1.QGSSocketPathAnnotation, path) })
	}
	runMachineRows(t, map[string]machineRow{
		"launchSecurity: SEV forbids debugging": {
			change: changes(off, protect(v1.LaunchSecurity{SEV: &v1.SEV{}})), element: "launchSecurity",
			want: `<launchSecurity type="sev"><policy>0x0001</policy></launchSecurity>`,
		},
		"launchSecurity: SEV-ES with what attests it": {
			change: changes(off, protect(v1.LaunchSecurity{SEV: &v1.SEV{
				Policy: &v1.SEVPolicy{EncryptedState: new(true)}, Session: "c2Vzc2lvbg==", DHCert: "Y2VydA==",
			}})), element: "launchSecurity",
			want: `<launchSecurity type="sev"><policy>0x0005</policy><dhCert>Y2VydA==</dhCert><session>c2Vzc2lvbg==</session></launchSecurity>`,
		},
		"launchSecurity: SEV-SNP": {
			change: changes(off, protect(v1.LaunchSecurity{SNP: &v1.SEVSNP{}})), element: "launchSecurity",
			want: `<launchSecurity type="sev-snp"><policy>0x00030000</policy></launchSecurity>`,
		},
		"launchSecurity: TDX": {change: tdx, element: "launchSecurity", want: `<launchSecurity type="tdx">` + unset + `</launchSecurity>`},
		"launchSecurity: TDX with what signs its quotes": {
			change: quotes("/run/qgs.socket"), element: "launchSecurity",
			want: `<launchSecurity type="tdx">` + unset + `<quoteGenerationService path="/run/qgs.socket"/></launchSecurity>`,
		},
		"launchSecurity: a trust domain has no performance counters": {change: tdx, element: "pmu", want: `<pmu state="off"/>`},
		"launchSecurity: secure execution has no element": {
			change: onArch(xmlspec.ArchS390X, protect(v1.LaunchSecurity{})), element: "launchSecurity",
		},
	})
	const field = "spec.domain.launchSecurity"
	runMachineErrors(t, map[string]machineError{
		"launchSecurity: none by name": {changes(off, protect(v1.LaunchSecurity{})), field, domain.ErrInvalid},
		"launchSecurity: two":          {changes(off, protect(v1.LaunchSecurity{SEV: &v1.SEV{}, SNP: &v1.SEVSNP{}})), field, domain.ErrInvalid},
		"launchSecurity: SEV on s390x": {onArch(xmlspec.ArchS390X, protect(v1.LaunchSecurity{SEV: &v1.SEV{}})), field, domain.ErrInvalid},
		"launchSecurity: any on arm64": {onArch(xmlspec.ArchARM, protect(v1.LaunchSecurity{})), field, domain.ErrInvalid},
		"launchSecurity: SEV by BIOS":  {protect(v1.LaunchSecurity{SEV: &v1.SEV{}}), "spec.domain.firmware.bootloader.efi", domain.ErrInvalid},
		"launchSecurity: SEV emulated": {changes(off, protect(v1.LaunchSecurity{SEV: &v1.SEV{}}), func(_ *v1.VirtualMachineInstance, f *Facts) {
			f.Emulation = true
		}), field, domain.ErrInvalid},
		"launchSecurity: quotes from nowhere": {quotes("qgs"), "metadata.annotations[kubevirt.io/qgs-socket-path]", domain.ErrInvalid},
	})
}

func TestEncrypted(t *testing.T) {
	rows := map[string]struct {
		arch string
		ls   *v1.LaunchSecurity
		want bool
	}{
		"launchSecurity: no protection":                     {xmlspec.ArchX86, nil, false},
		"launchSecurity: SEV is encrypted":                  {xmlspec.ArchX86, &v1.LaunchSecurity{SEV: &v1.SEV{}}, true},
		"launchSecurity: SEV-SNP is encrypted":              {xmlspec.ArchX86, &v1.LaunchSecurity{SNP: &v1.SEVSNP{}}, true},
		"launchSecurity: TDX needs no switch at devices":    {xmlspec.ArchX86, &v1.LaunchSecurity{TDX: &v1.TDX{}}, false},
		"launchSecurity: secure execution is encrypted":     {xmlspec.ArchS390X, &v1.LaunchSecurity{}, true},
		"launchSecurity: an empty section elsewhere is not": {xmlspec.ArchX86, &v1.LaunchSecurity{}, false},
	}
	for name, r := range rows {
		t.Run(name, func(t *testing.T) {
			c := &Conversion{VMI: domainfixture.Small(), Facts: Facts{Arch: r.arch}}
			c.VMI.Spec.Domain.LaunchSecurity = r.ls
			if got := c.encrypted(); got != r.want {
				t.Errorf("encrypted is %v, want %v", got, r.want)
			}
		})
	}
}
