// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package libvirt_test

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain/convert"
	"github.com/virtloom/virtloom/internal/rig"
	"github.com/virtloom/virtloom/internal/rig/rigtest"
)

// nodes are two hypervisor nodes with a libvirtd and a QEMU each.
type nodes struct {
	fabric *rig.Fabric
	n      [2]*rig.HypervisorNode
	image  rig.GuestImage

	mu   sync.Mutex
	made map[string]bool
}

// startNodes needs root, libvirtd, QEMU and the guest image.
func startNodes(t testing.TB) *nodes {
	t.Helper()
	rigtest.Need(t)
	image, err := rig.FindGuestImage()
	if err != nil {
		t.Fatalf("%v: run make setup", err)
	}
	f, err := rig.NewFabric(t.Context(), rig.FabricOptions{TCP: true, Log: t.Logf})
	if err != nil {
		t.Fatalf("%v: run make setup", err)
	}
	ns := &nodes{fabric: f, image: image, made: map[string]bool{}}
	t.Cleanup(func() {
		if t.Failed() {
			f.Keep()
		}
		// The test's own context has ended by now.
		if err := f.Stop(contextWithoutEnd(t)); err != nil {
			t.Error(err)
		}
	})
	for i := range ns.n {
		if ns.n[i], err = f.AddNode(t.Context(), fmt.Sprintf("node%d", i+1)); err != nil {
			t.Fatalf("%v: run make setup", err)
		}
	}
	return ns
}

// file makes a file on both nodes, private to each, unless it is there.
func (ns *nodes) file(t testing.TB, path string, size int64) string {
	t.Helper()
	ns.mu.Lock()
	defer ns.mu.Unlock()
	if ns.made[path] {
		return path
	}
	ns.made[path] = true
	for _, n := range ns.n {
		host := n.HostPath(path)
		if err := os.MkdirAll(filepath.Dir(host), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(host, nil, 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(host, size); err != nil {
			t.Fatal(err)
		}
	}
	return path
}

// facts are those of a VMI on either node; its directory exists afterwards.
func (ns *nodes) facts(t testing.TB, name string) convert.Facts {
	dir := filepath.Join(ns.fabric.StateDir(), "guests", name)
	ns.file(t, filepath.Join(dir, "made"), 0)
	return convert.Facts{
		Dir: dir, Emulation: true, Epoch: 1, Bridges: map[string]string{"default": "br0"},
		Kernel: ns.image.Kernel, Initrd: ns.image.Initrd, Disks: map[string]convert.DiskSource{},
	}
}

// guest is a small VirtualMachineInstance that boots the guest image.
func guest(name string) *v1.VirtualMachineInstance {
	memory := resource.MustParse("96Mi")
	return &v1.VirtualMachineInstance{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "test", Name: name, UID: types.UID(fmt.Sprintf("00000000-0000-4000-8000-%012x", crc32.ChecksumIEEE([]byte(name)))),
		},
		Spec: v1.VirtualMachineInstanceSpec{
			Domain: v1.DomainSpec{
				Memory: &v1.Memory{Guest: &memory},
				Firmware: &v1.Firmware{KernelBoot: &v1.KernelBoot{
					KernelArgs: "console=ttyS0 no_timer_check hb=0.1",
					Container:  &v1.KernelBootContainer{Image: rig.KernelImage, KernelPath: "/boot/vmlinux", InitrdPath: "/boot/initrd"},
				}},
				Devices: v1.Devices{
					AutoattachGraphicsDevice: new(bool),
					Interfaces: []v1.Interface{{
						Name: "default", InterfaceBindingMethod: v1.InterfaceBindingMethod{Masquerade: &v1.InterfaceMasquerade{}},
					}},
				},
			},
			Networks: []v1.Network{{Name: "default", NetworkSource: v1.NetworkSource{Pod: &v1.PodNetwork{}}}},
		},
	}
}

// definition converts the VMI under the name that the suite requests.
func (ns *nodes) definition(t testing.TB, name string) *libvirtxml.Domain {
	t.Helper()
	f := ns.facts(t, name)
	t.Cleanup(func() {
		if t.Failed() {
			for _, n := range ns.n {
				t.Logf("the console on %s: %s", n.Name(), serial(t, n, f))
			}
		}
	})
	d, err := convert.Convert(guest(name), f)
	if err != nil {
		t.Fatal(err)
	}
	d.Name = name
	return d
}

// findQEMU returns the process of a guest.
func findQEMU(t testing.TB, n *rig.HypervisorNode, name string) int {
	t.Helper()
	pids, err := n.QEMUs()
	if err != nil {
		t.Fatal(err)
	}
	for _, pid := range pids {
		cmd, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err == nil && bytes.Contains(cmd, []byte("guest="+name+",")) {
			return pid
		}
	}
	t.Fatalf("no process runs %s", name)
	return 0
}

// killQEMU kills the process of a guest.
func killQEMU(t testing.TB, n *rig.HypervisorNode, name string) {
	t.Helper()
	if err := syscall.Kill(findQEMU(t, n, name), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

// serial is the guest's output on its console on a node.
func serial(t testing.TB, n *rig.HypervisorNode, f convert.Facts) string {
	t.Helper()
	b, err := os.ReadFile(n.HostPath(filepath.Join(f.Dir, convert.SerialLog)))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return strings.ReplaceAll(string(b), "\r", "")
}
