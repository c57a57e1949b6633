// SPDX-License-Identifier: Apache-2.0

package diff

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/resource"
	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/convert"
	"github.com/virtloom/virtloom/domain/internal/domainfixture"
)

func TestCompare_LastAppliedIsEmpty(t *testing.T) {
	for _, file := range []string{"../convert/testdata/minimal.yaml", "../convert/testdata/everything.yaml"} {
		d, err := convert.Convert(domainfixture.Read(t, file), domainfixture.Facts[convert.Facts]())
		if err != nil {
			t.Fatal(err)
		}
		live := readBack(t, d)
		for name, last := range map[string]*libvirtxml.Domain{"known": d, "unknown": nil} {
			got, err := Compare(d, last, live)
			if err != nil || len(got) > 0 {
				t.Errorf("%s, last applied %s: %v, %v", file, name, got, err)
			}
		}
	}
}

func TestCompare_Classes(t *testing.T) {
	type vmiT = v1.VirtualMachineInstance
	type want struct {
		Class Class
		Field string
		Verb  domain.Verb
	}
	const disks, nics = "spec.domain.devices.disks", "spec.domain.devices.interfaces"
	first := func(v *vmiT) *v1.Disk { return &v.Spec.Domain.Devices.Disks[0] }
	rows := map[string]struct {
		before, change func(*vmiT, *convert.Facts)
		want           []want
	}{
		"nothing":      {change: func(*vmiT, *convert.Facts) {}},
		"more memory":  {change: func(v *vmiT, _ *convert.Facts) { v.Spec.Domain.Memory.Guest = new(resource.MustParse("128Mi")) }, want: []want{{NextBoot, "spec.domain.memory.guest", ""}}},
		"CPU plugged":  {before: func(v *vmiT, _ *convert.Facts) { v.Spec.Domain.CPU = &v1.CPU{Sockets: 1, MaxSockets: 4} }, change: func(v *vmiT, _ *convert.Facts) { v.Spec.Domain.CPU.Sockets = 2 }, want: []want{{Live, "spec.domain.cpu.sockets", domain.SetVCPUs}}},
		"more sockets": {change: func(v *vmiT, _ *convert.Facts) { v.Spec.Domain.CPU = &v1.CPU{Sockets: 2} }, want: []want{{NextBoot, "spec.domain.cpu.maxSockets", ""}}},
		"CPU model":    {change: func(v *vmiT, _ *convert.Facts) { v.Spec.Domain.CPU = &v1.CPU{Model: "qemu64"} }, want: []want{{NextBoot, "spec.domain.cpu.model", ""}, {NextBoot, "spec.domain.cpu.features", ""}}},
		"machine":      {change: func(v *vmiT, _ *convert.Facts) { v.Spec.Domain.Machine = &v1.Machine{Type: "pc"} }, want: []want{{NeedsRecreation, "spec.domain.machine.type", ""}}},
		"KVM":          {change: func(_ *vmiT, f *convert.Facts) { f.Emulation = false }, want: []want{{NeedsRecreation, "domain.type", ""}, {NextBoot, "spec.domain.features", ""}}},
		"uuid":         {change: func(v *vmiT, _ *convert.Facts) { v.UID = "5b6c1a2e-0000-4000-8000-0000000000ff" }, want: []want{{NeedsRecreation, "spec.domain.firmware.uuid", ""}, {NextBoot, "spec.domain.firmware", ""}, {NextBoot, nics + "[default].macAddress", ""}}},
		"ACPI": {change: func(v *vmiT, _ *convert.Facts) {
			v.Spec.Domain.Features = &v1.Features{ACPI: v1.FeatureState{Enabled: new(false)}}
		}, want: []want{{NextBoot, "spec.domain.features", ""}}},
		"new virtio disk": {change: func(v *vmiT, _ *convert.Facts) {
			domainfixture.AddDisk(v, "data", v1.DiskDevice{Disk: &v1.DiskTarget{Bus: "virtio"}})
		}, want: []want{{Live, disks + "[data]", domain.AttachDevice}}},
		"new sata disk": {change: func(v *vmiT, _ *convert.Facts) {
			domainfixture.AddDisk(v, "data", v1.DiskDevice{Disk: &v1.DiskTarget{Bus: "sata"}})
		}, want: []want{{NextBoot, disks + "[data]", ""}}},
		"disk gone": {change: func(v *vmiT, _ *convert.Facts) { v.Spec.Domain.Devices.Disks = nil }, want: []want{{Live, disks + "[root]", domain.DetachDevice}}},
		"order of disks": {
			before: func(v *vmiT, _ *convert.Facts) {
				domainfixture.AddDisk(v, "data", v1.DiskDevice{Disk: &v1.DiskTarget{Bus: "virtio"}})
			},
			change: func(v *vmiT, _ *convert.Facts) {
				d := v.Spec.Domain.Devices.Disks
				d[0], d[1] = d[1], d[0]
			},
		},
		"other volume":   {change: func(_ *vmiT, f *convert.Facts) { f.Disks["root"] = convert.DiskSource{Path: "/else"} }, want: []want{{NeedsMigration, disks + "[root].volume", ""}}},
		"serial number":  {change: func(v *vmiT, _ *convert.Facts) { first(v).Serial = "S1" }, want: []want{{NextBoot, disks + "[root].serial", ""}}},
		"case of serial": {before: func(v *vmiT, _ *convert.Facts) { first(v).Serial = "s1" }, change: func(v *vmiT, _ *convert.Facts) { first(v).Serial = "S1" }, want: []want{{NextBoot, disks + "[root].serial", ""}}},
		"bus":            {change: func(v *vmiT, _ *convert.Facts) { first(v).Disk.Bus = "scsi" }, want: []want{{NextBoot, disks + "[root].bus", ""}}},
		"cache":          {change: func(v *vmiT, _ *convert.Facts) { first(v).Cache = "writeback" }, want: []want{{NeedsMigration, disks + "[root].cache", ""}}},
		"other disc": {
			before: func(v *vmiT, _ *convert.Facts) {
				domainfixture.AddDisk(v, "cloudinit", v1.DiskDevice{CDRom: &v1.CDRomTarget{Bus: "sata"}})
			},
			change: func(_ *vmiT, f *convert.Facts) { f.Disks["cloudinit"] = convert.DiskSource{Path: "/other.iso"} },
			want:   []want{{Live, disks + "[cloudinit].volume", domain.UpdateDevice}},
		},
		"link":           {change: func(v *vmiT, _ *convert.Facts) { v.Spec.Domain.Devices.Interfaces[0].State = "down" }, want: []want{{Live, nics + "[default].state", domain.UpdateDevice}}},
		"bridge":         {change: func(_ *vmiT, f *convert.Facts) { f.Bridges["default"] = "br7" }, want: []want{{Live, nics + "[default].network", domain.UpdateDevice}}},
		"no card":        {change: func(v *vmiT, _ *convert.Facts) { v.Spec.Domain.Devices.Interfaces[0].State = "absent" }, want: []want{{Live, nics + "[default]", domain.DetachDevice}}},
		"address":        {change: func(v *vmiT, _ *convert.Facts) { v.Spec.Domain.Devices.Interfaces[0].MacAddress = "02:00:00:00:00:09" }, want: []want{{NextBoot, nics + "[default].macAddress", ""}}},
		"random numbers": {change: func(v *vmiT, _ *convert.Facts) { v.Spec.Domain.Devices.Rng = &v1.Rng{} }, want: []want{{NextBoot, "spec.domain.devices.rng", ""}}},
		"epoch":          {change: func(_ *vmiT, f *convert.Facts) { f.Epoch++ }},
	}
	for name, row := range rows {
		t.Run(name, func(t *testing.T) {
			vmi, f := domainfixture.Small(), domainfixture.Facts[convert.Facts]()
			if row.before != nil {
				row.before(vmi, &f)
			}
			last, err := convert.Convert(vmi, f)
			if err != nil {
				t.Fatal(err)
			}
			f.Layout = convert.LayoutOf(last)
			row.change(vmi, &f)
			desired, err := convert.Convert(vmi, f)
			if err != nil {
				t.Fatal(err)
			}
			found, err := Compare(desired, last, readBack(t, last))
			if err != nil {
				t.Fatal(err)
			}
			var got []want
			for _, d := range found {
				w := want{Class: d.Class, Field: d.Field}
				if d.Operation != nil {
					w.Verb = d.Operation.Verb
					if err := d.Operation.Validate(); err != nil || d.Class != Live {
						t.Errorf("%s: operation %+v: %v", d, d.Operation, err)
					}
				}
				if d.Reason == "" {
					t.Errorf("%s: no reason", d)
				}
				got = append(got, w)
			}
			if diff := cmp.Diff(row.want, got); diff != "" {
				t.Errorf("differences (-want +got):\n%s", diff)
			}
		})
	}
}

func TestCompare_OtherDomain(t *testing.T) {
	a, b := &libvirtxml.Domain{Name: "a"}, &libvirtxml.Domain{Name: "b"}
	for _, pair := range [][2]*libvirtxml.Domain{{a, b}, {nil, b}, {a, nil}} {
		if _, err := Compare(pair[0], nil, pair[1]); err == nil {
			t.Errorf("diff of %v and %v", pair[0], pair[1])
		}
	}
}
