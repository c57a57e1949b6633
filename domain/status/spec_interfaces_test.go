// SPDX-License-Identifier: Apache-2.0

package status

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/convert"
	"github.com/virtloom/virtloom/domain/guestagent"
	"github.com/virtloom/virtloom/domain/internal/domainfixture"
	"github.com/virtloom/virtloom/domain/internal/xmlspec"
)

const (
	mac1 = "02:00:00:00:00:0a"
	mac2 = "02:00:00:00:00:02"
)

// interfaceRow is the input about the interface "default", and its expected status.
type interfaceRow struct {
	edit   func(*v1.VirtualMachineInstance)
	before v1.VirtualMachineInstanceNetworkInterface
	pod    []string
	guest  *guestagent.Info
	want   v1.VirtualMachineInstanceNetworkInterface
}

// said returns the report of an agent about one interface.
func said(name, mac string, ips ...string) *guestagent.Info {
	return &guestagent.Info{Interfaces: []guestagent.Interface{{Name: name, MAC: mac, IPs: ips}}}
}

func bridged(vmi *v1.VirtualMachineInstance) {
	vmi.Spec.Domain.Devices.Interfaces[0].InterfaceBindingMethod = v1.InterfaceBindingMethod{Bridge: &v1.InterfaceBridge{}}
}

func TestInterfaces_Addresses(t *testing.T) {
	type nic = v1.VirtualMachineInstanceNetworkInterface
	same := func(*v1.VirtualMachineInstance) {}
	is := func(source, inside string, ips ...string) nic {
		n := nic{Name: "default", MAC: mac1, InfoSource: source, InterfaceName: inside, QueueCount: 1, LinkState: "up"}
		setIPs(&n, ips)
		return n
	}
	for name, tt := range map[string]interfaceRow{
		"the Pod's address alone":                          {same, nic{}, []string{"10.1.0.5"}, nil, is("domain", "", "10.1.0.5")},
		"the Pod's, both families":                         {same, nic{}, []string{"fd00::5", "10.1.0.5"}, nil, is("domain", "", "fd00::5", "10.1.0.5")},
		"nothing is known":                                 {same, nic{}, nil, nil, is("domain", "")},
		"after a migration, the new Pod's":                 {same, nic{IPs: []string{"10.1.0.5"}, IP: "10.1.0.5", InfoSource: "domain"}, []string{"10.2.0.7"}, nil, is("domain", "", "10.2.0.7")},
		"after a migration, with an agent":                 {same, nic{IPs: []string{"10.1.0.5"}, IP: "10.1.0.5", InfoSource: "domain, guest-agent"}, []string{"10.2.0.7"}, said("eth0", mac1, "10.0.2.2"), is("domain, guest-agent", "eth0", "10.2.0.7")},
		"what somebody else has written stays":             {same, nic{IPs: []string{"10.1.0.5"}, IP: "10.1.0.5"}, nil, nil, is("domain", "", "10.1.0.5")},
		"behind NAT the guest's own address does not lead": {same, nic{}, []string{"10.1.0.5"}, said("eth0", mac1, "10.0.2.2"), is("domain, guest-agent", "eth0", "10.1.0.5")},
		"behind NAT it adds the missing family":            {same, nic{}, []string{"10.1.0.5"}, said("eth0", mac1, "10.0.2.2", "2001:db8::2"), is("domain, guest-agent", "eth0", "10.1.0.5", "2001:db8::2")},
		"behind NAT no link-local address":                 {same, nic{}, []string{"10.1.0.5"}, said("eth0", mac1, "10.0.2.2", "fe80::1"), is("domain, guest-agent", "eth0", "10.1.0.5")},
		"behind NAT, the Pod's are not known":              {same, nic{IPs: []string{"10.1.0.5"}, InfoSource: "domain, guest-agent"}, nil, said("eth0", mac1, "10.0.2.2"), is("domain, guest-agent", "eth0", "10.1.0.5")},
		"else the guest's count":                           {bridged, nic{}, []string{"10.1.0.5"}, said("eth0", mac1, "192.0.2.9"), is("domain, guest-agent", "eth0", "192.0.2.9")},
		"the Pod's add the missing family":                 {bridged, nic{}, []string{"10.1.0.5"}, said("eth0", mac1, "2001:db8::2"), is("domain, guest-agent", "eth0", "10.1.0.5", "2001:db8::2")},
		"a link-local address is no family":                {bridged, nic{}, []string{"fd00::5"}, said("eth0", mac1, "192.0.2.9", "fe80::1"), is("domain, guest-agent", "eth0", "192.0.2.9", "fe80::1", "fd00::5")},
		"IPv4 comes first":                                 {bridged, nic{}, nil, said("eth0", mac1, "fe80::1", "2001:db8::2", "192.0.2.9"), is("domain, guest-agent", "eth0", "192.0.2.9", "fe80::1", "2001:db8::2")},
		"the guest has none":                               {bridged, nic{}, []string{"10.1.0.5"}, said("eth0", mac1), is("domain, guest-agent", "eth0", "10.1.0.5")},
		"the guest has lost what it had":                   {bridged, is("domain, guest-agent", "eth0", "192.0.2.9"), nil, said("eth0", mac1), is("domain, guest-agent", "eth0")},
		"the agent does not know the card":                 {bridged, is("domain, guest-agent", "eth0", "192.0.2.9"), []string{"10.1.0.5"}, said("eth9", mac2, "192.0.2.1"), is("domain", "", "10.1.0.5")},
		"the agent has not reported yet: all stays":        {bridged, is("domain, guest-agent", "eth0", "192.0.2.9"), []string{"10.1.0.5"}, nil, is("domain, guest-agent", "eth0", "192.0.2.9")},
		"letter case of the address is no difference":      {bridged, nic{}, nil, said("eth0", "02:00:00:00:00:0A", "192.0.2.9"), is("domain, guest-agent", "eth0", "192.0.2.9")},
		"a bridge in the guest has its card's address": {bridged, nic{}, nil, &guestagent.Info{Interfaces: []guestagent.Interface{
			{Name: "eth0", MAC: mac1}, {Name: "br0", MAC: mac1, IPs: []string{"192.0.2.9"}}}}, is("domain, guest-agent", "br0", "192.0.2.9")},
		"multus is kept": {same, nic{InfoSource: "multus-status", PodInterfaceName: "eth0"}, nil, said("eth0", mac1),
			func() nic {
				n := is("domain, guest-agent, multus-status", "eth0")
				n.PodInterfaceName = "eth0"
				return n
			}()},
	} {
		t.Run(name, func(t *testing.T) {
			vmi := domainfixture.Small()
			tt.edit(vmi)
			if tt.before.InfoSource != "" || tt.before.IPs != nil {
				tt.before.Name = "default"
				vmi.Status.Interfaces = []nic{tt.before}
			}
			o := Observation{
				State: &domain.State{Domain: &libvirtxml.Domain{Devices: &libvirtxml.DomainDeviceList{Interfaces: []libvirtxml.DomainInterface{liveNIC("default", mac1)}}}},
				Guest: tt.guest, Facts: convert.Facts{Links: map[string]convert.Link{"default": {IPs: tt.pod}}},
			}
			got := Interfaces(vmi, o)
			if diff := cmp.Diff(tt.want, got[0]); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			vmi.Status.Interfaces = got
			if diff := cmp.Diff(got, Interfaces(vmi, o)); diff != "" {
				t.Errorf("a second look changes (-first +second):\n%s", diff)
			}
		})
	}
}

func TestInterfaces_NotInDomain(t *testing.T) {
	type nic = v1.VirtualMachineInstanceNetworkInterface
	vmi := domainfixture.Small()
	vmi.Spec.Networks = append(vmi.Spec.Networks, v1.Network{Name: "fast", NetworkSource: v1.NetworkSource{Multus: &v1.MultusNetwork{}}})
	vmi.Spec.Domain.Devices.Interfaces = append(vmi.Spec.Domain.Devices.Interfaces,
		v1.Interface{Name: "fast", MacAddress: mac2, InterfaceBindingMethod: v1.InterfaceBindingMethod{SRIOV: &v1.InterfaceSRIOV{}}})
	vmi.Status.Interfaces = []nic{
		{Name: "coming", InfoSource: "domain, multus-status", PodInterfaceName: "pod1"},
		{Name: "default", IP: "10.1.0.5", IPs: []string{"10.1.0.5"}, PodInterfaceName: "eth0"},
		{InterfaceName: "docker0", MAC: "02:42:00:00:00:00", InfoSource: "guest-agent"},
	}
	function := libvirtxml.DomainHostdev{Alias: xmlspec.Alias("sriov-fast")}
	live := &libvirtxml.Domain{Devices: &libvirtxml.DomainDeviceList{Hostdevs: []libvirtxml.DomainHostdev{function, {Alias: xmlspec.Alias("hostdevice-gpu")}, {}}}}
	o := Observation{State: &domain.State{Domain: live}}
	want := []nic{
		{Name: "default", IP: "10.1.0.5", IPs: []string{"10.1.0.5"}, PodInterfaceName: "eth0"},
		{Name: "fast", MAC: mac2, InfoSource: "domain"},
		{Name: "coming", InfoSource: "multus-status", PodInterfaceName: "pod1"},
		{InterfaceName: "docker0", MAC: "02:42:00:00:00:00", InfoSource: "guest-agent"},
	}
	if diff := cmp.Diff(want, Interfaces(vmi, o)); diff != "" {
		t.Errorf("without word from the agent (-want +got):\n%s", diff)
	}
	o.Guest = &guestagent.Info{Interfaces: []guestagent.Interface{
		{Name: "lo", MAC: "00:00:00:00:00:00", IPs: []string{"127.0.0.1"}},
		{Name: "Loopback Pseudo-Interface 1", IPs: []string{"::1"}},
		{Name: "ens5", MAC: mac2, IPs: []string{"192.0.2.3"}},
	}}
	for i := range 12 {
		o.Guest.Interfaces = append(o.Guest.Interfaces, guestagent.Interface{Name: fmt.Sprintf("veth%d", i), MAC: fmt.Sprintf("02:42:00:00:00:%02d", i)})
	}
	got := Interfaces(vmi, o)
	if len(got) != 3+10 || got[3].InterfaceName != "veth0" || got[12].InterfaceName != "veth9" || got[12].Name != "" || got[12].InfoSource != "guest-agent" {
		t.Errorf("only the guest knows of %+v, want ten", got[3:])
	}
	if f := got[1]; f.InterfaceName != "ens5" || f.IP != "192.0.2.3" || f.InfoSource != "domain, guest-agent" {
		t.Errorf("the function is %+v", f)
	}
	vmi.Spec.Domain.Devices.Interfaces[1].MacAddress = ""
	o.Facts.Links = map[string]convert.Link{"fast": {MAC: mac1}}
	if f := Interfaces(vmi, o)[1]; f.MAC != mac1 {
		t.Errorf("the function has the address %q, want that of the Pod's link", f.MAC)
	}
}
