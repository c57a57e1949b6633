// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/internal/domainfixture"
	"github.com/virtloom/virtloom/domain/internal/xmlspec"
)

// The VMI has dedicated CPUs and devices on two NUMA nodes.
func TestSpecNUMAAlignedDevices(t *testing.T) {
	hostdev := func(name string, bus uint) libvirtxml.DomainHostdev {
		return libvirtxml.DomainHostdev{Alias: xmlspec.Alias("hostdevice-" + name), SubsysPCI: &libvirtxml.DomainHostdevSubsysPCI{
			Source: &libvirtxml.DomainHostdevSubsysPCISource{Address: Place{Bus: bus}.address().PCI},
		}}
	}
	convert := func(nodes []libvirtxml.DomainNUMATuneMemNode, strict bool, cells ...*uint) (*libvirtxml.Domain, error) {
		vmi, f := domainfixture.Small(), domainfixture.Facts[Facts]()
		f.Cluster.NUMAAlignedPCI, f.Devices = true, map[string][]HostDevice{}
		vmi.Spec.Domain.Devices.DisableHotplug = true
		vmi.Spec.Domain.CPU = &v1.CPU{DedicatedCPUPlacement: true}
		if strict {
			vmi.Spec.Domain.CPU.NUMA = &v1.NUMA{GuestMappingPassthrough: &v1.NUMAGuestMappingPassthrough{}}
		}
		var devices []libvirtxml.DomainHostdev
		for i, cell := range cells {
			bus := uint(0x81 + i)
			devices = append(devices, hostdev(fmt.Sprint(i), bus))
			f.Devices["vendor/device"] = append(f.Devices["vendor/device"], HostDevice{PCI: fmt.Sprintf("0000:%02x:00.0", bus), Cell: cell})
		}
		add := Pass{"test", func(c *Conversion) error {
			c.Domain.Devices.Hostdevs = devices
			c.Domain.NUMATune = &libvirtxml.DomainNUMATune{MemNodes: nodes}
			return nil
		}}
		passes := []Pass{}
		for _, p := range Passes() {
			switch p.Name {
			case "supported", "placement", "memoryBacking":
			case "pci":
				passes = append(passes, add, p)
			default:
				passes = append(passes, p)
			}
		}
		return ConvertWith(vmi, f, passes)
	}
	nodes := []libvirtxml.DomainNUMATuneMemNode{{CellID: 0, Nodeset: "3"}, {CellID: 1, Nodeset: "5"}}
	d, err := convert(nodes, true, new(uint(5)), new(uint(3)), new(uint(5)), nil)
	if err != nil {
		t.Fatal(err)
	}
	checkAddresses(t, d)
	type bus struct {
		Model        string
		Bus          uint
		Node, Number uint
	}
	var got []bus
	for _, b := range LayoutOf(d).Buses[6:] {
		got = append(got, bus{b.Model, b.Place.Bus, deref(b.NUMANode), deref(b.Number)})
	}
	want := []bus{
		{pcieExpander, 0, 0, 254}, {pcieRootPort, 6, 0, 0},
		{pcieExpander, 0, 1, 251}, {pcieRootPort, 8, 0, 0}, {pcieRootPort, 8, 0, 0},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("pci: buses (-want +got):\n%s", diff)
	}
	places := addressesOf(d)
	for key, want := range map[string]string{
		"ua-hostdevice-0": "09:00.0", "ua-hostdevice-1": "07:00.0", "ua-hostdevice-2": "0a:00.0", "ua-hostdevice-3": "04:00.0",
	} {
		if places[key] != want {
			t.Errorf("pci: %s is at %s, want %s", key, places[key], want)
		}
	}
	if d, err := convert(nodes[:1], false, new(uint(5))); err != nil || addressesOf(d)["ua-hostdevice-0"] != "04:00.0" {
		t.Errorf("pci: a device of another node: %v", err)
	}
	if _, err := convert(nodes[:1], true, new(uint(5))); !errors.Is(err, domain.ErrInvalid) {
		t.Errorf("pci: a device of another node, with guestMappingPassthrough: %v", err)
	}
}
