// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/cgroup"
	"github.com/virtloom/virtloom/domain/domainctrl"
	"github.com/virtloom/virtloom/domain/launcher"
	"github.com/virtloom/virtloom/domain/mounts"
)

func TestFlagsOfLaunchersAreChecked(t *testing.T) {
	for name, tt := range map[string]struct {
		launchers, cgroups string
		want               []string
	}{
		"none":                      {},
		"both":                      {"/pods", "/sys/fs/cgroup", nil},
		"paths that lead anywhere":  {"pods", "cgroup", []string{"--launchers", "--cgroups"}},
		"containers without guests": {"", "/sys/fs/cgroup", []string{"--cgroups", "--launchers"}},
	} {
		t.Run(name, func(t *testing.T) {
			err := (&nodeOptions{node: "node-a", address: "192.0.2.1", migration: plainMigration, launchers: tt.launchers, cgroups: tt.cgroups}).check()
			if (err != nil) != (tt.want != nil) {
				t.Fatalf("error %v", err)
			}
			for _, w := range tt.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("error %v, want one that names %s", err, w)
				}
			}
		})
	}
}

func TestGuestsInPodsHaveWhatTheirPodsHold(t *testing.T) {
	vmi := &v1.VirtualMachineInstance{}
	vmi.UID, vmi.Status.ActivePods = "uid-1", map[types.UID]string{"pod-1": "node-a"}
	for cgroups, want := range map[string]*cgroup.Hierarchy{
		"":                            nil,
		"/sys/fs/cgroup":              {Mount: "/sys/fs/cgroup"},
		"/proc/1/root/sys/fs/cgroup/": {Mount: "/proc/1/root/sys/fs/cgroup/", Namespace: "/proc/1/ns/cgroup"},
	} {
		o := &nodeOptions{node: "node-a", stateDir: t.TempDir(), launchers: t.TempDir(), cgroups: cgroups}
		var w domainctrl.Workspace
		o.inPods(&w, &launcher.Connector{Pods: o.launchers, NodeName: o.node}, domainctrl.VolumeClaims{})
		v, ok := w.Volumes.(mounts.Volumes)
		if !ok || v.Mounter.Pods != o.launchers || v.Mounter.Records != filepath.Join(o.stateDir, "mounts") || v.Node != "node-a" || v.Pod == nil || v.PersistentVolume == nil {
			t.Fatalf("volumes %+v", w.Volumes)
		}
		if _, err := v.Witness(vmi); !errors.Is(err, domain.ErrNotReady) {
			t.Errorf("a launcher that is not there sees its disks: %v", err)
		}
		f, filtered := w.Devices.(cgroup.Filter)
		if filtered != (want != nil) || filtered && f.Hierarchy != *want {
			t.Errorf("%q: devices %+v, want %+v", cgroups, w.Devices, want)
		}
		if filtered {
			if err := w.Devices.Allow(t.Context(), vmi); !errors.Is(err, domain.ErrNotReady) {
				t.Errorf("devices of a launcher that is not there: %v", err)
			}
		}
	}
}
