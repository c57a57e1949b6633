// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"testing"

	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/internal/domainfixture"
	"github.com/virtloom/virtloom/domain/internal/xmlspec"
)

// withSEV enables AMD SEV.
func withSEV(v *v1.VirtualMachineInstance, f *Facts) {
	v.Spec.Domain.LaunchSecurity = &v1.LaunchSecurity{SEV: &v1.SEV{}}
	withEFI(v, f)
	f.Firmware.SEV = FirmwareImage{Code: "/fw/sev.fd", Vars: "/fw/vars.fd"}
}

// withEFI boots from UEFI.
func withEFI(v *v1.VirtualMachineInstance, f *Facts) {
	v.Spec.Domain.Firmware = &v1.Firmware{Bootloader: &v1.Bootloader{EFI: &v1.EFI{SecureBoot: new(false)}}}
	f.Firmware.Plain = FirmwareImage{Code: "/fw/code.fd", Vars: "/fw/vars.fd"}
}

// If the host cannot read guest memory, every virtio device needs the IOMMU option, and boot ROMs
// are disabled.
func TestSpecDevices_Encrypted(t *testing.T) {
	const iommu = `<driver iommu="on"/>`
	also := func(change func(*v1.VirtualMachineInstance, *Facts)) func(*v1.VirtualMachineInstance, *Facts) {
		return func(v *v1.VirtualMachineInstance, f *Facts) {
			withSEV(v, f)
			change(v, f)
		}
	}
	protected := func(v *v1.VirtualMachineInstance, _ *Facts) { v.Spec.Domain.LaunchSecurity = &v1.LaunchSecurity{} }
	pickRNG := func(in, out *libvirtxml.DomainDeviceList) { out.RNGs = in.RNGs }
	rng := also(func(v *v1.VirtualMachineInstance, _ *Facts) { v.Spec.Domain.Devices.Rng = &v1.Rng{} })
	vhost := func(queues string) string { return `<driver name="vhost"` + queues + ` iommu="on"/>` }
	runDeviceRows(t, map[string]deviceRow{
		"encrypted: network card":        {change: withSEV, pick: pickInterfaces, want: card("ethernet", tap0, modern, vhost("")+romOff)},
		"encrypted: network card, s390x": {arch: xmlspec.ArchS390X, change: protected, pick: pickInterfaces, want: card("ethernet", tap0, "virtio", vhost(""))},
		"encrypted: network card, queues": {change: also(func(v *v1.VirtualMachineInstance, _ *Facts) {
			v.Spec.Domain.Devices.NetworkInterfaceMultiQueue, v.Spec.Domain.CPU = new(true), &v1.CPU{Cores: 2}
		}), pick: pickInterfaces, want: card("ethernet", tap0, modern, vhost(` queues="2"`)+romOff)},
		"encrypted: a card that is not virtio has no such driver": {
			change: also(func(v *v1.VirtualMachineInstance, _ *Facts) { firstCard(v).Model = "e1000e" }),
			pick:   pickInterfaces, want: card("ethernet", tap0, "e1000e", romOff),
		},
		"encrypted: boot order without the ROM": {
			change: also(func(v *v1.VirtualMachineInstance, _ *Facts) { firstCard(v).BootOrder = new(uint(1)) }), pick: pickInterfaces,
			want: `<interface type="ethernet"><mac address="02:00:00:00:00:01"/><boot order="1"/>` + tap0 +
				`<model type="virtio-non-transitional"/>` + vhost("") + romOff + `<alias name="ua-default"/></interface>`,
		},
		"encrypted: SCSI controller": {
			change: withSEV, pick: pickController("scsi"),
			want: `<controller type="scsi" index="0" model="virtio-non-transitional">` + iommu + `</controller>`,
		},
		"encrypted: serial controller": {
			change: withSEV, pick: pickController("virtio-serial"),
			want: `<controller type="virtio-serial" index="0" model="virtio-non-transitional">` + iommu + `</controller>`,
		},
		"encrypted: balloon": {
			change: withSEV, pick: pickBalloon,
			want: `<memballoon model="virtio-non-transitional" freePageReporting="on">` + iommu + `<stats period="10"/></memballoon>`,
		},
		"encrypted: random numbers": {
			change: rng, pick: pickRNG,
			want: `<rng model="virtio-non-transitional">` + iommu + `<backend model="random">/dev/urandom</backend></rng>`,
		},
	})
}

// A SCSI controller has one queue per CPU, and an I/O thread, if one of its disks requests a
// dedicated thread.
func TestSCSIController_IOThread(t *testing.T) {
	disks := func(hotpluggable bool, threads ...string) func(*v1.VirtualMachineInstance, *Facts) {
		return func(v *v1.VirtualMachineInstance, _ *Facts) {
			v.Spec.Domain.CPU = &v1.CPU{Sockets: 2, Cores: 2, MaxSockets: 4}
			v.Spec.Volumes[1].DataVolume.Hotpluggable = hotpluggable
			domainfixture.AddDisk(v, "data", v1.DiskDevice{Disk: &v1.DiskTarget{Bus: v1.DiskBusSCSI}})
			for i := range v.Spec.Domain.Devices.Disks {
				d := &v.Spec.Domain.Devices.Disks[i]
				for _, name := range threads {
					d.DedicatedIOThread = new(d.Name == name || specIsTrue(d.DedicatedIOThread))
				}
			}
		}
	}
	plain := `<controller type="scsi" index="0" model="virtio-non-transitional"/>`
	threaded := func(driver string) string {
		return `<controller type="scsi" index="0" model="virtio-non-transitional"><driver queues="4" ` + driver + `/></controller>`
	}
	runDeviceRows(t, map[string]deviceRow{
		"scsi thread: none by default":                {change: disks(false), pick: pickController("scsi"), want: plain},
		"scsi thread: a disk on another bus has it":   {change: disks(false, "root"), pick: pickController("scsi"), want: plain},
		"scsi thread: the last one":                   {change: disks(false, "data"), pick: pickController("scsi"), want: threaded(`iothread="2"`)},
		"scsi thread: after those of virtio disks":    {change: disks(false, "root", "data"), pick: pickController("scsi"), want: threaded(`iothread="3"`)},
		"scsi thread: not for a disk that comes late": {change: disks(true, "data"), pick: pickController("scsi"), want: plain},
		"scsi thread: with encrypted memory": {change: func(v *v1.VirtualMachineInstance, f *Facts) {
			withSEV(v, f)
			disks(false, "data")(v, f)
		}, pick: pickController("scsi"), want: threaded(`iothread="2" iommu="on"`)},
	})
}

func TestSpecVideo_UEFIAndCrossArchitecture(t *testing.T) {
	const vnc = `<graphics type="vnc"><listen type="socket" socket="/var/lib/virtloom/guests/5b6c1a2e/virt-vnc"/></graphics>`
	bochs := func(efi bool) func(*v1.VirtualMachineInstance, *Facts) {
		return func(v *v1.VirtualMachineInstance, f *Facts) {
			if f.Cluster.BochsForEFI = true; efi {
				withEFI(v, f)
			}
		}
	}
	foreign := func(v *v1.VirtualMachineInstance, f *Facts) {
		v.Spec.Architecture = "arm64"
		f.Emulators = map[string]string{xmlspec.ArchARM: "/usr/bin/qemu-system-aarch64"}
	}
	const vga, plain = `<video><model type="vga" heads="1" vram="16384"/></video>`, `<video><model type="bochs" heads="1"/></video>`
	runDeviceRows(t, map[string]deviceRow{
		"video: bochs for UEFI where the cluster says so": {change: bochs(true), pick: pickDisplay, want: vnc + plain},
		"video: VGA for BIOS all the same":                {change: bochs(false), pick: pickDisplay, want: vnc + vga},
		"video: VGA for UEFI elsewhere":                   {change: withEFI, pick: pickDisplay, want: vnc + vga},
		"foreign architecture: no display, no input":      {change: foreign, pick: both(pickDisplay, pickInputs), want: ""},
		"foreign architecture: a video card is refused": {change: func(v *v1.VirtualMachineInstance, f *Facts) {
			foreign(v, f)
			v.Spec.Domain.Devices.Video = &v1.VideoDevice{Type: "virtio"}
		}, field: "spec.domain.devices.video", err: domain.ErrInvalid},
	})
}
