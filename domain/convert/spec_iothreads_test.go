// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"fmt"
	"strings"
	"testing"

	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/internal/domainfixture"
	"github.com/virtloom/virtloom/domain/internal/xmlspec"
)

// sevenDisks sets seven virtio disks, the first with a dedicated thread.
func sevenDisks(v *v1.VirtualMachineInstance, f *Facts) {
	withDisks(v, f, 7)
	v.Spec.Domain.Devices.Disks[0].DedicatedIOThread = new(true)
}

// threadsOf lists the threads of all disks, as in 2 1 -, where - is a disk without one.
func threadsOf(d *libvirtxml.Domain) string {
	var out []string
	for i := range d.Devices.Disks {
		switch driver := d.Devices.Disks[i].Driver; {
		case driver.IOThreads != nil:
			var ids []string
			for _, t := range driver.IOThreads.IOThread {
				ids = append(ids, fmt.Sprint(t.ID))
			}
			out = append(out, strings.Join(ids, "+"))
		case driver.IOThread != nil:
			out = append(out, fmt.Sprint(*driver.IOThread))
		default:
			out = append(out, "-")
		}
	}
	return strings.Join(out, " ")
}

func TestSpecIOThreads(t *testing.T) {
	auto, shared := policyOfThreads(v1.IOThreadsPolicyAuto, 0), policyOfThreads(v1.IOThreadsPolicyShared, 0)
	own := func(i int) func(*v1.VirtualMachineInstance, *Facts) {
		return func(v *v1.VirtualMachineInstance, _ *Facts) {
			v.Spec.Domain.Devices.Disks[i].DedicatedIOThread = new(true)
		}
	}
	disks := func(n int) func(*v1.VirtualMachineInstance, *Facts) {
		return func(v *v1.VirtualMachineInstance, f *Facts) { withDisks(v, f, n) }
	}
	more := func(name string, bus v1.DiskBus) func(*v1.VirtualMachineInstance, *Facts) {
		return func(v *v1.VirtualMachineInstance, f *Facts) { plugDisk(v, f, name, bus) }
	}
	plugged := func(v *v1.VirtualMachineInstance, f *Facts) {
		claim := v1.VolumeSource{DataVolume: &v1.DataVolumeSource{Name: "late", Hotpluggable: true}}
		v.Spec.Volumes = append(v.Spec.Volumes, v1.Volume{Name: "late", VolumeSource: claim})
		f.Disks["late"] = DiskSource{Path: "/dev/late", Block: true, DirectIO: true}
		list := &v.Spec.Domain.Devices.Disks
		*list = append([]v1.Disk{{Name: "late", DiskDevice: v1.DiskDevice{Disk: &v1.DiskTarget{Bus: v1.DiskBusVirtio}}}}, *list...)
	}
	request := func(n string) func(*v1.VirtualMachineInstance, *Facts) { return resourcesOf(cpuAmount(n), nil) }
	rows := map[string]struct {
		change func(*v1.VirtualMachineInstance, *Facts)
		total  uint
		want   string
	}{
		"C37: auto with one CPU":    {changes(sevenDisks, auto, request("1")), 2, "2 1 1 1 1 1 1"},
		"C37: auto with two CPUs":   {changes(sevenDisks, auto, request("2")), 4, "4 1 2 3 1 2 3"},
		"C37: auto with three CPUs": {changes(sevenDisks, auto, request("3")), 6, "6 1 2 3 4 5 1"},
		"C37: auto with four CPUs":  {changes(sevenDisks, auto, request("4")), 7, "7 1 2 3 4 5 6"},
		"C37: auto with five CPUs":  {changes(sevenDisks, auto, request("5")), 7, "7 1 2 3 4 5 6"},
		"C38: a pool is every disk's": {
			changes(disks(2), more("scratch", v1.DiskBusSATA), policyOfThreads(v1.IOThreadsPolicySupplementalPool, 4)), 4, "1+2+3+4 1+2+3+4 -",
		},
		"ioThreads: none by default":            {disks(2), 0, "- -"},
		"ioThreads: shared is one":              {changes(disks(3), shared), 1, "1 1 1"},
		"ioThreads: shared beside one's own":    {changes(disks(3), shared, own(1)), 2, "1 2 1"},
		"ioThreads: one's own without a policy": {changes(disks(3), own(2)), 2, "1 1 2"},
		"ioThreads: all have their own":         {changes(disks(2), own(0), own(1)), 3, "2 3"},
		"ioThreads: the only disk has its own":  {changes(disks(1), own(0)), 1, "1"},
		"ioThreads: auto counts the request before the limit": {
			changes(disks(7), auto, resourcesOf(cpuAmount("1"), cpuAmount("3"))), 2, "1 2 1 2 1 2 1",
		},
		"ioThreads: auto counts the limit if nothing is requested": {changes(disks(5), auto, resourcesOf(nil, cpuAmount("2"))), 4, "1 2 3 4 1"},
		"ioThreads: auto counts one CPU if nobody says":            {changes(disks(3), auto), 2, "1 2 1"},
		"ioThreads: auto beside an isolated emulator is one": {
			changes(disks(3), auto, request("4"), dedicated(v1.CPU{Cores: 1, IsolateEmulatorThread: true}), giveHost(twoCells(), 0, 1)), 1, "1 1 1",
		},
		"ioThreads: disks on other buses count but have none": {changes(disks(1), more("scratch", v1.DiskBusSATA), more("data", v1.DiskBusSCSI), auto, request("4")), 3, "1 - -"},
		"ioThreads: a CD-ROM on virtio has one": {
			onArch(xmlspec.ArchARM, func(v *v1.VirtualMachineInstance, _ *Facts) {
				domainfixture.AddDisk(v, "cloudinit", v1.DiskDevice{CDRom: &v1.CDRomTarget{Bus: v1.DiskBusVirtio}})
			}, shared), 1, "1 1",
		},
		"ioThreads: a disk that comes later changes no other's": {changes(disks(2), auto, request("4"), plugged), 2, "1 1 2"},
		"ioThreads: a disk that comes later has none of its own": {
			changes(disks(2), auto, request("4"), plugged, own(0)), 2, "1 1 2",
		},
		"ioThreads: a disk that comes later shares with one that wanted to be alone": {changes(disks(1), own(0), plugged), 1, "1 1"},
		"ioThreads: there is one for disks that come later": {
			changes(shared, plugged, func(v *v1.VirtualMachineInstance, _ *Facts) {
				v.Spec.Domain.Devices.Disks = v.Spec.Domain.Devices.Disks[:1]
			}), 1, "1",
		},
	}
	for name, r := range rows {
		t.Run(name, func(t *testing.T) {
			vmi, f := domainfixture.Small(), domainfixture.Facts[Facts]()
			r.change(vmi, &f)
			d, err := Convert(vmi, f)
			if err != nil {
				t.Fatal(err)
			}
			if got := threadsOf(d); got != r.want || d.IOThreads != r.total {
				t.Errorf("%d threads, disks have %s; want %d, %s", d.IOThreads, got, r.total, r.want)
			}
		})
	}
	runMachineErrors(t, map[string]machineError{
		"ioThreads: a policy nobody knows": {policyOfThreads("x", 0), "spec.domain.ioThreadsPolicy", domain.ErrInvalid},
		"ioThreads: a pool of no size": {
			policyOfThreads(v1.IOThreadsPolicySupplementalPool, 0), "spec.domain.ioThreads.supplementalPoolThreadCount", domain.ErrInvalid,
		},
		"ioThreads: a pool without end": {
			policyOfThreads(v1.IOThreadsPolicySupplementalPool, 1<<31), "spec.domain.ioThreads.supplementalPoolThreadCount", domain.ErrInvalid,
		},
	})
}
