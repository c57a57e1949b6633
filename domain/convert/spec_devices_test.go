// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain/internal/domainfixture"
)

// deviceRow changes the small VMI, which has a tap device, with the expected XML of the picked
// devices, or the expected field and error.
type deviceRow struct {
	arch   string // of the node; empty for x86_64
	change func(*v1.VirtualMachineInstance, *Facts)
	pick   func(in, out *libvirtxml.DomainDeviceList)
	want   string
	field  string
	err    error
}

var (
	betweenElements = regexp.MustCompile(`>\s+<`)
	emptyElement    = regexp.MustCompile(`<(\w+)([^<>]*)></\w+>`)
)

// xmlOfDevices returns the XML of devices without whitespace.
func xmlOfDevices(t *testing.T, l *libvirtxml.DomainDeviceList) string {
	t.Helper()
	_, s, _ := strings.Cut(domainfixture.Marshal(t, &libvirtxml.Domain{Devices: l}), "<devices>")
	s, _, _ = strings.Cut(s, "</devices>")
	s = betweenElements.ReplaceAllString(strings.TrimSpace(s), "><")
	return emptyElement.ReplaceAllString(s, "<$1$2/>")
}

func runDeviceRows(t *testing.T, rows map[string]deviceRow) {
	t.Helper()
	for name, r := range rows {
		t.Run(name, func(t *testing.T) {
			vmi, f := domainfixture.Small(), domainfixture.Facts[Facts]()
			f.Arch = r.arch
			f.Emulation = false
			f.Links = map[string]Link{"default": {Tap: "tap0"}}
			vmi.Spec.Domain.Devices.Interfaces[0].MacAddress = "02:00:00:00:00:01"
			if r.change != nil {
				r.change(vmi, &f)
			}
			// Addresses are tested elsewhere.
			passes := slices.DeleteFunc(Passes(), func(p Pass) bool { return p.Name == "pci" })
			d, err := ConvertWith(vmi, f, passes)
			if r.err != nil {
				if d != nil {
					t.Error("a domain is returned as well")
				}
				wantError(t, err, r.field, r.err)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			picked := &libvirtxml.DomainDeviceList{}
			r.pick(d.Devices, picked)
			if diff := cmp.Diff(r.want, xmlOfDevices(t, picked)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// Devices that rows pick.
func pickInterfaces(in, out *libvirtxml.DomainDeviceList)  { out.Interfaces = in.Interfaces }
func pickHostdevs(in, out *libvirtxml.DomainDeviceList)    { out.Hostdevs = in.Hostdevs }
func pickInputs(in, out *libvirtxml.DomainDeviceList)      { out.Inputs = in.Inputs }
func pickBalloon(in, out *libvirtxml.DomainDeviceList)     { out.MemBalloon = in.MemBalloon }
func pickPanics(in, out *libvirtxml.DomainDeviceList)      { out.Panics = in.Panics }
func pickFilesystems(in, out *libvirtxml.DomainDeviceList) { out.Filesystems = in.Filesystems }
func pickTPM(in, out *libvirtxml.DomainDeviceList)         { out.TPMs = in.TPMs }
func pickVSock(in, out *libvirtxml.DomainDeviceList)       { out.VSock = in.VSock }
func pickDisplay(in, out *libvirtxml.DomainDeviceList) {
	out.Graphics, out.Videos = in.Graphics, in.Videos
}

func pickSerial(in, out *libvirtxml.DomainDeviceList) {
	out.Consoles, out.Serials, out.Channels = in.Consoles, in.Serials, in.Channels
}

// pickController picks the controllers of one type.
func pickController(kind string) func(in, out *libvirtxml.DomainDeviceList) {
	return func(in, out *libvirtxml.DomainDeviceList) {
		for _, c := range in.Controllers {
			if c.Type == kind {
				out.Controllers = append(out.Controllers, c)
			}
		}
	}
}

// both combines two picks.
func both(a, b func(in, out *libvirtxml.DomainDeviceList)) func(in, out *libvirtxml.DomainDeviceList) {
	return func(in, out *libvirtxml.DomainDeviceList) {
		a(in, out)
		b(in, out)
	}
}
