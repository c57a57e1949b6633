// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"testing"

	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/internal/domainfixture"
	"github.com/virtloom/virtloom/domain/internal/xmlspec"
)

// firstCard returns the interface of the small VMI.
func firstCard(v *v1.VirtualMachineInstance) *v1.Interface {
	return &v.Spec.Domain.Devices.Interfaces[0]
}

// card returns the XML of the first interface, with the given model, source and rest.
func card(kind, source, model, rest string) string {
	return `<interface type="` + kind + `"><mac address="02:00:00:00:00:01"/>` + source + `<model type="` + model + `"/>` + rest + `<alias name="ua-default"/></interface>`
}

const (
	tap0    = `<target dev="tap0" managed="no"/>`
	modern  = "virtio-non-transitional"
	romOff  = `<rom enabled="no"/>`
	cardXML = "spec.domain.devices.interfaces[0]"
)

func TestSpecNetworkCards(t *testing.T) {
	runDeviceRows(t, map[string]deviceRow{
		"C43: masquerade, model empty: a tap device, non-transitional, no ROM": {
			pick: pickInterfaces, want: card("ethernet", tap0, modern, romOff),
		},
		"C44: the same on s390x: model virtio, no word of a ROM": {
			arch: xmlspec.ArchS390X, pick: pickInterfaces, want: card("ethernet", tap0, "virtio", ""),
		},
		"C46: state down: the link is down": {
			change: func(v *v1.VirtualMachineInstance, _ *Facts) { firstCard(v).State = v1.InterfaceStateLinkDown },
			pick:   pickInterfaces, want: card("ethernet", tap0, modern, `<link state="down"/>`+romOff),
		},
		"C46: state absent: no interface, whether its network is there or not": {
			change: func(v *v1.VirtualMachineInstance, _ *Facts) {
				firstCard(v).State, v.Spec.Networks = v1.InterfaceStateAbsent, nil
			}, pick: pickInterfaces, want: "",
		},
		"C47: model e1000: taken as it is, no driver even with queues": {
			change: func(v *v1.VirtualMachineInstance, _ *Facts) {
				firstCard(v).Model = "e1000"
				v.Spec.Domain.Devices.NetworkInterfaceMultiQueue = new(true)
			}, pick: pickInterfaces, want: card("ethernet", tap0, "e1000", romOff),
		},
		"transitional: for guests that ask for it": {
			change: func(v *v1.VirtualMachineInstance, _ *Facts) {
				v.Spec.Domain.Devices.UseVirtioTransitional = new(true)
			}, pick: pickInterfaces, want: card("ethernet", tap0, "virtio-transitional", romOff),
		},
		"tap: MAC and MTU are those of the Pod's link": {
			change: func(v *v1.VirtualMachineInstance, f *Facts) {
				firstCard(v).MacAddress = ""
				f.Links["default"] = Link{Tap: "tap0", MAC: "02:00:00:00:00:01", MTU: 1450}
			}, pick: pickInterfaces, want: card("ethernet", tap0, modern, `<mtu size="1450"/>`+romOff),
		},
		"tap: the MAC of the spec comes before that of the link, in its usual form": {
			change: func(v *v1.VirtualMachineInstance, f *Facts) {
				firstCard(v).MacAddress = "02-00-00-00-00-01"
				f.Links["default"] = Link{Tap: "tap0", MAC: "02:00:00:00:00:99"}
			}, pick: pickInterfaces, want: card("ethernet", tap0, modern, romOff),
		},
		"bridge: a node without a tap device plugs the card into its bridge": {
			change: func(_ *v1.VirtualMachineInstance, f *Facts) { f.Links = nil },
			pick:   pickInterfaces, want: card("bridge", `<source bridge="br0"/>`, modern, romOff),
		},
		"plugin: one that makes a tap device is like any other": {
			change: func(v *v1.VirtualMachineInstance, f *Facts) {
				firstCard(v).Masquerade, firstCard(v).Binding = nil, &v1.PluginBinding{Name: "mine"}
				f.Cluster.TapBindings = []string{"mine"}
			}, pick: pickInterfaces, want: card("ethernet", tap0, modern, romOff),
		},
		"multiqueue: a queue per present CPU, not per possible one": {
			change: func(v *v1.VirtualMachineInstance, _ *Facts) {
				v.Spec.Domain.Devices.NetworkInterfaceMultiQueue = new(true)
				v.Spec.Domain.CPU = &v1.CPU{Sockets: 2, Cores: 2, MaxSockets: 8}
			}, pick: pickInterfaces, want: card("ethernet", tap0, modern, `<driver name="vhost" queues="4"/>`+romOff),
		},
		"multiqueue: no more than a tap device has": {
			change: func(v *v1.VirtualMachineInstance, _ *Facts) {
				v.Spec.Domain.Devices.NetworkInterfaceMultiQueue = new(true)
				v.Spec.Domain.CPU = &v1.CPU{Sockets: 1, Cores: 280, Threads: 1}
			}, pick: pickInterfaces, want: card("ethernet", tap0, modern, `<driver name="vhost" queues="256"/>`+romOff),
		},
		"boot order: with its ROM": {
			change: func(v *v1.VirtualMachineInstance, _ *Facts) { firstCard(v).BootOrder = new(uint(2)) },
			pick:   pickInterfaces,
			want: `<interface type="ethernet"><mac address="02:00:00:00:00:01"/><boot order="2"/>` + tap0 +
				`<model type="virtio-non-transitional"/><alias name="ua-default"/></interface>`,
		},
		"addresses: PCI and ACPI index": {
			change: func(v *v1.VirtualMachineInstance, _ *Facts) {
				firstCard(v).PciAddress, firstCard(v).ACPIIndex = "0000:0a:00.0", 101
			},
			pick: pickInterfaces,
			want: `<interface type="ethernet"><mac address="02:00:00:00:00:01"/>` + tap0 + `<model type="virtio-non-transitional"/>` + romOff +
				`<acpi index="101"/><alias name="ua-default"/><address type="pci" domain="0x0000" bus="0x0a" slot="0x00" function="0x0"/></interface>`,
		},
	})
}

func TestSpecPasst(t *testing.T) {
	passt := func(ports ...v1.Port) func(*v1.VirtualMachineInstance, *Facts) {
		return func(v *v1.VirtualMachineInstance, f *Facts) {
			firstCard(v).Masquerade, firstCard(v).PasstBinding = nil, &v1.InterfacePasstBinding{}
			firstCard(v).Ports = ports
			f.Dir = "/g"
			f.Links["default"] = Link{Passt: "eth0"}
		}
	}
	meshed := func(ports ...v1.Port) func(*v1.VirtualMachineInstance, *Facts) {
		return func(v *v1.VirtualMachineInstance, f *Facts) {
			passt(ports...)(v, f)
			v.Annotations = map[string]string{"sidecar.istio.io/inject": "True"}
		}
	}
	want := func(forward string) string {
		return card("vhostuser", `<source dev="eth0"/>`+forward, modern, `<backend type="passt" logFile="/g/passt-default.log"/>`)
	}
	const proxy = `<range start="15000" exclude="yes"/><range start="15001" exclude="yes"/><range start="15004" exclude="yes"/>` +
		`<range start="15006" exclude="yes"/><range start="15008" exclude="yes"/><range start="15009" exclude="yes"/>` +
		`<range start="15020" exclude="yes"/><range start="15021" exclude="yes"/><range start="15053" exclude="yes"/><range start="15090" exclude="yes"/>`
	const ports = cardXML + ".ports[0]"
	runDeviceRows(t, map[string]deviceRow{
		"C49: without the Pod's link it is an error": {
			change: func(v *v1.VirtualMachineInstance, f *Facts) {
				passt()(v, f)
				f.Links["default"] = Link{Tap: "tap0"}
			}, field: "spec.networks[default]", err: domain.ErrNotFound,
		},
		"C50: without ports all of TCP and UDP is forwarded": {
			change: passt(), pick: pickInterfaces, want: want(`<portForward proto="tcp"/><portForward proto="udp"/>`),
		},
		"passt: only the ports that are named, TCP by default": {
			change: passt(v1.Port{Port: 22}, v1.Port{Protocol: "udp", Port: 53}, v1.Port{Protocol: "TCP", Port: 80}), pick: pickInterfaces,
			want: want(`<portForward proto="tcp"><range start="22"/><range start="80"/></portForward><portForward proto="udp"><range start="53"/></portForward>`),
		},
		"passt: ports of one protocol leave the other closed": {
			change: passt(v1.Port{Protocol: "UDP", Port: 53}), pick: pickInterfaces,
			want: want(`<portForward proto="udp"><range start="53"/></portForward>`),
		},
		"passt: the ports of Istio's proxy stay with the proxy": {
			change: meshed(), pick: pickInterfaces, want: want(`<portForward proto="tcp">` + proxy + `</portForward><portForward proto="udp"/>`),
		},
		"passt: Istio's ports and named ones": {
			change: meshed(v1.Port{Port: 80}), pick: pickInterfaces,
			want: want(`<portForward proto="tcp">` + proxy + `<range start="80"/></portForward>`),
		},
		"passt: Istio's ports open no protocol": {
			change: meshed(v1.Port{Protocol: "UDP", Port: 53}), pick: pickInterfaces,
			want: want(`<portForward proto="udp"><range start="53"/></portForward>`),
		},
		"passt: no other protocol": {change: passt(v1.Port{Protocol: "SCTP", Port: 1}), field: ports + ".protocol", err: domain.ErrInvalid},
		"passt: port 0":            {change: passt(v1.Port{}), field: ports + ".port", err: domain.ErrInvalid},
		"passt: port too high":     {change: passt(v1.Port{Port: 65536}), field: ports + ".port", err: domain.ErrInvalid},
		"passt: ranges are for masquerade": {change: func(v *v1.VirtualMachineInstance, f *Facts) {
			passt()(v, f)
			firstCard(v).PortRanges = []v1.PortRange{{}}
		}, field: cardXML + ".portRanges", err: domain.ErrInvalid},
	})
}

func TestSpecNetworkErrors(t *testing.T) {
	bind := func(b v1.InterfaceBindingMethod) func(*v1.VirtualMachineInstance, *Facts) {
		return func(v *v1.VirtualMachineInstance, _ *Facts) { firstCard(v).InterfaceBindingMethod = b }
	}
	set := func(change func(*v1.Interface)) func(*v1.VirtualMachineInstance, *Facts) {
		return func(v *v1.VirtualMachineInstance, _ *Facts) { change(firstCard(v)) }
	}
	runDeviceRows(t, map[string]deviceRow{
		"slirp":   {change: bind(v1.InterfaceBindingMethod{DeprecatedSlirp: &v1.DeprecatedInterfaceSlirp{}}), field: cardXML + ".slirp", err: domain.ErrUnsupported},
		"macvtap": {change: bind(v1.InterfaceBindingMethod{DeprecatedMacvtap: &v1.DeprecatedInterfaceMacvtap{}}), field: cardXML + ".macvtap", err: domain.ErrUnsupported},
		"passt":   {change: bind(v1.InterfaceBindingMethod{DeprecatedPasst: &v1.DeprecatedInterfacePasst{}}), field: cardXML + ".passt", err: domain.ErrUnsupported},
		"two bindings": {
			change: bind(v1.InterfaceBindingMethod{Bridge: &v1.InterfaceBridge{}, Masquerade: &v1.InterfaceMasquerade{}}), field: cardXML, err: domain.ErrInvalid,
		},
		"a plugin without a tap device": {change: func(v *v1.VirtualMachineInstance, f *Facts) {
			firstCard(v).Masquerade, firstCard(v).Binding = nil, &v1.PluginBinding{Name: "mine"}
			f.Cluster.TapBindings, f.Links = []string{"mine"}, nil
		}, field: cardXML + ".binding", err: domain.ErrUnsupported},
		"a plugin whose sidecar is not called": {change: func(v *v1.VirtualMachineInstance, f *Facts) {
			firstCard(v).Masquerade, firstCard(v).Binding = nil, &v1.PluginBinding{Name: "mine"}
			f.Cluster.TapBindings, f.Services.Hooks = []string{"other"}, false
		}, field: cardXML + ".binding", err: domain.ErrUnsupported},
		"neither tap device nor bridge": {change: func(_ *v1.VirtualMachineInstance, f *Facts) { f.Links, f.Bridges = nil, nil }, field: "spec.networks[default]", err: domain.ErrNotFound},
		"model":                         {change: set(func(i *v1.Interface) { i.Model = "virtio-net" }), field: cardXML + ".model", err: domain.ErrInvalid},
		"negative ACPI index":           {change: set(func(i *v1.Interface) { i.ACPIIndex = -1 }), field: cardXML + ".acpiIndex", err: domain.ErrInvalid},
		"high ACPI index":               {change: set(func(i *v1.Interface) { i.ACPIIndex = 16384 }), field: cardXML + ".acpiIndex", err: domain.ErrInvalid},
		"MAC of the link": {change: func(v *v1.VirtualMachineInstance, f *Facts) {
			firstCard(v).MacAddress = ""
			f.Links["default"] = Link{Tap: "tap0", MAC: "?"}
		}, field: "spec.networks[default]", err: domain.ErrInvalid},
		"link of a virtual function": {change: func(v *v1.VirtualMachineInstance, _ *Facts) {
			firstCard(v).Masquerade, firstCard(v).SRIOV, firstCard(v).State = nil, &v1.InterfaceSRIOV{}, v1.InterfaceStateLinkDown
		}, field: cardXML + ".state", err: domain.ErrInvalid},
		"the name of a disk": {change: func(v *v1.VirtualMachineInstance, f *Facts) {
			firstCard(v).Name, v.Spec.Networks[0].Name = "root", "root"
			f.Links["root"] = Link{Tap: "tap0"}
		}, field: "spec.domain.devices.*.name", err: domain.ErrInvalid},
		"the boot order of a disk": {change: func(v *v1.VirtualMachineInstance, _ *Facts) {
			firstCard(v).BootOrder, v.Spec.Domain.Devices.Disks[0].BootOrder = new(uint(1)), new(uint(1))
		}, field: "spec.domain.devices.*.bootOrder", err: domain.ErrInvalid},
		"the boot order of a virtual function": {change: func(v *v1.VirtualMachineInstance, f *Facts) {
			firstCard(v).Masquerade, firstCard(v).SRIOV = nil, &v1.InterfaceSRIOV{}
			f.SRIOV = map[string]string{"default": "0000:65:01.0"}
			firstCard(v).BootOrder, v.Spec.Domain.Devices.Disks[0].BootOrder = new(uint(1)), new(uint(1))
		}, field: "spec.domain.devices.*.bootOrder", err: domain.ErrInvalid},
	})
}

// An interface keeps its address when others are added and removed.
func TestMAC_DependsOnNameOnly(t *testing.T) {
	vmi, f := domainfixture.Small(), domainfixture.Facts[Facts]()
	before, err := Convert(vmi, f)
	if err != nil {
		t.Fatal(err)
	}
	vmi.Spec.Domain.Devices.Interfaces = append([]v1.Interface{{
		Name: "storage", InterfaceBindingMethod: v1.InterfaceBindingMethod{Bridge: &v1.InterfaceBridge{}},
	}}, vmi.Spec.Domain.Devices.Interfaces...)
	vmi.Spec.Networks = append(vmi.Spec.Networks, v1.Network{Name: "storage", NetworkSource: v1.NetworkSource{Multus: &v1.MultusNetwork{NetworkName: "s"}}})
	after, err := Convert(vmi, f)
	if err != nil {
		t.Fatal(err)
	}
	mac := func(d *libvirtxml.Domain, i int) string { return d.Devices.Interfaces[i].MAC.Address }
	if mac(before, 0) != mac(after, 1) || mac(after, 0) == mac(after, 1) {
		t.Errorf("addresses were %s, are %s and %s", mac(before, 0), mac(after, 0), mac(after, 1))
	}
}

// The interface of a binding plugin without domainAttachmentType is added by the sidecar of the
// plugin.
func TestBindingPlugin_WithoutAttachmentType(t *testing.T) {
	v, f := domainfixture.Small(), domainfixture.Facts[Facts]()
	firstCard(v).Masquerade, firstCard(v).Binding = nil, &v1.PluginBinding{Name: "mine"}
	f.Services.Hooks, f.Links = true, map[string]Link{"default": {Tap: "tap0"}}
	for name, want := range map[string]int{"mine": 1, "other": 0} {
		f.Cluster.TapBindings = []string{name}
		d, err := Convert(v, f)
		if err != nil {
			t.Fatal(err)
		}
		if got := len(d.Devices.Interfaces); got != want {
			t.Errorf("%d interfaces while %s has a tap device, want %d", got, name, want)
		}
	}
}
