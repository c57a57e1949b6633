// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"errors"
	"strings"
	"testing"

	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain/internal/domainfixture"
	"github.com/virtloom/virtloom/domain/internal/xmlspec"
)

// FuzzConvertStrings uses one string for every free-text field. Either it is rejected by a
// convert.Error, or the domain contains exactly that string in exactly that place and nothing else
// has changed.
func FuzzConvertStrings(f *testing.F) {
	for _, s := range []string{
		"", "plain", `</cmdline><devices>`, `"><x a='`, "]]>", "&amp;&#0;", "\x00", "\uFFFE", "\xff", "a\nb\tc\rd", "<!-- -->", "<?x?>", "ä\U0001F600",
		"$(reboot)", "../../etc/passwd", "%s%n", strings.Repeat("x", 300),
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		vmi := domainfixture.Small()
		vmi.Spec.Domain.Firmware = &v1.Firmware{
			Serial:     s,
			KernelBoot: &v1.KernelBoot{KernelArgs: s, Container: &v1.KernelBootContainer{KernelPath: s + "/k"}},
		}
		vmi.Spec.Domain.Chassis = &v1.Chassis{Manufacturer: s, Asset: s}
		vmi.Spec.Domain.CPU = &v1.CPU{Model: "m" + s, Features: []v1.CPUFeature{{Name: "f" + s}}}
		vmi.Spec.Domain.Machine = &v1.Machine{Type: "q35" + s}
		vmi.Spec.Domain.Devices.Interfaces[0].Model = "m" + s
		vmi.Annotations = map[string]string{"other": s}
		vmi.Spec.Hostname = s
		d, err := Convert(vmi, domainfixture.Facts[Facts]())
		if err != nil {
			var e *Error
			if !errors.As(err, &e) || e.Object == "" || e.Reason == "" {
				t.Fatalf("error without object and reason: %v", err)
			}
			return
		}
		doc, err := d.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		again := &libvirtxml.Domain{}
		if err := again.Unmarshal(doc); err != nil {
			t.Fatalf("invalid XML: %v\n%s", err, doc)
		}
		for what, got := range map[string]string{
			"cmdline": again.OS.Cmdline, "asset": again.SysInfo[0].SMBIOS.Chassis.Entry[3].Value,
			"model": strings.TrimPrefix(again.CPU.Model.Value, "m"), "feature": strings.TrimPrefix(again.CPU.Features[0].Name, "f"),
			"machine": strings.TrimPrefix(again.OS.Type.Machine, "q35"), "card": strings.TrimPrefix(again.Devices.Interfaces[0].Model.Type, "m"),
		} {
			if got != s {
				t.Errorf("%s is %q, want %q", what, got, s)
			}
		}
		if len(again.Devices.Disks) != 1 || again.Devices.Disks[0].Target.Dev != "vda" {
			t.Errorf("devices have changed:\n%s", doc)
		}
	})
}

// FuzzNames uses one string for names, which become aliases and paths.
func FuzzNames(f *testing.F) {
	for _, s := range []string{"root", "a.b", "a/b", "..", "ä", strings.Repeat("n", 64), `a"b`, "a\nb"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		vmi, facts := domainfixture.Small(), domainfixture.Facts[Facts]()
		vmi.Spec.Domain.Devices.Disks[0].Name = s
		vmi.Spec.Domain.Devices.Interfaces[0].Name = s
		vmi.Spec.Networks[0].Name = s
		vmi.Spec.Volumes = append(vmi.Spec.Volumes, v1.Volume{Name: s})
		facts.Disks[s], facts.Bridges[s] = DiskSource{Path: "/x"}, "br0"
		d, err := Convert(vmi, facts)
		if err != nil {
			var e *Error
			if !errors.As(err, &e) {
				t.Fatalf("error of another type: %v", err)
			}
			return
		}
		if strings.ContainsAny(s, "/.\"<>&\n ") || s == "" {
			t.Errorf("name %q is accepted", s)
		}
		if xmlspec.NameOf(d.Devices.Disks[0].Alias) != s || xmlspec.NameOf(d.Devices.Interfaces[0].Alias) != s {
			t.Errorf("aliases of %q are %+v", s, d.Devices.Disks[0].Alias)
		}
	})
}
