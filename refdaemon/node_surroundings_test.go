// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/nodectrl"
	"github.com/virtloom/virtloom/refdaemon/configfile"
)

// added is a manager that notes what is to run in it.
type added struct {
	manager.Manager
	all []manager.Runnable
}

// Add implements manager.Manager.
func (a *added) Add(r manager.Runnable) error {
	a.all = append(a.all, r)
	return nil
}

// GetClient implements manager.Manager.
func (*added) GetClient() client.Client { return nil }

func TestHeartbeat_UntilDrained(t *testing.T) {
	var mgr added
	drained := make(chan struct{})
	if err := (&node{config: &configfile.NodeConfiguration{NodeName: "node-a"}}).addServices(&mgr, struct{ domain.Hypervisor }{}, drained); err != nil {
		t.Fatal(err)
	}
	if len(mgr.all) != 1 {
		t.Fatalf("%d parts run, want one that reports", len(mgr.all))
	}
	if h, ok := mgr.all[0].(*nodectrl.Heartbeat); !ok || h.NodeName != "node-a" || h.Drained != (<-chan struct{})(drained) {
		t.Errorf("%+v", mgr.all[0])
	}
}

func TestDevices_WithKubelet(t *testing.T) {
	for name, tc := range map[string]struct {
		folder string
		want   []string
	}{
		"no kubelet": {},
		"a kubelet":  {t.TempDir(), []string{"devices.kubevirt.io/kvm", "devices.kubevirt.io/tun", "devices.kubevirt.io/vhost-net"}},
	} {
		t.Run(name, func(t *testing.T) {
			var mgr added
			all, err := (&node{config: &configfile.NodeConfiguration{DevicePlugins: tc.folder}}).devices(&mgr)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, p := range all {
				got = append(got, p.Device.Resource())
				if p.Folder != tc.folder {
					t.Errorf("%s is offered in %s", p.Device.Name, p.Folder)
				}
			}
			slices.Sort(got)
			if !slices.Equal(got, tc.want) {
				t.Errorf("offered are %q, want %q", got, tc.want)
			}
			// Nothing to wait for is ready at once; the others have not been asked for yet.
			if all.Ready() != (tc.want == nil) || len(mgr.all) != min(len(tc.want), 2) {
				t.Errorf("ready: %t; %d parts run", all.Ready(), len(mgr.all))
			}
			for _, r := range mgr.all {
				ctx, cancel := context.WithCancel(t.Context())
				cancel()
				if err := r.Start(ctx); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

func TestBridges_WaitWhenVisible(t *testing.T) {
	for hypervisor, want := range map[string]bool{
		"qemu:///system": true, "qemu+unix:///system?socket=/run/libvirt/libvirt-sock": true,
		"qemu+tls://node-b.example.test/system": false, configfile.MemoryScheme: false, ":": false,
	} {
		if got := (&node{config: &configfile.NodeConfiguration{Hypervisor: hypervisor}}).seesBridges(); got != want {
			t.Errorf("%s: %t", hypervisor, got)
		}
		if (&node{config: &configfile.NodeConfiguration{Hypervisor: hypervisor, Launchers: "/pods"}}).seesBridges() {
			t.Errorf("%s: guests of launchers have the bridges of their Pods", hypervisor)
		}
	}
	o := &node{config: &configfile.NodeConfiguration{Bridge: "vl-nowhere", StateDir: t.TempDir()}}
	n := o.networks()
	vmi := &v1.VirtualMachineInstance{}
	vmi.UID = "uid-1"
	vmi.Spec.Networks = []v1.Network{{Name: "default"}}
	vmi.Spec.Domain.Devices.Interfaces = []v1.Interface{{Name: "default"}}
	if _, err := n.Prepare(t.Context(), vmi); !errors.Is(err, domain.ErrNotReady) || !strings.Contains(err.Error(), "vl-nowhere") {
		t.Errorf("error %v, want domain.ErrNotReady about the bridge", err)
	}
	vmi.Spec.Networks = nil // a guest without any waits for none
	if links, err := n.Prepare(t.Context(), vmi); err != nil || len(links) != 0 {
		t.Errorf("%v, %v", links, err)
	}
	if _, err := os.Stat(filepath.Join(o.config.StateDir, "networks")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("something was written down of what was not made: %v", err)
	}
}

// TestEmulation_AllowedLater: a node that waits for emulation to be allowed learns of it by the next look.
func TestEmulation_AllowedLater(t *testing.T) {
	scheme, err := newScheme()
	if err != nil {
		t.Fatal(err)
	}
	c := fake.NewClientBuilder().WithScheme(scheme).Build()
	allowed := emulation(c)
	look := func(want bool) {
		t.Helper()
		if got, err := allowed(t.Context()); err != nil || got != want {
			t.Errorf("%t, %v, want %t", got, err, want)
		}
	}
	look(false)
	kv := &v1.KubeVirt{}
	kv.Namespace, kv.Name = "kubevirt", "kubevirt"
	kv.Spec.Configuration.DeveloperConfiguration = &v1.DeveloperConfiguration{UseEmulation: true}
	if err := c.Create(t.Context(), kv); err != nil {
		t.Fatal(err)
	}
	look(true)
	if err := c.Delete(t.Context(), kv); err != nil {
		t.Fatal(err)
	}
	look(false)
}
