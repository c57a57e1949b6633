// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/internal/domainfixture"
	"github.com/virtloom/virtloom/domain/internal/xmlspec"
)

func TestLayout_XMLRoundTrip(t *testing.T) {
	for name, change := range map[string]func(*v1.VirtualMachineInstance, *Facts){
		"ports": func(*v1.VirtualMachineInstance, *Facts) {},
		"bridge": func(v *v1.VirtualMachineInstance, _ *Facts) {
			v.Spec.Domain.Devices.UseVirtioTransitional = new(true)
		},
		"channels": func(_ *v1.VirtualMachineInstance, f *Facts) { f.Arch = xmlspec.ArchS390X },
	} {
		t.Run(name, func(t *testing.T) {
			vmi, f := domainfixture.Small(), domainfixture.Facts[Facts]()
			change(vmi, &f)
			d, err := Convert(vmi, f)
			if err != nil {
				t.Fatal(err)
			}
			again := &libvirtxml.Domain{}
			if err := again.Unmarshal(domainfixture.Marshal(t, d)); err != nil {
				t.Fatal(err)
			}
			l := LayoutOf(again)
			if diff := cmp.Diff(LayoutOf(d), l); diff != "" {
				t.Errorf("layout (-before +after the XML):\n%s", diff)
			}
			f.Layout = l
			same, err := Convert(vmi, f)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(domainfixture.Marshal(t, d), domainfixture.Marshal(t, same)); diff != "" {
				t.Errorf("converted with its own layout (-before +after):\n%s", diff)
			}
		})
	}
	if l := LayoutOf(nil); l.Places != nil || l.ports() != 0 {
		t.Errorf("layout of nil: %+v", l)
	}
}

// TestLayout_StableWhileRunning makes random changes to running guests, one after the other.
func TestLayout_StableWhileRunning(t *testing.T) {
	starts := map[string]func(*v1.VirtualMachineInstance, *Facts){
		"q35":          func(*v1.VirtualMachineInstance, *Facts) {},
		"transitional": func(v *v1.VirtualMachineInstance, _ *Facts) { v.Spec.Domain.Devices.UseVirtioTransitional = new(true) },
		"pc":           func(v *v1.VirtualMachineInstance, _ *Facts) { v.Spec.Domain.Machine = &v1.Machine{Type: "pc"} },
		"arm64":        func(v *v1.VirtualMachineInstance, f *Facts) { v.Spec.Architecture, f.Arch = "arm64", xmlspec.ArchARM },
		"s390x":        func(v *v1.VirtualMachineInstance, f *Facts) { v.Spec.Architecture, f.Arch = "s390x", xmlspec.ArchS390X },
	}
	for name, start := range starts {
		t.Run(name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(1, 2))
			for guest := range 4 {
				vmi, f := domainfixture.Small(), domainfixture.Facts[Facts]()
				withCards(vmi, &f, 1+guest%4)
				withDisks(vmi, &f, guest%3)
				start(vmi, &f)
				live, err := Convert(vmi, f)
				if err != nil {
					t.Fatal(err)
				}
				f.Layout = LayoutOf(live)
				for step := range 40 {
					before := vmi.DeepCopy()
					changeAtRandom(r, vmi, &f, step)
					next, err := Convert(vmi, f)
					if err != nil {
						wantError(t, err, fmt.Sprintf("%sdisks[hot%d]", specDevices, step), domain.ErrInvalid)
						vmi = before
						continue
					}
					checkAddresses(t, next)
					checkKept(t, f.Layout, next)
					f.Layout = LayoutOf(next)
				}
			}
		})
	}
}

// changeAtRandom adds or removes a device, at the beginning or the end.
func changeAtRandom(r *rand.Rand, v *v1.VirtualMachineInstance, f *Facts, step int) {
	d := &v.Spec.Domain.Devices
	switch n := r.IntN(5); {
	case n == 0 && len(d.Disks) > 0:
		d.Disks = slices.Delete(d.Disks, 0, 1)
	case n == 1 && len(d.Interfaces) > 1:
		d.Interfaces = slices.Delete(d.Interfaces, 0, 1)
	case n == 2:
		slices.Reverse(d.Disks)
		slices.Reverse(d.Interfaces)
	default:
		plugDisk(v, f, fmt.Sprintf("hot%d", step), v1.DiskBusVirtio)
		d.Disks = append(d.Disks[len(d.Disks)-1:], d.Disks[:len(d.Disks)-1]...)
	}
}

// checkKept checks that existing devices keep their places, and that no port was added or removed.
func checkKept(t *testing.T, before Layout, d *libvirtxml.Domain) {
	t.Helper()
	after := LayoutOf(d)
	for key, p := range after.Places {
		if was, ok := before.Places[key]; ok && was != p {
			t.Fatalf("%s has moved from %+v to %+v", key, was, p)
		}
	}
	if diff := cmp.Diff(before.Buses, after.Buses); diff != "" {
		t.Fatalf("buses have changed:\n%s", diff)
	}
}

func TestLayout_OutOfPorts(t *testing.T) {
	vmi, f := domainfixture.Small(), domainfixture.Facts[Facts]()
	live, err := Convert(vmi, f)
	if err != nil {
		t.Fatal(err)
	}
	f.Layout = LayoutOf(live)
	hot := func(n int) *v1.VirtualMachineInstance {
		v := vmi.DeepCopy()
		for i := range n {
			plugDisk(v, &f, fmt.Sprintf("hot%d", i), v1.DiskBusVirtio)
		}
		return v
	}
	if d, err := Convert(hot(3), f); err != nil || countPorts(d) != 8 {
		t.Fatalf("three disks do not fit into three ports: %v", err)
	}
	_, err = Convert(hot(4), f)
	wantError(t, err, specDevices+"disks[hot3]", domain.ErrInvalid)

	// A removed disk frees its place for a new one.
	v := hot(4)
	v.Spec.Domain.Devices.Disks = v.Spec.Domain.Devices.Disks[1:]
	d, err := Convert(v, f)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := LayoutOf(d).Places["ua-hot3"], f.Layout.Places["ua-root"]; got != want {
		t.Errorf("the fourth disk is at %+v, want the place of root, %+v", got, want)
	}

	// Devices that are not in the spec keep their places, and so does memory.
	for _, key := range []string{"ua-virtio-mem-0", "rng0"} {
		f.Layout = LayoutOf(live)
		f.Layout.Places[key] = Place{Bus: 2}
		_, err = Convert(hot(3), f)
		wantError(t, err, specDevices+"disks[hot2]", domain.ErrInvalid)
	}

	// A device that needs a restart anyway is converted without an address.
	f.Layout = LayoutOf(live)
	v = hot(3)
	v.Spec.Domain.Devices.Rng = &v1.Rng{}
	v.Spec.Domain.Devices.Disks[0].Disk.Bus = v1.DiskBusVirtio
	full, err := Convert(hot(3), f)
	if err != nil {
		t.Fatal(err)
	}
	f.Layout = LayoutOf(full)
	d, err = Convert(v, f)
	if err != nil || d.Devices.RNGs[0].Address != nil {
		t.Errorf("random numbers without a free port: %v", err)
	}
}

func TestLayout_RootComplexHasNoHotplug(t *testing.T) {
	vmi, f := domainfixture.Small(), domainfixture.Facts[Facts]()
	annotate(vmi, v1.PlacePCIDevicesOnRootComplex, "true")
	live, err := Convert(vmi, f)
	if err != nil {
		t.Fatal(err)
	}
	f.Layout = LayoutOf(live)
	plugDisk(vmi, &f, "hot", v1.DiskBusVirtio)
	_, err = Convert(vmi, f)
	wantError(t, err, specDevices+"disks[hot]", domain.ErrInvalid)
}

func TestLayout_SpecAddresses(t *testing.T) {
	vmi, f := domainfixture.Small(), domainfixture.Facts[Facts]()
	live, err := Convert(vmi, f)
	if err != nil {
		t.Fatal(err)
	}
	f.Layout = LayoutOf(live)

	// The address of the spec wins; the previous one stays reserved until the restart.
	moved := vmi.DeepCopy()
	moved.Spec.Domain.Devices.Disks[0].Disk.PciAddress = "0000:02:00.0"
	for i := range 2 {
		plugDisk(moved, &f, fmt.Sprintf("hot%d", i), v1.DiskBusVirtio)
	}
	d, err := Convert(moved, f)
	if err != nil {
		t.Fatal(err)
	}
	if got := LayoutOf(d).Places["ua-root"]; got != (Place{Bus: 2}) {
		t.Errorf("root is at %+v", got)
	}
	checkAddresses(t, d)
	for key, p := range LayoutOf(d).Places {
		if p == f.Layout.Places["ua-root"] {
			t.Errorf("%s has the current place of root", key)
		}
	}

	// No other device can have it.
	moved.Spec.Domain.Devices.Disks[0].Disk.PciAddress = "0000:08:00.0"
	_, err = Convert(moved, f)
	wantError(t, err, specDevices+"balloon", domain.ErrInvalid)

	// A disk with a changed bus keeps its port until the restart.
	other := vmi.DeepCopy()
	other.Spec.Domain.Devices.Disks[0].Disk.Bus = v1.DiskBusSATA
	for i := range 4 {
		plugDisk(other, &f, fmt.Sprintf("hot%d", i), v1.DiskBusVirtio)
	}
	_, err = Convert(other, f)
	wantError(t, err, specDevices+"disks[hot3]", domain.ErrInvalid)
}

// TestConvert_SharesNoMemoryWithFacts: the domain shares nothing with the layout.
func TestConvert_SharesNoMemoryWithFacts(t *testing.T) {
	vmi, f := domainfixture.Small(), domainfixture.Facts[Facts]()
	live, err := Convert(vmi, f)
	if err != nil {
		t.Fatal(err)
	}
	f.Layout = LayoutOf(live)
	f.Layout.Buses[1].NUMANode, f.Layout.Buses[1].Number = new(uint(1)), new(uint(200))
	d, err := Convert(vmi, f)
	if err != nil {
		t.Fatal(err)
	}
	for i := range d.Devices.Controllers {
		if c := &d.Devices.Controllers[i]; c.PCI != nil && c.PCI.Target != nil && c.PCI.Target.NUMANode != nil {
			*c.PCI.Target.NUMANode, *c.PCI.Target.BusNr = 9, 9
		}
	}
	if *f.Layout.Buses[1].NUMANode != 1 || *f.Layout.Buses[1].Number != 200 {
		t.Error("the domain shares memory with the facts")
	}
}
