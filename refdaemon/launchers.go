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
	"github.com/virtloom/virtloom/domain/launcher"
	"github.com/virtloom/virtloom/domain/mounts"
	"github.com/virtloom/virtloom/refdaemon/configfile"
)

// qemuUser is the user and group that QEMU runs as in KubeVirt's launchers.
const qemuUser = 107

// guests returns the hypervisor that runs the node's guests, and what connects single
// guests to theirs, nil unless each has one.
func (o *node) guests(ctx context.Context, mgr manager.Manager, host domain.Hypervisor, caches *domainctrl.Caches) (domain.Hypervisor, *launcher.Connector, error) {
	if o.config.Launchers == "" {
		return host, nil, nil
	}
	pods := domainctrl.NodePods{NodeName: o.config.NodeName, Cache: caches.Pods, Reader: mgr.GetAPIReader()}
	c := &launcher.Connector{
		Pods: o.config.Launchers, NodeName: o.config.NodeName, Find: pods.Pod, Fleet: &domain.Fleet{Node: host}, Log: ctrl.Log.WithName("launchers"),
	}
	// Guests that run already have to be known before anybody asks what runs here.
	if err := c.Discover(ctx); err != nil {
		ctrl.Log.Error(err, "Some launchers cannot be asked")
	}
	if err := mgr.Add(manager.RunnableFunc(c.Run)); err != nil {
		return nil, nil, fmt.Errorf("watch launchers: %w", err)
	}
	return c.Fleet, c, nil
}

// inPods lets guests have what their Pods hold for them, and what they may open.
func (o *node) inPods(w *domainctrl.Workspace, c *launcher.Connector, claims domainctrl.VolumeClaims) {
	w.Volumes = mounts.Volumes{
		Mounter: &mounts.Mounter{Pods: o.config.Launchers, Records: filepath.Join(o.config.StateDir, "mounts")},
		Node:    o.config.NodeName, PersistentVolume: claims.PersistentVolume, Pod: c.Pod, Witness: c.PID, User: qemuUser, Group: qemuUser,
	}
	if o.config.Cgroups != "" {
		w.Devices = cgroup.Filter{Hierarchy: hierarchy(o.config.Cgroups), PID: c.PID}
	}
}

// hierarchy is that of cgroups mounted there.
func hierarchy(mount string) cgroup.Hierarchy {
	h := cgroup.Hierarchy{Mount: mount}
	if strings.HasPrefix(mount, configfile.HostRoot+"/") {
		h.Namespace = "/proc/1/ns/cgroup"
	}
	return h
}
