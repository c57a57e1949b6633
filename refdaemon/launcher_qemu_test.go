// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/launcher"
	"github.com/virtloom/virtloom/internal/rig"
	"github.com/virtloom/virtloom/internal/rig/rigtest"
	"libvirt.org/go/libvirtxml"
)

// TestLauncher_RealGuest has a guest of QEMU in a Pod with a libvirt of its own, over
// the command channel alone.
func TestLauncher_RealGuest(t *testing.T) {
	rigtest.Need(t)
	image, err := rig.FindGuestImage()
	if err != nil {
		t.Fatalf("%v: run make setup", err)
	}
	program := build(t)
	f, err := rig.NewFabric(t.Context(), rig.FabricOptions{Log: t.Logf})
	if err != nil {
		t.Fatalf("%v: run make setup", err)
	}
	t.Cleanup(func() {
		if err := f.Stop(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	n, err := f.AddNode(t.Context(), "pods")
	if err != nil {
		t.Fatal(err)
	}
	const uid = "dddddddd-0000-4000-8000-000000000000"
	shared := filepath.Join(n.StateDir(), "sockets")
	root := n.HostPath(shared)
	if err := os.Mkdir(root, 0o700); err != nil {
		t.Fatal(err)
	}
	pod, err := n.RunPod("launcher", uid, shared, exec.Command(program, guestFlags(uid,
		"--kubevirt-share-dir", rig.PodShared, "--private-dir", rig.PodShared+"/private", "--libvirtd", "/usr/sbin/libvirtd")...))
	if err != nil {
		t.Fatal(err)
	}
	over := make(chan error, 1)
	go func() {
		<-pod.Done()
		over <- pod.Ended()
	}()
	c := connected(t, filepath.Join(root, launcher.ReadySocket), over)

	def := &libvirtxml.Domain{}
	if err := def.Unmarshal(fmt.Sprintf(`<domain type='qemu'><name>ns_guest</name><uuid>%s</uuid><memory unit='MiB'>96</memory><vcpu>1</vcpu>
<os><type arch='x86_64' machine='q35'>hvm</type><kernel>%s</kernel><initrd>%s</initrd><cmdline>console=ttyS0 quiet no_timer_check hb=0.1</cmdline></os>
<features><acpi/></features><cpu mode='custom' match='exact'><model>qemu64</model></cpu>
<devices><controller type='usb' model='none'/><serial type='pty'><alias name='ua-console'/></serial><memballoon model='none'/></devices></domain>`,
		uid, image.Kernel, image.Initrd)); err != nil {
		t.Fatal(err)
	}
	m := domain.Metadata{Namespace: "ns", Name: "guest", UID: uid, Epoch: 3}
	if err := m.Put(def); err != nil {
		t.Fatal(err)
	}
	apply := func(verb domain.Verb) {
		t.Helper()
		if err := c.Apply(t.Context(), domain.Operation{Verb: verb, Domain: def.Name, Definition: def}); err != nil {
			t.Fatal(err)
		}
	}
	apply(domain.Start)
	st, err := c.Get(t.Context(), def.Name)
	if err != nil || st.Status != domain.StatusRunning || st.Metadata.Epoch != 3 {
		t.Fatalf("%s/%s of epoch %d, %v", st.Status, st.Reason, st.Metadata.Epoch, err)
	}
	if h, err := c.Host(t.Context()); err != nil || h.Hypervisor != "QEMU" {
		t.Errorf("host is %+v, %v", h, err)
	}
	sockets, err := c.MigrationSockets(t.Context(), def.Name)
	if err != nil || sockets.Inside != "/run/kubevirt/sockets/migration" {
		t.Errorf("sockets are %+v, %v", sockets, err)
	}
	if out, err := exec.CommandContext(t.Context(), "virsh", "-c", "qemu+unix:///system?socket="+filepath.Join(root, "libvirt", "libvirt-sock"), "list", "--name").CombinedOutput(); err != nil || !strings.Contains(string(out), def.Name) {
		t.Errorf("the Pod's libvirtd in the shared folder: %v: %s", err, out)
	}
	restarted(t, c, pod)
	if st, err = c.Get(t.Context(), def.Name); err != nil || st.Status != domain.StatusRunning {
		t.Errorf("a guest does not outlive its libvirtd: %s/%s, %v", st.Status, st.Reason, err)
	}
	apply(domain.Suspend)
	apply(domain.Resume)
	apply(domain.Destroy)
	apply(domain.Undefine)
	if err := <-over; err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			t.Errorf("the launcher ended with %v", exit)
		}
	}
}

// restarted kills the Pod's libvirtd and waits until the launcher has another one.
func restarted(t *testing.T, c *launcher.Client, pod *rig.Pod) {
	t.Helper()
	events, err := c.Watch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	killDaemon(t, pod)
	for lost := false; ; {
		select {
		case e := <-events:
			if e.Kind == domain.Lost {
				lost = true
			}
			if lost && e.Kind == domain.Resync {
				return
			}
		case <-t.Context().Done():
			t.Fatal("libvirtd is not back")
		}
	}
}

// killDaemon kills what has the daemon's configuration on its command line, in the mount
// namespace of the Pod.
func killDaemon(t *testing.T, pod *rig.Pod) {
	t.Helper()
	pods, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", pod.Pid()))
	if err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	killed := 0
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		ns, _ := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", pid))
		args, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if ns != pods || !strings.Contains(string(args), "/libvirt/daemon.conf") {
			continue
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		killed++
	}
	if killed != 1 {
		t.Fatalf("%d libvirt daemons in the Pod, want one", killed)
	}
}
