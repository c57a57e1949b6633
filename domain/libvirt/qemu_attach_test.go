// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package libvirt_test

import (
	"testing"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/domaintest"
	"github.com/virtloom/virtloom/domain/libvirt"
	golibvirt "libvirt.org/go/libvirt"
	"libvirt.org/go/libvirtxml"
)

// testRollBack attaches a disk whose place is taken in the definition: the running
// guest does not keep it either.
func testRollBack(t *testing.T, ns *nodes) {
	d := open(t, ns.n[0].URI(), libvirt.Options{})
	vmi, f := guest("rollback"), ns.facts(t, "rollback")
	def, err := domain.Convert(vmi, f)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { destroy(t, def.Name, d) })
	if err := d.Apply(t.Context(), domain.Operation{Verb: domain.Start, Domain: def.Name, Definition: def}); err != nil {
		t.Fatal(err)
	}
	await(t, "a heartbeat", func() bool { return len(beats(serial(t, ns.n[0], f))) > 0 })

	disk := ns.plugs()[domaintest.DiskHotplug](t).(*libvirtxml.DomainDisk)
	other := *disk
	other.Alias = uaAlias("in-the-way")
	xml, err := other.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	c, err := golibvirt.NewConnect(ns.n[0].URI())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	dom, err := c.LookupDomainByName(def.Name)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = dom.Free() }()
	if err := dom.AttachDeviceFlags(xml, golibvirt.DOMAIN_DEVICE_MODIFY_CONFIG); err != nil {
		t.Fatal(err)
	}

	if err := d.Apply(t.Context(), domain.Operation{Verb: domain.AttachDevice, Domain: def.Name, Device: disk}); err == nil {
		t.Fatal("the definition took a second disk vdz")
	}
	await(t, "the end of the disk", func() bool {
		s, err := d.Get(t.Context(), def.Name)
		return err == nil && !domain.HasDevice(s.Domain, disk.Alias.Name)
	})
}
