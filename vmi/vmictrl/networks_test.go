// SPDX-License-Identifier: Apache-2.0

package vmictrl_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/template"
	"github.com/virtloom/virtloom/vmi/vmictrl"
)

// nic adds an interface in the secondary network of its name; running adds it to the status
// too.
func nic(name string, running bool, change ...func(*v1.Interface)) func(*v1.VirtualMachineInstance) {
	return func(g *v1.VirtualMachineInstance) {
		g.Spec.Networks = append(g.Spec.Networks, v1.Network{Name: name, NetworkSource: v1.NetworkSource{Multus: &v1.MultusNetwork{NetworkName: "nad-" + name}}})
		iface := v1.Interface{Name: name, InterfaceBindingMethod: v1.InterfaceBindingMethod{Bridge: &v1.InterfaceBridge{}}}
		for _, c := range change {
			c(&iface)
		}
		g.Spec.Domain.Devices.Interfaces = append(g.Spec.Domain.Devices.Interfaces, iface)
		if running {
			g.Status.Interfaces = append(g.Status.Interfaces, v1.VirtualMachineInstanceNetworkInterface{Name: name})
		}
	}
}

func sriov(i *v1.Interface) {
	i.InterfaceBindingMethod = v1.InterfaceBindingMethod{SRIOV: &v1.InterfaceSRIOV{}}
}

func absent(i *v1.Interface) { i.State = v1.InterfaceStateAbsent }

func TestActiveNetworks_Annotations(t *testing.T) {
	const (
		key, reported, toLauncher = "k8s.v1.cni.cncf.io/networks", "k8s.v1.cni.cncf.io/network-status", "kubevirt.io/network-info"
		red, blue                 = "podb1f51a511f1", "pod16477688c0e"
	)
	ordinal := map[string]string{key: `[{"name":"nad-red","namespace":"ns","interface":"net1"}]`}
	for name, tt := range map[string]struct {
		guest []func(*v1.VirtualMachineInstance)
		has   map[string]string
		want  map[string]string
	}{
		"no secondary networks": {nil, nil, map[string]string{}},
		"nothing changes":       {[]func(*v1.VirtualMachineInstance){nic("red", true)}, nil, map[string]string{}},
		"one is plugged in": {[]func(*v1.VirtualMachineInstance){nic("red", true), nic("blue", false)}, nil, map[string]string{
			key: `[{"name":"nad-red","namespace":"ns","interface":"` + red + `"},{"name":"nad-blue","namespace":"ns","interface":"` + blue + `"}]`}},
		"a Pod keeps its way of naming": {[]func(*v1.VirtualMachineInstance){nic("red", true), nic("blue", false)}, ordinal, map[string]string{
			key: `[{"name":"nad-red","namespace":"ns","interface":"net1"},{"name":"nad-blue","namespace":"ns","interface":"net2"}]`}},
		"one is absent": {[]func(*v1.VirtualMachineInstance){nic("red", true), nic("blue", true, absent)}, nil, map[string]string{
			key: `[{"name":"nad-red","namespace":"ns","interface":"` + red + `"}]`}},
		"the last is absent":                   {[]func(*v1.VirtualMachineInstance){nic("red", true, absent)}, ordinal, map[string]string{key: "[]"}},
		"a device is for a migration to bring": {[]func(*v1.VirtualMachineInstance){nic("red", false, sriov)}, nil, map[string]string{}},
		"the launcher gets the devices": {[]func(*v1.VirtualMachineInstance){nic("red", true, sriov), nic("blue", true)},
			map[string]string{reported: `[{"name":"default","interface":"eth0"},{"name":"ns/nad-red","interface":"` + red + `","mac":"02:00:00:00:00:01","device-info":{"type":"pci","pci":{"pci-address":"0000:01:00.1"}}},{"interface":"` + blue + `"}]`},
			map[string]string{toLauncher: `{"interfaces":[{"network":"red","deviceInfo":{"type":"pci","pci":{"pci-address":"0000:01:00.1"}},"mac":"02:00:00:00:00:01"}]}`}},
		"no devices before multus reports them": {[]func(*v1.VirtualMachineInstance){nic("red", true, sriov)}, nil, map[string]string{}},
	} {
		t.Run(name, func(t *testing.T) {
			g := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "guest"}}
			for _, change := range tt.guest {
				change(g)
			}
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: tt.has}}
			got, err := vmictrl.ActiveNetworks{}.Annotations(template.Input{VMI: g}, pod)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestActiveNetworks_InvalidAnnotation(t *testing.T) {
	g := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "guest"}}
	nic("red", true, sriov)(g)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", Annotations: map[string]string{"k8s.v1.cni.cncf.io/network-status": "?"}}}
	if got, err := (vmictrl.ActiveNetworks{}).Annotations(template.Input{VMI: g}, pod); err == nil {
		t.Errorf("annotations %v, want an error", got)
	}
}
