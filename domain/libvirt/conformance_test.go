// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package libvirt_test

import (
	"context"
	"strings"
	"testing"

	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/domaintest"
	"github.com/virtloom/virtloom/domain/libvirt"
)

// open connects a driver for one test.
func open(t testing.TB, uri string, o libvirt.Options) *libvirt.Driver {
	t.Helper()
	d, err := libvirt.Open(t.Context(), uri, o)
	if err != nil {
		t.Fatalf("%v (make setup installs libvirt)", err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// testDefinition is a domain for libvirt's test driver.
func testDefinition(t testing.TB, name string) *libvirtxml.Domain {
	t.Helper()
	d := domaintest.Definition(t, name)
	d.Type, d.VCPU = "test", &libvirtxml.DomainVCPU{Value: 1}
	d.OS = &libvirtxml.DomainOS{Type: &libvirtxml.DomainOSType{Type: "hvm"}}
	return d
}

func TestConformance_TestDriver(t *testing.T) {
	const none = "libvirt's test driver has no such thing"
	addDisk := func(_ testing.TB, d *libvirtxml.Domain) {
		d.Devices.Disks = append(d.Devices.Disks, libvirtxml.DomainDisk{
			Device: "disk", Alias: &libvirtxml.DomainAlias{Name: domain.AliasPrefix + "root"},
			Source: &libvirtxml.DomainDiskSource{File: &libvirtxml.DomainDiskSourceFile{File: "/nonexistent"}},
			Target: &libvirtxml.DomainDiskTarget{Dev: "vda", Bus: "virtio"},
		})
	}
	domaintest.Conformance(t, func(t testing.TB) domaintest.Driver {
		return domaintest.Driver{
			Hypervisor: open(t, "test:///default", libvirt.Options{}),
			Definition: testDefinition,
			Fit: map[domaintest.Ability]func(testing.TB, *libvirtxml.Domain){
				domaintest.CPUHotplug: func(_ testing.TB, d *libvirtxml.Domain) { d.VCPU = &libvirtxml.DomainVCPU{Value: 2, Current: 1} },
				domaintest.DiskResize: addDisk,
				domaintest.Consoles: func(_ testing.TB, d *libvirtxml.Domain) {
					d.Devices.Serials = append(d.Devices.Serials, libvirtxml.DomainSerial{})
				},
			},
			Unsupported: map[domaintest.Ability]string{
				domaintest.StartPaused: none, domaintest.Migration: none, domaintest.SlowMigration: none, domaintest.Crashes: none,
				domaintest.DiskHotplug: none, domaintest.SCSIHotplug: none, domaintest.InterfaceHotplug: none, domaintest.MemoryHotplug: none,
				domaintest.MediumChange: none, domaintest.DiskResize: none, domaintest.Agent: none, domaintest.FullAgent: none, domaintest.Consoles: none,
				domaintest.DeviceStatistics: "libvirt's test driver counts nothing",
				domaintest.Reconnects:       "it lives in this process",
			},
		}
	})
}

func TestOpen_Fails(t *testing.T) {
	_, err := libvirt.Open(t.Context(), "qemu+unix:///system?socket=/nonexistent/sock", libvirt.Options{})
	if err == nil || !strings.Contains(err.Error(), "/nonexistent/sock") {
		t.Errorf("error is %v", err)
	}
}

func TestDriver_Closed(t *testing.T) {
	d, err := libvirt.Open(t.Context(), "test:///default", libvirt.Options{})
	if err != nil {
		t.Fatal(err)
	}
	ch, err := d.Watch(context.WithoutCancel(t.Context()))
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	for range ch { // ends
	}
	if _, err := d.List(t.Context()); err == nil {
		t.Error("List works on a closed driver")
	}
	if _, err := d.Watch(t.Context()); err == nil {
		t.Error("Watch works on a closed driver")
	}
	if err := d.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
}
