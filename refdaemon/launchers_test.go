// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"path/filepath"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/cgroup"
	"github.com/virtloom/virtloom/domain/domainctrl"
	"github.com/virtloom/virtloom/domain/launcher"
	"github.com/virtloom/virtloom/domain/mounts"
	"github.com/virtloom/virtloom/domain/network"
	"github.com/virtloom/virtloom/domain/workspace"
	"github.com/virtloom/virtloom/refdaemon/configfile"
)

func TestInPods_Workspace(t *testing.T) {
	vmi := &v1.VirtualMachineInstance{}
	vmi.UID, vmi.Status.ActivePods = "uid-1", map[types.UID]string{"pod-1": "node-a"}
	filters := map[string]bool{"": false, t.TempDir(): false}
	for _, m := range mountsOf(t, "cgroup2") {
		filters[m] = true
	}
	for _, m := range mountsOf(t, "cgroup") {
		if filepath.Base(m) == "devices" { // version 1 is a folder with a mount for each controller
			filters[filepath.Dir(m)] = true
		}
	}
	for cgroups, want := range filters {
		c := &configfile.NodeConfiguration{NodeName: "node-a", StateDir: t.TempDir(), Launchers: t.TempDir(), Cgroups: cgroups}
		o := &node{config: c}
		var w workspace.Workspace
		if err := o.inPods(&w, &launcher.Connector{Pods: c.Launchers, NodeName: c.NodeName}, domainctrl.VolumeClaims{}); err != nil {
			t.Fatal(err)
		}
		v, ok := w.Volumes.(mounts.Volumes)
		if !ok || v.Mounter.Pods != c.Launchers || v.Mounter.Records != filepath.Join(c.StateDir, "mounts") || v.Node != "node-a" || v.Pod == nil || v.PersistentVolume == nil || v.HostPath == nil || v.Mounter.NodePID != 0 {
			t.Fatalf("volumes %+v", w.Volumes)
		}
		if _, err := v.Witness(vmi); !errors.Is(err, domain.ErrNotReady) {
			t.Errorf("a launcher that is not there sees its disks: %v", err)
		}
		if _, err := w.Networks.Prepare(t.Context(), onPodNetwork(vmi)); !errors.Is(err, domain.ErrNotReady) {
			t.Errorf("network of a launcher that is not there: %v", err)
		}
		f, filtered := w.Devices.(cgroup.Filter)
		if filtered != want || filtered && f.Hierarchy != (cgroup.Hierarchy{Mount: cgroups}) {
			t.Errorf("%q: devices %+v, want a filter: %v", cgroups, w.Devices, want)
		}
		if filtered {
			if err := w.Devices.Allow(t.Context(), vmi); !errors.Is(err, domain.ErrNotReady) {
				t.Errorf("devices of a launcher that is not there: %v", err)
			}
		}
	}
}

func TestHierarchy_OfNode(t *testing.T) {
	for mount, want := range map[string]cgroup.Hierarchy{
		"/sys/fs/cgroup":              {Mount: "/sys/fs/cgroup"},
		"/proc/1/root/sys/fs/cgroup/": {Mount: "/proc/1/root/sys/fs/cgroup/", Namespace: "/proc/1/ns/cgroup"},
	} {
		if got := hierarchy(mount); got != want {
			t.Errorf("%s: %+v, want %+v", mount, got, want)
		}
		if shares := want.Namespace != ""; sharesNode(mount) != shares {
			t.Errorf("%s is that of the node: %t", mount, !shares)
		}
	}
}

func TestInPods_FilesInPodsWithoutImageStore(t *testing.T) {
	for images, inPods := range map[string]bool{"": true, "/images": false} {
		o := &node{config: &configfile.NodeConfiguration{NodeName: "node-a", StateDir: t.TempDir(), Launchers: t.TempDir(), Images: images}}
		w := workspace.Workspace{Claims: domainctrl.VolumeClaims{}}
		if err := o.inPods(&w, &launcher.Connector{Pods: o.config.Launchers, NodeName: "node-a"}, domainctrl.VolumeClaims{}); err != nil {
			t.Fatal(err)
		}
		if got := w.Claims.(domainctrl.VolumeClaims).InPods; got != inPods || (w.Pods != nil) != inPods {
			t.Errorf("%q: claims in Pods %v, Pods %+v", images, got, w.Pods)
		}
	}
}

// onPodNetwork returns the VMI with an interface.
func onPodNetwork(vmi *v1.VirtualMachineInstance) *v1.VirtualMachineInstance {
	vmi = vmi.DeepCopy()
	vmi.Spec.Networks = []v1.Network{*v1.DefaultPodNetwork()}
	vmi.Spec.Domain.Devices.Interfaces = []v1.Interface{*v1.DefaultMasqueradeNetworkInterface()}
	return vmi
}

// Only launchers that share the network of the node are connected to one of its bridges.
func TestHostBridge_Launchers(t *testing.T) {
	for _, c := range []struct{ bridge, launchers, want string }{
		{"", "", "br0"}, {"br9", "", "br9"}, {"", "/pods", ""}, {"br9", "/pods", "br9"},
	} {
		config := &configfile.NodeConfiguration{Bridge: c.bridge, Launchers: c.launchers}
		if got := config.HostBridge(); got != c.want {
			t.Errorf("%+v: %q", c, got)
		}
		if c.launchers == "" {
			continue
		}
		var w workspace.Workspace
		if err := (&node{config: config}).inPods(&w, &launcher.Connector{}, domainctrl.VolumeClaims{}); err != nil {
			t.Fatal(err)
		}
		if _, pods := w.Networks.(network.Pods); pods != (c.want == "") {
			t.Errorf("%+v: networks are %T", c, w.Networks)
		}
	}
}
