// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
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
)

// qemuUser is the user and group that QEMU runs as in KubeVirt's launchers.
const qemuUser = 107

func (o *nodeOptions) launcherFlags(fs *flag.FlagSet) {
	fs.StringVar(&o.launchers, "launchers", "", "`directory` of the kubelet's Pods, usually "+launcher.DefaultPods+": each guest runs in the launcher of its Pod, which has --state-dir at the same path, and --hypervisor describes the node; volumes that are plugged in, and without --images those of containers, are mounted into the Pods' folders there, which therefore is a shared mount; empty runs all in --hypervisor")
	fs.StringVar(&o.cgroups, "cgroups", "", "`directory` where the node's cgroup v2 is mounted, for an agent in a container "+hostRoot+"/sys/fs/cgroup: the containers of launchers may open the devices of their guests, and no others; empty leaves that to who made the containers; needs --launchers")
}

func (o *nodeOptions) checkLaunchers() error {
	var errs []error
	for name, path := range map[string]string{"launchers": o.launchers, "cgroups": o.cgroups} {
		if path != "" && !filepath.IsAbs(path) {
			errs = append(errs, fmt.Errorf("--%s %q is not an absolute path", name, path))
		}
	}
	if o.cgroups != "" && o.launchers == "" {
		errs = append(errs, errors.New("--cgroups needs --launchers: guests that have no container share the devices of their hypervisor"))
	}
	return errors.Join(errs...)
}

// guests returns the hypervisor that runs the node's guests, and what connects single
// guests to theirs, nil unless each has one.
func (o *nodeOptions) guests(ctx context.Context, mgr manager.Manager, node domain.Hypervisor) (domain.Hypervisor, *launcher.Connector, error) {
	if o.launchers == "" {
		return node, nil, nil
	}
	c := &launcher.Connector{
		Pods: o.launchers, NodeName: o.node, Fleet: &domain.Fleet{Node: node}, Log: ctrl.Log.WithName("launchers"),
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
func (o *nodeOptions) inPods(w *domainctrl.Workspace, c *launcher.Connector, claims domainctrl.VolumeClaims) {
	w.Volumes = mounts.Volumes{
		Mounter: &mounts.Mounter{Pods: o.launchers, Records: filepath.Join(o.stateDir, "mounts")},
		Node:    o.node, PersistentVolume: claims.PersistentVolume, Pod: c.Pod, Witness: c.PID, User: qemuUser, Group: qemuUser,
	}
	if o.cgroups != "" {
		w.Devices = cgroup.Filter{Hierarchy: hierarchy(o.cgroups), PID: c.PID}
	}
}

// hostRoot is where an agent in a container sees the file system of its node, if it is in
// the node's PID namespace.
const hostRoot = "/proc/1/root"

// hierarchy is that of cgroups mounted there.
func hierarchy(mount string) cgroup.Hierarchy {
	h := cgroup.Hierarchy{Mount: mount}
	if strings.HasPrefix(mount, hostRoot+"/") {
		h.Namespace = "/proc/1/ns/cgroup"
	}
	return h
}
