// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package libvirt_test

import (
	"path/filepath"
	"testing"

	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/convert"
	"github.com/virtloom/virtloom/domain/diff"
	"github.com/virtloom/virtloom/domain/libvirt"
	"github.com/virtloom/virtloom/domain/status"
)

// rich is a VMI with every kind of device that conversion supports.
func rich(t *testing.T, ns *nodes) (*v1.VirtualMachineInstance, convert.Facts) {
	t.Helper()
	vmi, f := guest("rich"), ns.facts(t, "rich")
	on, off := true, false
	boot := func(n uint) *uint { return &n }
	d := &vmi.Spec.Domain.Devices
	d.AutoattachGraphicsDevice, d.BlockMultiQueue, d.Rng = &on, &on, &v1.Rng{}
	d.Watchdog = &v1.Watchdog{Name: "dog", WatchdogDevice: v1.WatchdogDevice{I6300ESB: &v1.I6300ESBWatchdog{Action: v1.WatchdogActionReset}}}
	isa := v1.PanicDeviceModel("isa")
	d.PanicDevices = []v1.PanicDevice{{Model: &isa}}
	d.Inputs = []v1.Input{{Name: "tablet", Type: v1.InputTypeTablet, Bus: v1.InputBusUSB}}
	d.Disks = []v1.Disk{
		{Name: "virtio", Serial: "V-1", BootOrder: boot(1), DiskDevice: v1.DiskDevice{Disk: &v1.DiskTarget{Bus: v1.DiskBusVirtio}}},
		{Name: "scsi", Cache: v1.CacheWriteThrough, DiskDevice: v1.DiskDevice{Disk: &v1.DiskTarget{Bus: v1.DiskBusSCSI}}},
		{Name: "sata", IO: v1.IOThreads, DiskDevice: v1.DiskDevice{Disk: &v1.DiskTarget{Bus: v1.DiskBusSATA}}},
		{Name: "usb", DiskDevice: v1.DiskDevice{Disk: &v1.DiskTarget{Bus: v1.DiskBusUSB, ReadOnly: true}}},
		{Name: "disc", DiskDevice: v1.DiskDevice{CDRom: &v1.CDRomTarget{Bus: v1.DiskBusSATA}}},
		{Name: "empty", DiskDevice: v1.DiskDevice{CDRom: &v1.CDRomTarget{Bus: v1.DiskBusSATA}}},
	}
	for _, disk := range d.Disks[:5] {
		vmi.Spec.Volumes = append(vmi.Spec.Volumes, v1.Volume{Name: disk.Name})
		f.Disks[disk.Name] = convert.DiskSource{Path: ns.file(t, filepath.Join(f.Dir, disk.Name+".img"), 1<<20)}
	}
	d.Interfaces[0].BootOrder = boot(2)
	d.Interfaces = append(d.Interfaces, v1.Interface{
		Name: "second", MacAddress: "02-AA-00-00-00-01", State: v1.InterfaceStateLinkDown,
		InterfaceBindingMethod: v1.InterfaceBindingMethod{Bridge: &v1.InterfaceBridge{}},
	})
	vmi.Spec.Networks = append(vmi.Spec.Networks, v1.Network{Name: "second"})
	f.Bridges["second"] = "br0"
	vmi.Spec.Domain.CPU = &v1.CPU{Cores: 2, MaxSockets: 2}
	vmi.Spec.Domain.Chassis = &v1.Chassis{Asset: `<a "b"> & c`}
	vmi.Spec.Domain.Clock = &v1.Clock{
		ClockOffset: v1.ClockOffset{UTC: &v1.ClockOffsetUTC{}},
		Timer:       &v1.Timer{HPET: &v1.HPETTimer{Enabled: &off}, RTC: &v1.RTCTimer{TickPolicy: v1.RTCTickPolicyCatchup}},
	}
	// Without HPET an emulated kernel on a busy machine may find that its timer does not work, and
	// panic.
	vmi.Spec.Domain.Firmware.KernelBoot.KernelArgs += " no_timer_check"
	vmi.Spec.Domain.Features = &v1.Features{APIC: &v1.FeatureAPIC{}}
	vmi.Spec.Domain.Firmware.Serial = "serial & <number>"
	return vmi, f
}

// testReadBack applies a rich VMI, reads it back, changes it live and migrates it: after each step
// there are no differences.
func testReadBack(t *testing.T, ns *nodes) {
	here, there := open(t, ns.n[0].URI(), libvirt.Options{}), open(t, ns.n[1].URI(), libvirt.Options{})
	vmi, f := rich(t, ns)
	desired, err := convert.Convert(vmi, f)
	if err != nil {
		t.Fatal(err)
	}
	if err := diff.Stamp(desired); err != nil {
		t.Fatal(err)
	}
	name := desired.Name
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("its console:\n%s", serial(t, ns.n[0], f))
		}
		destroy(t, name, here, there)
	})
	if err := here.Apply(t.Context(), domain.Operation{Verb: domain.Start, Domain: name, Definition: desired}); err != nil {
		t.Fatal(err)
	}
	differences(t, here, vmi, f, 0)
	await(t, "a heartbeat", func() bool { return len(beats(serial(t, ns.n[0], f))) > 0 })

	vmi.Spec.Domain.Devices.Interfaces[1].State = v1.InterfaceStateLinkUp
	vmi.Spec.Domain.Devices.Disks = append(vmi.Spec.Domain.Devices.Disks,
		v1.Disk{Name: "hot", DiskDevice: v1.DiskDevice{Disk: &v1.DiskTarget{Bus: v1.DiskBusVirtio}}})
	for _, volume := range []string{"hot", "empty"} {
		vmi.Spec.Volumes = append(vmi.Spec.Volumes, v1.Volume{Name: volume})
		f.Disks[volume] = convert.DiskSource{Path: ns.file(t, filepath.Join(f.Dir, volume+".img"), 1<<20)}
	}
	for _, x := range differences(t, here, vmi, f, 3) {
		if x.Operation == nil {
			t.Fatalf("no operation for %s", x)
		}
		if err := here.Apply(t.Context(), *x.Operation); err != nil {
			t.Fatalf("%s: %v", x, err)
		}
	}
	differences(t, here, vmi, f, 0)

	state, err := here.Get(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	req := domain.MigrationRequest{
		Domain: name, DestinationURI: "qemu+tcp://" + ns.n[1].Address() + "/system",
		CopyDisks: status.CopyDisks(nil, state.Domain, f), Unsafe: true,
	}
	if err := here.Migrate(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	differences(t, there, vmi, f, 0)
}

// differences compares the domain desired by vmi with the live one.
func differences(t *testing.T, h domain.Hypervisor, vmi *v1.VirtualMachineInstance, f convert.Facts, want int) []diff.Difference {
	t.Helper()
	state, err := h.Get(t.Context(), domain.Name(vmi.Namespace, vmi.Name))
	if err != nil {
		t.Fatal(err)
	}
	f.Layout = convert.LayoutOf(state.Domain)
	desired, err := convert.Convert(vmi, f)
	if err != nil {
		t.Fatal(err)
	}
	last, err := diff.LastApplied(state.Metadata)
	if err != nil || last == nil {
		t.Fatalf("what was last applied: %v, %v", last, err)
	}
	found, err := diff.Compare(desired, last, state.Domain)
	if err != nil {
		t.Fatal(err)
	}
	if len(found) != want {
		t.Errorf("%d differences, want %d: %v", len(found), want, found)
	}
	if unknown, err := diff.Compare(desired, nil, state.Domain); err != nil || len(unknown) != want {
		t.Errorf("without what was last applied: %v, %v", unknown, err)
	}
	return found
}
