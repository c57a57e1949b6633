// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/cgroup"
	"github.com/virtloom/virtloom/domain/domainctrl"
	"github.com/virtloom/virtloom/domain/fleet"
	"github.com/virtloom/virtloom/domain/hostdevice"
	"github.com/virtloom/virtloom/domain/launcher"
	"github.com/virtloom/virtloom/domain/mounts"
	"github.com/virtloom/virtloom/domain/network"
	"github.com/virtloom/virtloom/domain/workspace"
	"github.com/virtloom/virtloom/refdaemon/configfile"
)

// qemuUser is the user and group that QEMU runs as in KubeVirt's launchers.
const qemuUser = 107

// vmis returns the hypervisor for the node's domains, and the connector to the hypervisors of
// launchers, nil unless each VMI has its own.
func (o *node) vmis(ctx context.Context, mgr manager.Manager, host domain.Hypervisor, caches *domainctrl.Caches) (domain.Hypervisor, *launcher.Connector, error) {
	if o.config.Launchers == "" {
		return host, nil, nil
	}
	pods := domainctrl.NodePods{NodeName: o.config.NodeName, Cache: caches.Pods, Reader: mgr.GetAPIReader()}
	c := &launcher.Connector{
		Pods: o.config.Launchers, NodeName: o.config.NodeName, Find: pods.Pod, Fleet: &fleet.Fleet{Node: host}, Log: ctrl.Log.WithName("launchers"),
	}
	// Running domains must be known before the first list of the hypervisor.
	if err := c.Discover(ctx); err != nil {
		ctrl.Log.Error(err, "Discovering launchers failed for some Pods")
	}
	if err := mgr.Add(manager.RunnableFunc(c.Run)); err != nil {
		return nil, nil, fmt.Errorf("watch launchers: %w", err)
	}
	return c.Fleet, c, nil
}

// inPods gives domains the resources that their Pods hold, and access to their devices. Without a
// store of images a kubelet is there, and all files of a VMI are in its Pod.
func (o *node) inPods(w *workspace.Workspace, c *launcher.Connector, claims domainctrl.VolumeClaims) error {
	m := &mounts.Mounter{Pods: o.config.Launchers, Records: filepath.Join(o.config.StateDir, "mounts")}
	if sharesNode(o.config.Cgroups) {
		m.NodePID = 1
	}
	w.Volumes = mounts.Volumes{
		Mounter: m, Node: o.config.NodeName, PersistentVolume: claims.PersistentVolume, HostPath: claims.HostPath,
		Pod: c.Pod, Witness: c.PID, User: qemuUser, Group: qemuUser,
	}
	if o.config.Images == "" {
		pods := mounts.Pods{Mounter: m, Pod: c.Pod, PID: c.PID, User: qemuUser, Group: qemuUser}
		w.Pods, w.HostDevices = pods, hostdevice.Launchers{Environment: pods.Environment}.Devices
		claims.InPods = true
		w.Claims = claims
	}
	// A bridge that is named is one in the network that all launchers share with the node, to which
	// their hypervisors connect; Pods of a kubelet have none.
	if o.config.HostBridge() == "" {
		w.Networks = network.Pods{PID: c.PID, User: qemuUser, Group: qemuUser, Records: filepath.Join(o.config.StateDir, "pod-networks")}
	}
	if o.config.Cgroups == "" {
		return nil
	}
	h := hierarchy(o.config.Cgroups)
	filters, err := h.Supported()
	if err != nil {
		return fmt.Errorf("restrict the devices of launchers: %w", err)
	}
	if !filters {
		ctrl.Log.Info("This node has no cgroups that filter devices: launchers may open what the kubelet allows them", "cgroups", o.config.Cgroups)
		return nil
	}
	w.Devices = cgroup.Filter{Hierarchy: h, PID: c.PID}
	return nil
}

// hierarchy returns the cgroup hierarchy mounted at a path.
func hierarchy(mount string) cgroup.Hierarchy {
	h := cgroup.Hierarchy{Mount: mount}
	if sharesNode(mount) {
		h.Namespace = "/proc/1/ns/cgroup"
	}
	return h
}

// sharesNode reports whether the mount point of cgroups is that of the node, as seen by an agent in a container that shares the node's
// PID namespace.
func sharesNode(cgroups string) bool { return strings.HasPrefix(cgroups, configfile.HostRoot+"/") }
