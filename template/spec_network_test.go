// SPDX-License-Identifier: Apache-2.0

package template_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/template"
	"github.com/virtloom/virtloom/template/render"
)

const (
	multusNetworks = "k8s.v1.cni.cncf.io/networks"
	defaultNetwork = "v1.multus-cni.io/default-network"
)

// secondary adds a multus network and its interface, by default a bridge.
func secondary(name, nad string, changes ...func(*v1.Interface)) change {
	return attached(v1.Network{Name: name, NetworkSource: v1.NetworkSource{Multus: &v1.MultusNetwork{NetworkName: nad}}}, changes...)
}

// attached adds a network and its interface.
func attached(network v1.Network, changes ...func(*v1.Interface)) change {
	return func(vmi *v1.VirtualMachineInstance) {
		iface := v1.Interface{Name: network.Name}
		for _, change := range changes {
			change(&iface)
		}
		vmi.Spec.Networks = append(vmi.Spec.Networks, network)
		vmi.Spec.Domain.Devices.Interfaces = append(vmi.Spec.Domain.Devices.Interfaces, iface)
	}
}

func podNetwork(name string, changes ...func(*v1.Interface)) change {
	network := *v1.DefaultPodNetwork()
	network.Name = name
	return attached(network, changes...)
}

func defaultMultus(name, nad string) change {
	return attached(v1.Network{Name: name, NetworkSource: v1.NetworkSource{Multus: &v1.MultusNetwork{NetworkName: nad, Default: true}}})
}

func ifaceMAC(address string) func(*v1.Interface) {
	return func(i *v1.Interface) { i.MacAddress = address }
}

func ifaceState(s v1.InterfaceState) func(*v1.Interface) {
	return func(i *v1.Interface) { i.State = s }
}

func sriovIface(i *v1.Interface) { i.SRIOV = &v1.InterfaceSRIOV{} }

func passtIface(i *v1.Interface) { i.PasstBinding = &v1.InterfacePasstBinding{} }

func boundTo(name string) func(*v1.Interface) {
	return func(i *v1.Interface) { i.Binding = &v1.PluginBinding{Name: name} }
}

// registered registers a network binding plugin.
func registered(name string, p v1.InterfaceBindingPlugin) func(*template.Input) {
	return func(in *template.Input) {
		if in.Config.NetworkBindings == nil {
			in.Config.NetworkBindings = map[string]v1.InterfaceBindingPlugin{}
		}
		in.Config.NetworkBindings[name] = p
	}
}

// ifacePorts gives the interface ports.
func ifacePorts(p ...v1.Port) func(*v1.Interface) {
	return func(i *v1.Interface) { i.Ports = p }
}

func TestSpecMultusAnnotation(t *testing.T) {
	nad := v1.InterfaceBindingPlugin{NetworkAttachmentDefinition: "plugins/vdpa"}
	for name, tc := range map[string]struct {
		vmi    []change
		config []func(*template.Input)
		want   string // of the annotation; empty for none
	}{
		"no networks":          {nil, nil, ""},
		"the Pod's alone":      {[]change{virtio}, nil, ""},
		"hash of blue":         {[]change{secondary("blue", "n")}, nil, `[{"name":"n","namespace":"default","interface":"pod16477688c0e"}]`},
		"hash of red":          {[]change{secondary("red", "n")}, nil, `[{"name":"n","namespace":"default","interface":"podb1f51a511f1"}]`},
		"hash of test1":        {[]change{secondary("test1", "n")}, nil, `[{"name":"n","namespace":"default","interface":"pod1b4f0e98519"}]`},
		"hash of network1":     {[]change{secondary("network1", "n")}, nil, `[{"name":"n","namespace":"default","interface":"poda7662f44d65"}]`},
		"hash of default":      {[]change{secondary("default", "n")}, nil, `[{"name":"n","namespace":"default","interface":"pod37a8eec1ce1"}]`},
		"namespace of the NAD": {[]change{secondary("blue", "other/n")}, nil, `[{"name":"n","namespace":"other","interface":"pod16477688c0e"}]`},
		"MAC address": {[]change{secondary("blue", "n", ifaceMAC("02:00:00:00:00:01"))}, nil,
			`[{"name":"n","namespace":"default","mac":"02:00:00:00:00:01","interface":"pod16477688c0e"}]`},
		"absent": {[]change{secondary("red", "n", ifaceState(v1.InterfaceStateAbsent)), secondary("blue", "n")}, nil,
			`[{"name":"n","namespace":"default","interface":"pod16477688c0e"}]`},
		"all absent": {[]change{secondary("red", "n", ifaceState(v1.InterfaceStateAbsent))}, nil, ""},
		"link down":  {[]change{secondary("blue", "n", ifaceState(v1.InterfaceStateLinkDown))}, nil, `[{"name":"n","namespace":"default","interface":"pod16477688c0e"}]`},
		"order of the interfaces": {[]change{secondary("blue", "b"), secondary("red", "r"), reverseNetworks}, nil,
			`[{"name":"b","namespace":"default","interface":"pod16477688c0e"},{"name":"r","namespace":"default","interface":"podb1f51a511f1"}]`},
		"default network is not listed": {[]change{defaultMultus("red", "ns/r"), secondary("blue", "b")}, nil,
			`[{"name":"b","namespace":"default","interface":"pod16477688c0e"}]`},
		"plugin with a network": {[]change{podNetwork("default", boundTo("vdpa")), secondary("blue", "b", boundTo("vdpa"), ifaceMAC("02:00:00:00:00:01")), secondary("red", "r")},
			[]func(*template.Input){registered("vdpa", nad)},
			`[{"name":"vdpa","namespace":"plugins","cni-args":{"logicNetworkName":"default"}},` +
				`{"name":"b","namespace":"default","mac":"02:00:00:00:00:01","interface":"pod16477688c0e"},` +
				`{"name":"vdpa","namespace":"plugins","cni-args":{"logicNetworkName":"blue"}},` +
				`{"name":"r","namespace":"default","interface":"podb1f51a511f1"}]`},
		"plugin's network in the guest's namespace": {[]change{podNetwork("default", boundTo("p"))},
			[]func(*template.Input){registered("p", v1.InterfaceBindingPlugin{NetworkAttachmentDefinition: "x"})},
			`[{"name":"x","namespace":"default","cni-args":{"logicNetworkName":"default"}}]`},
		"plugin without a network": {[]change{podNetwork("default", boundTo("p"))},
			[]func(*template.Input){registered("p", v1.InterfaceBindingPlugin{})}, ""},
		"generated over the VMI's own": {[]change{secondary("blue", "n"), annotate(multusNetworks, "mine")}, nil,
			`[{"name":"n","namespace":"default","interface":"pod16477688c0e"}]`},
		"the VMI's own without networks": {[]change{annotate(multusNetworks, "mine")}, nil, "mine"},
	} {
		t.Run(name, func(t *testing.T) {
			got := launcher(t, input(newVMI(tc.vmi...), tc.config...)).Annotations
			if diff := cmp.Diff(tc.want, got[multusNetworks]); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func reverseNetworks(vmi *v1.VirtualMachineInstance) {
	n := vmi.Spec.Networks
	for i, j := 0, len(n)-1; i < j; i, j = i+1, j-1 {
		n[i], n[j] = n[j], n[i]
	}
}

func TestSpecDefaultNetworkAndMesh(t *testing.T) {
	masquerade := func(i *v1.Interface) { i.Masquerade = &v1.InterfaceMasquerade{} }
	for name, tc := range map[string]struct {
		vmi  change
		key  string
		want string
	}{
		"default network, verbatim":  {defaultMultus("red", "other/r"), defaultNetwork, "other/r"},
		"no default network":         {secondary("red", "r"), defaultNetwork, ""},
		"Istio's name of the bridge": {podNetwork("default", masquerade), "traffic.sidecar.istio.io/kubevirtInterfaces", "k6t-eth0"},
		"Istio's later name of it":   {podNetwork("default", masquerade), "istio.io/reroute-virtual-interfaces", "k6t-eth0"},
		"no mesh without masquerade": {podNetwork("default", passtIface), "istio.io/reroute-virtual-interfaces", ""},
	} {
		t.Run(name, func(t *testing.T) {
			if got := launcher(t, input(newVMI(tc.vmi))).Annotations[tc.key]; got != tc.want {
				t.Errorf("%s is %q, want %q", tc.key, got, tc.want)
			}
		})
	}
}

// migratedFrom adds a migration from a Pod with multus' network-status, unless it is empty.
func migratedFrom(status string) func(*template.Input) {
	return func(in *template.Input) {
		in.Config.IgnoreSELinuxLevel = true
		in.Migration = &render.Migration{UID: "m", Name: "m", SourcePod: &corev1.Pod{}}
		if status != "" {
			in.Migration.SourcePod.Annotations = map[string]string{"k8s.v1.cni.cncf.io/network-status": status}
		}
	}
}

// TestSpecMigration_InterfaceNames has case 139.
func TestSpecMigration_InterfaceNames(t *testing.T) {
	const (
		ordinal = `[{"name":"kindnet","interface":"eth0","default":true},{"name":"default/b","interface":"net1"},{"name":"default/r","interface":"net2"}]`
		hashed  = `[{"name":"kindnet","interface":"eth0","default":true},{"name":"default/b","interface":"pod16477688c0e"}]`
		off     = "PodSecondaryInterfaceNamingUpgrade"
		byHash  = `[{"name":"b","namespace":"default","interface":"pod16477688c0e"},{"name":"r","namespace":"default","interface":"podb1f51a511f1"}]`
		byOrder = `[{"name":"b","namespace":"default","interface":"net1"},{"name":"r","namespace":"default","interface":"net2"}]`
	)
	two := []change{virtio, secondary("blue", "b"), secondary("red", "r")}
	for name, tc := range map[string]struct {
		vmi    []change
		status string
		gates  []string // that are off
		naming template.InterfaceNaming
		want   string
	}{
		"139 ordinal source, gate off":         {two, ordinal, []string{off}, nil, byOrder},
		"139 ordinal source, gate on":          {two, ordinal, nil, nil, byHash},
		"139 hashed source, gate off":          {two, hashed, []string{off}, nil, byHash},
		"source without status":                {two, "", []string{off}, nil, byHash},
		"names that only look like it":         {two, `[{"interface":"net1x"},{"interface":"xnet1"},{"interface":"net"}]`, []string{off}, nil, byHash},
		"ordinal names by request":             {two, "", nil, template.OrdinalNames{}, byOrder},
		"hashed names by request":              {two, ordinal, []string{off}, template.HashedNames{}, byHash},
		"ordinals are those of the networks":   {append(two[:3:3], reverseNetworks), ordinal, []string{off}, nil, `[{"name":"r","namespace":"default","interface":"net1"},{"name":"b","namespace":"default","interface":"net2"}]`},
		"ordinals do not skip what was absent": {[]change{secondary("blue", "b", ifaceState(v1.InterfaceStateAbsent)), secondary("red", "r")}, ordinal, []string{off}, nil, byOrder},
	} {
		t.Run(name, func(t *testing.T) {
			in := input(newVMI(tc.vmi...), gatesOff(tc.gates...), migratedFrom(tc.status))
			r, err := template.Default().Replace(template.StageNetwork,
				template.AnnotationStage(template.StageNetwork, template.MultusAnnotations{Naming: tc.naming}))
			if err != nil {
				t.Fatal(err)
			}
			pod, err := r.MigrationTarget(in)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, pod.Annotations[multusNetworks]); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestMultusAnnotations_InvalidNetworkStatus(t *testing.T) {
	in := input(newVMI(secondary("blue", "b")), gatesOff("PodSecondaryInterfaceNamingUpgrade"), migratedFrom("[{"))
	_, err := template.Default().MigrationTarget(in)
	wantError(t, err, "Input.Migration.SourcePod.metadata.annotations[k8s.v1.cni.cncf.io/network-status]", render.ErrInvalid)
}

// TestNetworkWithoutInterface is quirk 14, which is harmless with other validators as well.
func TestNetworkWithoutInterface(t *testing.T) {
	vmi := newVMI(secondary("blue", "b"), secondary("red", "r"))
	vmi.Spec.Domain.Devices.Interfaces = vmi.Spec.Domain.Devices.Interfaces[:1]
	_, err := template.Default().Launcher(input(vmi))
	wantError(t, err, "spec.networks[1].name", render.ErrInvalid)

	r, err := template.Default().Replace(template.StageNetworkSpec, template.NetworkSpecStage())
	if err != nil {
		t.Fatal(err)
	}
	in := input(vmi, gatesOff("PodSecondaryInterfaceNamingUpgrade"), migratedFrom(`[{"interface":"net1"}]`))
	for name, want := range map[string]string{
		"launcher": `[{"name":"b","namespace":"default","interface":"pod16477688c0e"}]`,
		"target":   `[{"name":"b","namespace":"default","interface":"net1"}]`,
	} {
		renderPod := r.Launcher
		if name == "target" {
			renderPod = r.MigrationTarget
		}
		pod, err := renderPod(in)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, pod.Annotations[multusNetworks]); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}
