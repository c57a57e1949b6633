// SPDX-License-Identifier: Apache-2.0

package vmi_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/vmi"
)

const (
	networkStatus = "k8s.v1.cni.cncf.io/network-status"
	networkAsked  = "k8s.v1.cni.cncf.io/networks"
	hashedRed     = "podb1f51a511f1" // of the network red
	hashedBlue    = "pod16477688c0e" // of the network blue
)

type nic = v1.VirtualMachineInstanceNetworkInterface

func networks(all ...v1.Network) func(*v1.VirtualMachineInstance) {
	return func(g *v1.VirtualMachineInstance) { g.Spec.Networks = all }
}

func interfaces(all ...nic) func(*v1.VirtualMachineInstance) {
	return func(g *v1.VirtualMachineInstance) { g.Status.Interfaces = all }
}

func podNetwork(name string) v1.Network {
	return v1.Network{Name: name, NetworkSource: v1.NetworkSource{Pod: &v1.PodNetwork{}}}
}

func multus(name, nad string) v1.Network {
	return v1.Network{Name: name, NetworkSource: v1.NetworkSource{Multus: &v1.MultusNetwork{NetworkName: nad}}}
}

func multusDefault(name, nad string) v1.Network {
	n := multus(name, nad)
	n.Multus.Default = true
	return n
}

func claimed(name string) v1.Network {
	return v1.Network{Name: name, NetworkSource: v1.NetworkSource{ResourceClaim: &v1.ClaimRequest{ClaimName: "c", RequestName: "r"}}}
}

func annotated(key, value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		if p.Annotations == nil {
			p.Annotations = map[string]string{}
		}
		p.Annotations[key] = value
	}
}

// attachedTo sets the report of multus about secondary interfaces.
func attachedTo(names ...string) func(*corev1.Pod) {
	text := `[{"name":"k8s-pod-network","default":true}`
	for _, n := range names {
		text += `,{"name":"ns/nad","interface":"` + n + `","mac":"02:00:00:00:00:09"}`
	}
	return annotated(networkStatus, text+"]")
}

func TestInterfaces(t *testing.T) {
	agent := nic{InterfaceName: "docker0", MAC: "02:00:00:00:00:05", InfoSource: "guest-agent", IP: "172.17.0.1", IPs: []string{"172.17.0.1"}}
	full := nic{Name: "default", PodInterfaceName: "eth0", IP: "10.0.0.7", IPs: []string{"10.0.0.7", "fd00::7"}, MAC: "02:00:00:00:00:01",
		InterfaceName: "enp1s0", InfoSource: "domain, guest-agent", QueueCount: 4, LinkState: "up"}
	red := nic{Name: "red", PodInterfaceName: hashedRed, IP: "10.1.0.7", IPs: []string{"10.1.0.7"}, MAC: "02:00:00:00:00:02",
		InfoSource: "domain, guest-agent, multus-status", QueueCount: 1, LinkState: "down"}
	dra := nic{Name: "dra", InfoSource: "domain", MAC: "02:00:00:00:00:03"}
	with := func(n nic, change func(*nic)) nic {
		c := *n.DeepCopy()
		change(&c)
		return c
	}
	both := networks(podNetwork("default"), multus("red", "nad"))

	for name, tt := range map[string]struct {
		guest []func(*v1.VirtualMachineInstance)
		pod   *corev1.Pod
		want  []nic
		err   string
	}{
		"41 no networks, no entries": {pod: pod("p")},
		"41 the first entries are the spec's, in its order": {
			guest: []func(*v1.VirtualMachineInstance){networks(multus("red", "nad"), podNetwork("default"), multus("blue", "nad"))},
			pod:   pod("p", attachedTo(hashedRed, hashedBlue)),
			want: []nic{{Name: "default", PodInterfaceName: "eth0"},
				{Name: "red", PodInterfaceName: hashedRed, InfoSource: "multus-status"},
				{Name: "blue", PodInterfaceName: hashedBlue, InfoSource: "multus-status"}},
		},
		"41 the default network's interface is called as multus says": {
			guest: []func(*v1.VirtualMachineInstance){networks(podNetwork("default"))},
			pod:   pod("p", annotated(networkStatus, `[{"interface":"eth0","default":false},{"interface":"ovn-udn1","default":true}]`)),
			want:  []nic{{Name: "default", PodInterfaceName: "ovn-udn1"}},
		},
		"41 a multus network can be the default one": {
			guest: []func(*v1.VirtualMachineInstance){networks(multusDefault("other", "nad"))},
			pod:   pod("p"), want: []nic{{Name: "other", PodInterfaceName: "eth0"}},
		},
		"41 numbered names stay in Pods that have them": {
			guest: []func(*v1.VirtualMachineInstance){networks(podNetwork("default"), multus("red", "nad"), multus("blue", "nad"))},
			pod:   pod("p", attachedTo("net1", "net2")),
			want: []nic{{Name: "default", PodInterfaceName: "eth0"},
				{Name: "red", PodInterfaceName: "net1", InfoSource: "multus-status"},
				{Name: "blue", PodInterfaceName: "net2", InfoSource: "multus-status"}},
		},
		"41 a network the Pod is not attached to yet has no entry": {
			guest: []func(*v1.VirtualMachineInstance){both}, pod: pod("p", attachedTo()),
			want: []nic{{Name: "default", PodInterfaceName: "eth0"}},
		},
		"what the node wrote stays": {
			guest: []func(*v1.VirtualMachineInstance){both, interfaces(full, red, agent)},
			pod:   pod("p", attachedTo(hashedRed)), want: []nic{full, red, agent},
		},
		"the node's order stays": {
			guest: []func(*v1.VirtualMachineInstance){both, interfaces(red, full, agent)},
			pod:   pod("p", attachedTo(hashedRed)), want: []nic{red, full, agent},
		},
		"an interface that was attached becomes multus' too": {
			guest: []func(*v1.VirtualMachineInstance){both, interfaces(full, with(red, func(n *nic) { n.InfoSource, n.PodInterfaceName = "domain", "" }))},
			pod:   pod("p", attachedTo(hashedRed)),
			want:  []nic{full, with(red, func(n *nic) { n.InfoSource = "domain, multus-status" })},
		},
		"an interface that was detached is multus' no more, and its entry the node's to remove": {
			guest: []func(*v1.VirtualMachineInstance){both, interfaces(full, red)}, pod: pod("p", attachedTo()),
			want: []nic{full, with(red, func(n *nic) { n.InfoSource = "domain, guest-agent" })},
		},
		"an entry that only multus was the source of has none left": {
			guest: []func(*v1.VirtualMachineInstance){both, interfaces(full, nic{Name: "red", PodInterfaceName: hashedRed, InfoSource: "multus-status"})},
			pod:   pod("p", attachedTo()), want: []nic{full, {Name: "red", PodInterfaceName: hashedRed}},
		},
		"a plugged interface comes behind those of the spec": {
			guest: []func(*v1.VirtualMachineInstance){both, interfaces(full, agent)}, pod: pod("p", attachedTo(hashedRed)),
			want: []nic{full, {Name: "red", PodInterfaceName: hashedRed, InfoSource: "multus-status"}, agent},
		},
		"the missing default network comes first": {
			guest: []func(*v1.VirtualMachineInstance){both, interfaces(red, agent)}, pod: pod("p", attachedTo(hashedRed)),
			want: []nic{{Name: "default", PodInterfaceName: "eth0"}, red, agent},
		},
		"entries of claimed networks and of none stay": {
			guest: []func(*v1.VirtualMachineInstance){networks(podNetwork("default"), claimed("dra")), interfaces(full, dra, agent, nic{Name: "gone", InfoSource: "domain"})},
			pod:   pod("p"), want: []nic{full, dra, agent, {Name: "gone", InfoSource: "domain"}},
		},
		"without a Pod all stays": {
			guest: []func(*v1.VirtualMachineInstance){both, interfaces(red)}, want: []nic{red},
		},
		"what multus cannot have written is an error": {
			guest: []func(*v1.VirtualMachineInstance){both, interfaces(full, red)},
			pod:   pod("p", annotated(networkStatus, "{")), err: "Pod ns/p: annotation k8s.v1.cni.cncf.io/network-status",
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := guest(v1.Running, tt.guest...)
			before := g.DeepCopy()
			got, err := vmi.Interfaces(g, tt.pod)
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) || got != nil {
					t.Fatalf("got %v, %v, want an error about %q", got, err, tt.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff(before, g); diff != "" {
				t.Errorf("the guest was modified: %s", diff)
			}
			g.Status.Interfaces = got
			if again, _ := vmi.Interfaces(g, tt.pod); !cmp.Equal(got, again) {
				t.Errorf("is not stable: %s", cmp.Diff(got, again))
			}
		})
	}
}

func TestDiscontinuedBindings(t *testing.T) {
	for name, tt := range map[string]struct {
		method v1.InterfaceBindingMethod
		want   string
	}{
		"5 slirp":         {v1.InterfaceBindingMethod{DeprecatedSlirp: &v1.DeprecatedInterfaceSlirp{}}, "spec.domain.devices.interfaces[1].slirp"},
		"5 macvtap":       {v1.InterfaceBindingMethod{DeprecatedMacvtap: &v1.DeprecatedInterfaceMacvtap{}}, "spec.domain.devices.interfaces[1].macvtap"},
		"5 passt":         {v1.InterfaceBindingMethod{DeprecatedPasst: &v1.DeprecatedInterfacePasst{}}, "spec.domain.devices.interfaces[1].passt"},
		"5 bridge":        {v1.InterfaceBindingMethod{Bridge: &v1.InterfaceBridge{}}, ""},
		"5 the new passt": {v1.InterfaceBindingMethod{PasstBinding: &v1.InterfacePasstBinding{}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			g := guest(v1.Pending)
			g.Spec.Domain.Devices.Interfaces = []v1.Interface{
				{Name: "default", InterfaceBindingMethod: v1.InterfaceBindingMethod{Masquerade: &v1.InterfaceMasquerade{}}},
				{Name: "red", InterfaceBindingMethod: tt.method},
			}
			var validate vmi.SpecValidator = vmi.DiscontinuedBindings
			causes := validate(g)
			if tt.want == "" {
				if len(causes) > 0 {
					t.Fatalf("refused: %v", causes)
				}
				return
			}
			if len(causes) != 1 || causes[0].Field != tt.want || !strings.Contains(causes[0].Message, "use ") {
				t.Fatalf("got %v, want one cause at %s with a remedy", causes, tt.want)
			}
		})
	}
}
