// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
	"time"

	v1 "kubevirt.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/virtloom/virtloom/domain/deviceplugin"
	"github.com/virtloom/virtloom/domain/domainctrl"
	"github.com/virtloom/virtloom/domain/hostdevice"
	"github.com/virtloom/virtloom/domain/network"
	"github.com/virtloom/virtloom/domain/nodectrl"
	"github.com/virtloom/virtloom/refdaemon/configfile"
	"github.com/virtloom/virtloom/refdaemon/nodecheck"
)

// devices offers the node's devices to its kubelet while the manager runs, and those that the KubeVirt object permits. Without a
// kubelet there are none. The result are those to wait for, which every node offers.
func (o *node) devices(mgr manager.Manager) (deviceplugin.Plugins, error) {
	var all deviceplugin.Plugins
	if o.config.DevicePlugins == "" {
		return all, nil
	}
	for _, d := range deviceplugin.Permanent(deviceplugin.DefaultSlots) {
		all = append(all, &deviceplugin.Plugin{Device: d, Folder: o.config.DevicePlugins})
	}
	settings := &domainctrl.ClusterSettings{Reader: mgr.GetClient(), Kept: time.Nanosecond} // from a cache
	permitted := &hostdevice.Offers{Folder: o.config.DevicePlugins, Settings: func(ctx context.Context) (*v1.KubeVirt, error) {
		ctx, cancel := context.WithTimeout(ctx, settingsWithin)
		defer cancel()
		return settings.KubeVirt(ctx)
	}}
	for _, offered := range []manager.Runnable{all, permitted} {
		err := mgr.Add(manager.RunnableFunc(func(ctx context.Context) error {
			return offered.Start(ctrl.LoggerInto(ctx, ctrl.Log.WithName("device-plugins")))
		}))
		if err != nil {
			return nil, fmt.Errorf("offer devices: %w", err)
		}
	}
	return all, nil
}

// seesBridges reports whether this process sees the links of the guests' bridges: a launcher sees
// those of its Pod, and a daemon on another machine its own.
func (o *node) seesBridges() bool {
	if o.config.Launchers != "" || strings.HasPrefix(o.config.Hypervisor, configfile.MemoryScheme) {
		return false
	}
	uri, err := url.Parse(o.config.Hypervisor)
	return err == nil && uri.Host == ""
}

// networks makes VMIs wait for the bridge, to which libvirt connects them by itself.
func (o *node) networks() *network.Bridges {
	return &network.Bridges{
		Bridge:  func(*v1.VirtualMachineInstance, v1.Network) (string, error) { return o.config.HostBridge(), nil },
		Records: filepath.Join(o.config.StateDir, "networks"),
	}
}

// settingsWithin bounds a look at the KubeVirt object in a cache, which answers at once unless it is not filled yet.
const settingsWithin = 5 * time.Second

// emulation reports whether the KubeVirt object allows emulation now, by a cache: whoever has just allowed it waits for the nodes.
func emulation(cache client.Reader) func(context.Context) (bool, error) {
	settings := &domainctrl.ClusterSettings{Reader: cache, Kept: time.Nanosecond}
	return func(ctx context.Context) (bool, error) {
		ctx, cancel := context.WithTimeout(ctx, settingsWithin)
		defer cancel()
		return settings.AllowEmulation(ctx)
	}
}

// check looks for what the node lacks for guests in Pods.
func (o *node) check(mgr manager.Manager) func(context.Context) []nodectrl.Problem {
	p := &nodecheck.Probe{Pods: o.config.Launchers, Cgroups: o.config.Cgroups, Emulation: emulation(mgr.GetClient())}
	return func(ctx context.Context) []nodectrl.Problem {
		f, err := p.Facts(ctx)
		if err != nil {
			ctrl.LoggerFrom(ctx).Error(err, "The node could not be checked completely")
		}
		return nodecheck.Judge(f)
	}
}
