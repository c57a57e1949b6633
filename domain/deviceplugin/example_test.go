// SPDX-License-Identifier: Apache-2.0

package deviceplugin_test

import (
	"context"
	"fmt"

	"github.com/virtloom/virtloom/domain/deviceplugin"
)

// A node that runs at most ten VMIs with hardware virtualization, and offers encrypted memory.
func ExamplePlugins() {
	var plugins deviceplugin.Plugins
	for _, d := range []deviceplugin.Device{
		deviceplugin.KVM(10), deviceplugin.TUN(0), deviceplugin.VhostNet(0), // 0: DefaultSlots
		{Name: "sev", Nodes: []string{"/dev/sev"}, Slots: 1},
	} {
		plugins = append(plugins, &deviceplugin.Plugin{Device: d})
		fmt.Println(d.Resource(), d.Nodes)
	}
	// Give them to a manager, or run plugins.Start, which withdraws the devices when its context ends.
	fmt.Println("ready:", plugins.Ready())
	// Output:
	// devices.kubevirt.io/kvm [/dev/kvm]
	// devices.kubevirt.io/tun [/dev/net/tun]
	// devices.kubevirt.io/vhost-net [/dev/vhost-net]
	// devices.kubevirt.io/sev [/dev/sev]
	// ready: false
}

// An invalid device is reported at once.
func ExamplePlugin_Start() {
	plugin := &deviceplugin.Plugin{Device: deviceplugin.Device{Name: "sev", Nodes: []string{"dev/sev"}}}
	fmt.Println(plugin.Start(context.Background()))
	// Output: deviceplugin: device "sev": Nodes: Invalid value: "dev/sev" is not an absolute, clean path
}
