// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"fmt"
	"testing"

	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/internal/xmlspec"
)

const (
	mdev1 = "53764d0e-85a0-42b4-af5c-2046b460b1dc"
	mdev2 = "6b1e3f7a-0000-4000-8000-000000000002"

	pciHost  = `<hostdev mode="subsystem" type="pci" managed="no">`
	pciShown = `<hostdev mode="subsystem" type="pci"` + display + ` managed="no">`
	pci65    = `<source><address domain="0x0000" bus="0x65" slot="0x00" function="0x0"/></source>`
	pci66    = `<source><address domain="0x0000" bus="0x66" slot="0x00" function="0x1"/></source>`
	display  = ` display="on" ramfb="on"`
	mdevHost = `<hostdev mode="subsystem" type="mdev" model="vfio-pci"`
)

func mdevSource(uuid string) string { return `<source><address uuid="` + uuid + `"/></source>` }
func aliasXML(name string) string   { return `<alias name="ua-` + name + `"/>` }

// gpuGuest sets GPUs of one resource, and the allocated devices.
func gpuGuest(gpus []v1.GPU, devices ...HostDevice) func(*v1.VirtualMachineInstance, *Facts) {
	return func(v *v1.VirtualMachineInstance, f *Facts) {
		for i := range gpus {
			if gpus[i].ClaimRequest == nil {
				gpus[i].DeviceName = "nvidia.com/gpu"
			}
		}
		v.Spec.Domain.Devices.GPUs = gpus
		f.Devices = map[string][]HostDevice{"nvidia.com/gpu": devices}
	}
}

// deviceGuest sets host devices of one resource, and the allocated devices.
func deviceGuest(names []string, devices ...HostDevice) func(*v1.VirtualMachineInstance, *Facts) {
	return func(v *v1.VirtualMachineInstance, f *Facts) {
		for _, n := range names {
			v.Spec.Domain.Devices.HostDevices = append(v.Spec.Domain.Devices.HostDevices, v1.HostDevice{Name: n, DeviceName: "vendor.example/card"})
		}
		f.Devices = map[string][]HostDevice{"vendor.example/card": devices}
	}
}

func options(enabled, ramFB *bool) *v1.VGPUOptions {
	o := &v1.VGPUDisplayOptions{Enabled: enabled}
	if ramFB != nil {
		o.RamFB = &v1.FeatureState{Enabled: ramFB}
	}
	return &v1.VGPUOptions{Display: o}
}

func TestSpecGPUs(t *testing.T) {
	one := func(o *v1.VGPUOptions) []v1.GPU { return []v1.GPU{{Name: "one", VirtualGPUOptions: o}} }
	two := func(a, b *v1.VGPUOptions) []v1.GPU {
		return []v1.GPU{{Name: "one", VirtualGPUOptions: a}, {Name: "two", VirtualGPUOptions: b}}
	}
	mdev := HostDevice{MDev: mdev1}
	pci := HostDevice{PCI: "0000:65:00.0"}
	plain := mdevHost + `>` + mdevSource(mdev1) + aliasXML("gpu-one") + `</hostdev>`
	shown := mdevHost + display + `>` + mdevSource(mdev1) + aliasXML("gpu-one") + `</hostdev>`
	const field = "spec.domain.devices.gpus[0]"
	runDeviceRows(t, map[string]deviceRow{
		"C52: a mediated GPU is a display and has a boot framebuffer": {change: gpuGuest(one(nil), mdev), pick: pickHostdevs, want: shown},
		"C53: a PCI GPU without display options is no display": {
			change: gpuGuest(one(nil), pci), pick: pickHostdevs,
			want: pciHost + pci65 + aliasXML("gpu-one") + `</hostdev>`,
		},
		"gpu: a PCI GPU is a display if that is asked for by name": {
			change: gpuGuest(one(options(new(true), nil)), pci), pick: pickHostdevs,
			want: pciShown + pci65 + aliasXML("gpu-one") + `</hostdev>`,
		},
		"gpu: a PCI GPU is none by options that leave it open": {
			change: gpuGuest(one(options(nil, nil)), pci), pick: pickHostdevs, want: pciHost + pci65 + aliasXML("gpu-one") + `</hostdev>`,
		},
		"gpu: a mediated GPU is a display by options that leave it open": {change: gpuGuest(one(options(nil, nil)), mdev), pick: pickHostdevs, want: shown},
		"gpu: the display can be disabled":                               {change: gpuGuest(one(options(new(false), nil)), mdev), pick: pickHostdevs, want: plain},
		"gpu: the framebuffer can be disabled": {
			change: gpuGuest(one(options(new(true), new(false))), mdev), pick: pickHostdevs,
			want: mdevHost + ` display="on">` + mdevSource(mdev1) + aliasXML("gpu-one") + `</hostdev>`,
		},
		"gpu: only the first mediated one is a display by default, and the order is the spec's": {
			change: gpuGuest(append(two(nil, nil), v1.GPU{Name: "three"}), pci, mdev, HostDevice{MDev: mdev2}), pick: pickHostdevs,
			want: pciHost + pci65 + aliasXML("gpu-one") + `</hostdev>` +
				mdevHost + display + `>` + mdevSource(mdev1) + aliasXML("gpu-two") + `</hostdev>` +
				mdevHost + `>` + mdevSource(mdev2) + aliasXML("gpu-three") + `</hostdev>`,
		},
		"gpu: options of one leave the others without a display": {
			change: gpuGuest(two(nil, options(new(true), nil)), mdev, HostDevice{MDev: mdev2}), pick: pickHostdevs,
			want: plain + mdevHost + display + `>` + mdevSource(mdev2) + aliasXML("gpu-two") + `</hostdev>`,
		},
		"gpu: no display in a guest without graphics": {
			change: func(v *v1.VirtualMachineInstance, f *Facts) {
				gpuGuest(one(nil), mdev)(v, f)
				v.Spec.Domain.Devices.AutoattachGraphicsDevice = new(false)
			}, pick: pickHostdevs, want: plain,
		},
		"gpu: by the claim of a resource": {
			change: func(v *v1.VirtualMachineInstance, f *Facts) {
				v.Spec.Domain.Devices.GPUs = []v1.GPU{{Name: "one", ClaimRequest: &v1.ClaimRequest{ClaimName: "mine", RequestName: "gpu"}}}
				f.Devices = map[string][]HostDevice{"mine/gpu": {mdev}}
			}, pick: pickHostdevs, want: shown,
		},
		"gpu: two framebuffers": {
			change: gpuGuest(two(options(nil, nil), options(nil, nil)), mdev, HostDevice{MDev: mdev2}),
			field:  "spec.domain.devices.gpus[1].virtualGPUOptions.display.ramFB", err: domain.ErrInvalid,
		},
		"gpu: a display without graphics": {
			change: func(v *v1.VirtualMachineInstance, f *Facts) {
				gpuGuest(one(options(new(true), nil)), mdev)(v, f)
				v.Spec.Domain.Devices.AutoattachGraphicsDevice = new(false)
			}, field: field + ".virtualGPUOptions.display", err: domain.ErrInvalid,
		},
		"gpu: a USB device is none": {change: gpuGuest(one(nil), HostDevice{USB: "3:7"}), field: field, err: domain.ErrInvalid},
		"gpu: none handed out":      {change: gpuGuest(one(nil)), field: field, err: domain.ErrNotFound},
		"gpu: too few handed out":   {change: gpuGuest(two(nil, nil), pci), field: "spec.domain.devices.gpus[1]", err: domain.ErrNotFound},
		"gpu: too many handed out":  {change: gpuGuest(one(nil), pci, mdev), field: field, err: domain.ErrInvalid},
		"gpu: names no device": {change: func(v *v1.VirtualMachineInstance, _ *Facts) {
			v.Spec.Domain.Devices.GPUs = []v1.GPU{{Name: "one"}}
		}, field: field, err: domain.ErrInvalid},
	})
}

// usbHost begins a USB device.
func usbHost(bus, device int) string {
	return fmt.Sprintf(`<hostdev mode="subsystem" type="usb"><source><address bus="%d" device="%d"/></source>`, bus, device)
}

func TestSpecHostDevices(t *testing.T) {
	const field = "spec.domain.devices.hostDevices[0]"
	one := []string{"card"}
	runDeviceRows(t, map[string]deviceRow{
		"C55: USB device 3:7": {
			change: deviceGuest(one, HostDevice{USB: "3:7"}), pick: both(pickHostdevs, pickController("usb")),
			want: `<controller type="usb" index="0" model="qemu-xhci"/>` +
				`<hostdev mode="subsystem" type="usb"><source><address bus="3" device="7"/></source>` + aliasXML("usb-host-card") + `</hostdev>`,
		},
		"host devices: USB devices that are given together": {
			change: deviceGuest([]string{"b", "a"}, HostDevice{USB: "1:1"}, HostDevice{USB: "2:2"}, HostDevice{USB: "1:3"}, HostDevice{USB: "2:4"}), pick: pickHostdevs,
			want: usbHost(1, 1) + aliasXML("usb-host-b") + `</hostdev>` + usbHost(2, 2) + aliasXML("usb-host-b-1") + `</hostdev>` +
				usbHost(1, 3) + aliasXML("usb-host-a") + `</hostdev>` + usbHost(2, 4) + aliasXML("usb-host-a-1") + `</hostdev>`,
		},
		"host devices: PCI and mediated, in the order in which they were handed out": {
			change: deviceGuest([]string{"b", "a"}, HostDevice{PCI: "0000:65:00.0"}, HostDevice{MDev: mdev1}), pick: pickHostdevs,
			want: pciHost + pci65 + aliasXML("hostdevice-b") + `</hostdev>` + mdevHost + `>` + mdevSource(mdev1) + aliasXML("hostdevice-a") + `</hostdev>`,
		},
		"host devices: one resource serves devices and GPUs": {
			change: func(v *v1.VirtualMachineInstance, f *Facts) {
				deviceGuest(one, HostDevice{PCI: "0000:65:00.0"}, HostDevice{PCI: "0000:66:00.1"})(v, f)
				v.Spec.Domain.Devices.GPUs = []v1.GPU{{Name: "g", DeviceName: "vendor.example/card"}}
			}, pick: pickHostdevs,
			want: pciHost + pci65 + aliasXML("hostdevice-card") + `</hostdev>` + pciHost + pci66 + aliasXML("gpu-g") + `</hostdev>`,
		},
		"host devices: a claim's mediated device is cryptographic on s390x": {
			arch: xmlspec.ArchS390X,
			change: func(v *v1.VirtualMachineInstance, f *Facts) {
				v.Spec.Domain.Devices.HostDevices = []v1.HostDevice{{Name: "card", ClaimRequest: &v1.ClaimRequest{ClaimName: "c", RequestName: "r"}}}
				f.Devices = map[string][]HostDevice{"c/r": {{MDev: mdev1}}}
			}, pick: pickHostdevs,
			want: `<hostdev mode="subsystem" type="mdev" model="vfio-ap">` + mdevSource(mdev1) + aliasXML("hostdevice-card") + `</hostdev>`,
		},
		"host devices: none handed out":       {change: deviceGuest(one), field: field, err: domain.ErrNotFound},
		"host devices: too many handed out":   {change: deviceGuest(one, HostDevice{PCI: "0000:65:00.0"}, HostDevice{PCI: "0000:66:00.1"}), field: field, err: domain.ErrInvalid},
		"host devices: USB, not as many each": {change: deviceGuest([]string{"a", "b"}, HostDevice{USB: "1:1"}, HostDevice{USB: "1:2"}, HostDevice{USB: "1:3"}), field: field, err: domain.ErrInvalid},
		"host devices: a name of two, together": {change: deviceGuest([]string{"a", "a-1"}, HostDevice{USB: "1:1"}, HostDevice{USB: "1:2"}, HostDevice{USB: "1:3"}, HostDevice{USB: "1:4"}),
			field: "spec.domain.devices.*.name", err: domain.ErrInvalid},
		"host devices: no address":             {change: deviceGuest(one, HostDevice{}), field: field, err: domain.ErrInvalid},
		"host devices: two addresses":          {change: deviceGuest(one, HostDevice{USB: "1:1", MDev: mdev1}), field: field, err: domain.ErrInvalid},
		"host devices: no PCI address":         {change: deviceGuest(one, HostDevice{PCI: "65:00.0"}), field: field, err: domain.ErrInvalid},
		"host devices: no UUID":                {change: deviceGuest(one, HostDevice{MDev: "7"}), field: field, err: domain.ErrInvalid},
		"host devices: no USB address":         {change: deviceGuest(one, HostDevice{USB: "3"}), field: field, err: domain.ErrInvalid},
		"host devices: USB with a third part":  {change: deviceGuest(one, HostDevice{USB: "3:7:1"}), field: field, err: domain.ErrInvalid},
		"host devices: USB without a number":   {change: deviceGuest(one, HostDevice{USB: "3:-7"}), field: field, err: domain.ErrInvalid},
		"host devices: USB on s390x":           {arch: xmlspec.ArchS390X, change: deviceGuest(one, HostDevice{USB: "3:7"}), field: field, err: domain.ErrInvalid},
		"host devices: a name libvirt refuses": {change: deviceGuest([]string{"a.b"}, HostDevice{USB: "3:7"}), field: field + ".name", err: domain.ErrInvalid},
		"host devices: a name twice": {change: deviceGuest([]string{"a", "a"}, HostDevice{USB: "3:7"}, HostDevice{USB: "3:8"}),
			field: "spec.domain.devices.*.name", err: domain.ErrInvalid},
	})
}

func TestSpecVirtualFunctions(t *testing.T) {
	function := func(v *v1.VirtualMachineInstance, f *Facts) {
		firstCard(v).Masquerade, firstCard(v).SRIOV = nil, &v1.InterfaceSRIOV{}
		f.SRIOV = map[string]string{"default": "0000:65:00.0"}
	}
	everything := both(pickInterfaces, pickHostdevs)
	runDeviceRows(t, map[string]deviceRow{
		"sriov: a device of the host instead of an interface": {
			change: function, pick: everything, want: pciHost + pci65 + aliasXML("sriov-default") + `</hostdev>`,
		},
		"sriov: with address, boot order and ACPI index": {
			change: func(v *v1.VirtualMachineInstance, f *Facts) {
				function(v, f)
				firstCard(v).PciAddress, firstCard(v).BootOrder, firstCard(v).ACPIIndex = "0000:05:00.0", new(uint(1)), 3
			}, pick: everything,
			want: pciHost + pci65 + `<boot order="1"/><acpi index="3"/>` + aliasXML("sriov-default") +
				`<address type="pci" domain="0x0000" bus="0x05" slot="0x00" function="0x0"/></hostdev>`,
		},
		"sriov: not while it is absent": {
			change: func(v *v1.VirtualMachineInstance, f *Facts) {
				function(v, f)
				firstCard(v).State, f.SRIOV = v1.InterfaceStateAbsent, nil
			}, pick: everything, want: "",
		},
		"sriov: no function handed out": {change: func(v *v1.VirtualMachineInstance, f *Facts) {
			function(v, f)
			f.SRIOV = nil
		}, field: "spec.networks[default]", err: domain.ErrNotFound},
		"sriov: no address": {change: func(v *v1.VirtualMachineInstance, f *Facts) {
			function(v, f)
			f.SRIOV["default"] = "eth1"
		}, field: "spec.networks[default]", err: domain.ErrInvalid},
		"sriov: no place in the guest": {change: func(v *v1.VirtualMachineInstance, f *Facts) {
			function(v, f)
			firstCard(v).PciAddress = "5"
		}, field: cardXML + ".pciAddress", err: domain.ErrInvalid},
	})
}

func TestHostDevices_MigrationTarget(t *testing.T) {
	all := func(v *v1.VirtualMachineInstance, f *Facts) {
		firstCard(v).Masquerade, firstCard(v).SRIOV = nil, &v1.InterfaceSRIOV{}
		v.Spec.Domain.Devices.HostDevices = []v1.HostDevice{{Name: "card", DeviceName: "vendor.example/card"}}
		f.Incoming = true
	}
	gpu := func(devices ...HostDevice) func(*v1.VirtualMachineInstance, *Facts) {
		return func(v *v1.VirtualMachineInstance, f *Facts) {
			all(v, f)
			for i := range devices {
				v.Spec.Domain.Devices.GPUs = append(v.Spec.Domain.Devices.GPUs, v1.GPU{Name: string(rune('a' + i)), DeviceName: "nvidia.com/gpu"})
			}
			f.Devices = map[string][]HostDevice{"nvidia.com/gpu": devices}
			f.Cluster.MigratableVGPU = true
		}
	}
	kept := mdevHost + display + `>` + mdevSource(mdev1) + aliasXML("gpu-a") + `</hostdev>`
	runDeviceRows(t, map[string]deviceRow{
		"incoming: without functions, devices and GPUs, whether the node has them or not": {change: all, pick: pickHostdevs, want: ""},
		"incoming: one mediated GPU comes along where the cluster says so":                {change: gpu(HostDevice{MDev: mdev1}), pick: pickHostdevs, want: kept},
		"incoming: not where the cluster does not say so": {change: func(v *v1.VirtualMachineInstance, f *Facts) {
			gpu(HostDevice{MDev: mdev1})(v, f)
			f.Cluster.MigratableVGPU = false
		}, pick: pickHostdevs, want: ""},
		"incoming: not of two": {change: gpu(HostDevice{MDev: mdev1}, HostDevice{MDev: mdev2}), pick: pickHostdevs, want: ""},
		"incoming: not by PCI": {change: gpu(HostDevice{PCI: "0000:65:00.0"}), pick: pickHostdevs, want: ""},
		"incoming: the GPU is missing": {change: func(v *v1.VirtualMachineInstance, f *Facts) {
			gpu(HostDevice{MDev: mdev1})(v, f)
			f.Devices = nil
		}, field: "spec.domain.devices.gpus[0]", err: domain.ErrNotFound},
	})
}
