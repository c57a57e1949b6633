// SPDX-License-Identifier: Apache-2.0

package template_test

import (
	"errors"
	"strings"
	"testing"

	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/template"
	"github.com/virtloom/virtloom/template/render"
)

func TestNetworkRules_Invalid(t *testing.T) {
	both := func(i *v1.Interface) { i.Bridge, i.Masquerade = &v1.InterfaceBridge{}, &v1.InterfaceMasquerade{} }
	for name, tc := range map[string]struct {
		vmi   []change
		in    []func(*template.Input)
		field string
		class error
	}{
		"plugin not registered":   {[]change{podNetwork("a", boundTo("p"))}, nil, "spec.domain.devices.interfaces[0].binding.name", render.ErrInvalid},
		"plugin and a binding":    {[]change{podNetwork("a", boundTo("p"), sriovIface)}, nil, "spec.domain.devices.interfaces[0]", render.ErrInvalid},
		"plugin's network":        {[]change{podNetwork("a", boundTo("p"))}, []func(*template.Input){registered("p", v1.InterfaceBindingPlugin{NetworkAttachmentDefinition: "a/b/c"})}, "Config.NetworkBindings[p].networkAttachmentDefinition", render.ErrInvalid},
		"two bindings":            {[]change{podNetwork("a", both)}, nil, "spec.domain.devices.interfaces[0]", render.ErrInvalid},
		"multus without a name":   {[]change{secondary("a", "")}, nil, "spec.networks[0].multus.networkName", render.ErrInvalid},
		"bad namespace":           {[]change{secondary("a", "A/b")}, nil, "spec.networks[0].multus.networkName", render.ErrInvalid},
		"no namespace":            {[]change{secondary("a", "/b")}, nil, "spec.networks[0].multus.networkName", render.ErrInvalid},
		"no NAD":                  {[]change{secondary("a", "b/")}, nil, "spec.networks[0].multus.networkName", render.ErrInvalid},
		"too many parts":          {[]change{secondary("a", "b/c/d")}, nil, "spec.networks[0].multus.networkName", render.ErrInvalid},
		"bad NAD":                 {[]change{secondary("a", `n","x":"`)}, nil, "spec.networks[0].multus.networkName", render.ErrInvalid},
		"bad default":             {[]change{defaultMultus("a", "n,m")}, nil, "spec.networks[0].multus.networkName", render.ErrInvalid},
		"two pod networks":        {[]change{podNetwork("a"), podNetwork("b")}, nil, "spec.networks[1]", render.ErrInvalid},
		"two defaults":            {[]change{defaultMultus("a", "n"), defaultMultus("b", "n")}, nil, "spec.networks[1]", render.ErrInvalid},
		"pod and default":         {[]change{defaultMultus("a", "n"), podNetwork("b")}, nil, "spec.networks[1]", render.ErrInvalid},
		"no source":               {[]change{attached(v1.Network{Name: "a"})}, nil, "spec.networks[0]", render.ErrInvalid},
		"two sources":             {[]change{attached(v1.Network{Name: "a", NetworkSource: v1.NetworkSource{Pod: &v1.PodNetwork{}, Multus: &v1.MultusNetwork{NetworkName: "n"}}})}, nil, "spec.networks[0]", render.ErrInvalid},
		"bad name":                {[]change{podNetwork("a b")}, nil, "spec.networks[0].name", render.ErrInvalid},
		"empty name":              {[]change{podNetwork("")}, nil, "spec.networks[0].name", render.ErrInvalid},
		"network twice":           {[]change{secondary("a", "n"), secondary("a", "n")}, nil, "spec.networks[1].name", render.ErrInvalid},
		"claim without request":   {[]change{attached(claimedNetwork("c", ""))}, []func(*template.Input){gates("NetworkDevicesWithDRA")}, "spec.networks[0].resourceClaim", render.ErrInvalid},
		"claim that is not there": {[]change{attached(claimedNetwork("c", "r"))}, []func(*template.Input){gates("NetworkDevicesWithDRA")}, "spec.networks[0].resourceClaim.claimName", render.ErrInvalid},
		"no MAC":                  {[]change{podNetwork("a", ifaceMAC("nonsense"))}, nil, "spec.domain.devices.interfaces[0].macAddress", render.ErrInvalid},
		"MAC too long":            {[]change{podNetwork("a", ifaceMAC("02:00:00:00:00:00:00:01"))}, nil, "spec.domain.devices.interfaces[0].macAddress", render.ErrInvalid},
		"multicast MAC":           {[]change{podNetwork("a", ifaceMAC("01:00:5e:00:00:01"))}, nil, "spec.domain.devices.interfaces[0].macAddress", render.ErrInvalid},
		"port 0":                  {[]change{podNetwork("a", ifacePorts(v1.Port{}))}, nil, "spec.domain.devices.interfaces[0].ports[0].port", render.ErrInvalid},
		"port 65536":              {[]change{podNetwork("a", ifacePorts(v1.Port{Port: 65536}))}, nil, "spec.domain.devices.interfaces[0].ports[0].port", render.ErrInvalid},
		"protocol":                {[]change{podNetwork("a", ifacePorts(v1.Port{Port: 1, Protocol: "tcp"}))}, nil, "spec.domain.devices.interfaces[0].ports[0].protocol", render.ErrInvalid},
		"port name":               {[]change{podNetwork("a", ifacePorts(v1.Port{Port: 1, Name: "Web_Port"}))}, nil, "spec.domain.devices.interfaces[0].ports[0].name", render.ErrInvalid},
		"port name twice": {[]change{podNetwork("a", ifacePorts(v1.Port{Port: 1, Name: "web"})), secondary("b", "n", ifacePorts(v1.Port{Port: 2, Name: "web"}))}, nil,
			"spec.domain.devices.interfaces[1].ports[0].name", render.ErrInvalid},
		"slirp": {[]change{podNetwork("a", func(i *v1.Interface) { i.DeprecatedSlirp = &v1.DeprecatedInterfaceSlirp{} })}, nil,
			"spec.domain.devices.interfaces[0].slirp", render.ErrUnsupported},
		"macvtap": {[]change{secondary("a", "n", func(i *v1.Interface) { i.DeprecatedMacvtap = &v1.DeprecatedInterfaceMacvtap{} })}, nil,
			"spec.domain.devices.interfaces[0].macvtap", render.ErrUnsupported},
		"old passt": {[]change{podNetwork("a", func(i *v1.Interface) { i.DeprecatedPasst = &v1.DeprecatedInterfacePasst{} })}, nil,
			"spec.domain.devices.interfaces[0].passt", render.ErrUnsupported},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := template.Default().Launcher(input(newVMI(tc.vmi...), tc.in...))
			wantError(t, err, tc.field, tc.class)
		})
	}
}

func claimedNetwork(claim, request string) v1.Network {
	return v1.Network{Name: "a", NetworkSource: v1.NetworkSource{ResourceClaim: &v1.ClaimRequest{ClaimName: claim, RequestName: request}}}
}

func TestNetworkRules_AllFaults(t *testing.T) {
	_, err := template.Default().Launcher(input(newVMI(secondary("a", "", ifaceMAC("x")), secondary("b", "n", boundTo("p")))))
	for _, want := range []string{"spec.networks[0].multus.networkName", "interfaces[0].macAddress", "interfaces[1].binding.name", `"p"`} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want a fault of %s", err, want)
		}
	}
}

// TestGenerators_UnregisteredPlugin checks that generators are safe without the validator.
func TestGenerators_UnregisteredPlugin(t *testing.T) {
	in := input(newVMI(podNetwork("a", boundTo("gone"))))
	_, sidecars := template.BindingPluginSidecars{}.Sidecars(in)
	_, annotations := template.MultusAnnotations{}.Annotations(in)
	for name, err := range map[string]error{"sidecars": sidecars, "annotations": annotations} {
		if !errors.Is(err, render.ErrInvalid) || !strings.Contains(err.Error(), `"gone"`) {
			t.Errorf("%s: got %v, want an error that names the plugin", name, err)
		}
	}
}
