// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"flag"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"

	v1 "kubevirt.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/virtloom/virtloom/domain/deviceplugin"
	"github.com/virtloom/virtloom/domain/network"
)

// kubeletPlugins is where kubelets have the sockets of device plugins.
const kubeletPlugins = "/var/lib/kubelet/device-plugins"

func (o *nodeOptions) pluginFlag(fs *flag.FlagSet) {
	fs.StringVar(&o.plugins, "device-plugins", "", "`directory` of the kubelet's device plugins, usually "+kubeletPlugins+": kvm, tun and vhost-net of devices.kubevirt.io are offered there, and the node takes no guests until the kubelet knows them; empty offers none")
}

func (o *nodeOptions) checkPlugins() error {
	if o.plugins != "" && !filepath.IsAbs(o.plugins) {
		return fmt.Errorf("--device-plugins %q is not an absolute path", o.plugins)
	}
	return nil
}

// devices offers the node's devices to its kubelet for as long as the manager runs. There
// are none, and nothing to wait for, where there is no kubelet.
func (o *nodeOptions) devices(mgr manager.Manager) (deviceplugin.Plugins, error) {
	var all deviceplugin.Plugins
	if o.plugins == "" {
		return all, nil
	}
	for _, d := range deviceplugin.Permanent(deviceplugin.DefaultSlots) {
		all = append(all, &deviceplugin.Plugin{Device: d, Folder: o.plugins})
	}
	err := mgr.Add(manager.RunnableFunc(func(ctx context.Context) error {
		return all.Start(ctrl.LoggerInto(ctx, ctrl.Log.WithName("device-plugins")))
	}))
	if err != nil {
		return nil, fmt.Errorf("offer devices: %w", err)
	}
	return all, nil
}

// seesBridges tells whether the bridges that guests are plugged into are among the links
// this process sees: a launcher has those of its Pod, and a daemon elsewhere its own.
func (o *nodeOptions) seesBridges() bool {
	if o.launchers != "" || strings.HasPrefix(o.hypervisor, memoryScheme) {
		return false
	}
	uri, err := url.Parse(o.hypervisor)
	return err == nil && uri.Host == ""
}

// networks makes guests wait for the bridge, into which libvirt plugs them by itself.
func (o *nodeOptions) networks() *network.Bridges {
	return &network.Bridges{
		Bridge:  func(*v1.VirtualMachineInstance, v1.Network) (string, error) { return o.bridge, nil },
		Records: filepath.Join(o.stateDir, "networks"),
	}
}
