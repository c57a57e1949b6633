// SPDX-License-Identifier: Apache-2.0

package mounts

import (
	"bufio"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	v1 "kubevirt.io/api/core/v1"
)

// little is what a container may lock by default, here.
const little = 65536

// limits are those of processes, in place of the kernel's: raising them needs a capability that not every root has.
type limits struct {
	of  map[int]unix.Rlimit
	err error
}

func (l *limits) prlimit(pid, resource int, next, now *unix.Rlimit) error {
	if resource != unix.RLIMIT_MEMLOCK {
		return unix.EINVAL
	}
	current, known := l.of[pid]
	if !known {
		current = unix.Rlimit{Cur: little, Max: little}
	}
	if now != nil {
		*now = current
		return nil
	}
	if l.err == nil {
		l.of[pid] = *next
	}
	return l.err
}

// family starts a launcher that runs a daemon.
func family(t *testing.T) (launcher, daemon int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sh", "-c", "tail -f /dev/null & echo $!; wait")
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Wait() })
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	if daemon, err = strconv.Atoi(strings.TrimSpace(line)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Kill(daemon, unix.SIGKILL) })
	return cmd.Process.Pid, daemon
}

// TestLockMemory_HostDevices: the launcher of a guest with host devices, and the libvirt that it runs, may lock the guest's memory.
func TestLockMemory_HostDevices(t *testing.T) {
	guest, most, request := resource.MustParse("1Gi"), resource.MustParse("4Gi"), resource.MustParse("3Gi")
	card := func(vmi *v1.VirtualMachineInstance) {
		vmi.Spec.Domain.Devices.HostDevices = []v1.HostDevice{{DeviceName: "a.example/card"}}
	}
	for name, tt := range map[string]struct {
		change []func(*v1.VirtualMachineInstance)
		want   uint64
	}{
		"none":          {nil, little},
		"a host device": {[]func(*v1.VirtualMachineInstance){card}, 3 << 30},
		"a GPU": {[]func(*v1.VirtualMachineInstance){func(vmi *v1.VirtualMachineInstance) {
			vmi.Spec.Domain.Devices.GPUs = []v1.GPU{{DeviceName: "a.example/gpu"}}
		}}, 3 << 30},
		"a virtual function": {[]func(*v1.VirtualMachineInstance){func(vmi *v1.VirtualMachineInstance) {
			vmi.Spec.Domain.Devices.Interfaces = []v1.Interface{{InterfaceBindingMethod: v1.InterfaceBindingMethod{SRIOV: &v1.InterfaceSRIOV{}}}}
		}}, 3 << 30},
		"memory to be plugged in": {[]func(*v1.VirtualMachineInstance){card, func(vmi *v1.VirtualMachineInstance) { vmi.Spec.Domain.Memory.MaxGuest = &most }}, 6 << 30},
		"memory by request": {[]func(*v1.VirtualMachineInstance){card, func(vmi *v1.VirtualMachineInstance) {
			vmi.Spec.Domain.Memory = nil
			vmi.Spec.Domain.Resources.Requests = corev1.ResourceList{"memory": request}
		}}, 5 << 30},
		"no memory": {[]func(*v1.VirtualMachineInstance){card, func(vmi *v1.VirtualMachineInstance) { vmi.Spec.Domain.Memory = nil }}, little},
	} {
		t.Run(name, func(t *testing.T) {
			launcher, daemon := family(t)
			vmi := &v1.VirtualMachineInstance{}
			vmi.Spec.Domain.Memory = &v1.Memory{Guest: &guest}
			for _, f := range tt.change {
				f(vmi)
			}
			l := &limits{of: map[int]unix.Rlimit{os.Getpid(): {}, launcher: {Cur: little, Max: little}, daemon: {Cur: little, Max: little}}}
			for range 2 {
				if err := lockMemory(vmi, launcher, l.prlimit); err != nil {
					t.Fatal(err)
				}
			}
			want := unix.Rlimit{Cur: tt.want, Max: tt.want}
			if len(l.of) != 3 || l.of[launcher] != want || l.of[daemon] != want || l.of[os.Getpid()] != (unix.Rlimit{}) {
				t.Errorf("limits are %+v, want %d for processes %d and %d", l.of, tt.want, launcher, daemon)
			}
		})
	}
	// More is not taken away, and what cannot be raised is left to libvirt.
	vmi := &v1.VirtualMachineInstance{}
	card(vmi)
	vmi.Spec.Domain.Memory = &v1.Memory{Guest: &guest}
	launcher, _ := family(t)
	l := &limits{of: map[int]unix.Rlimit{launcher: {Cur: little, Max: unix.RLIM_INFINITY}}, err: unix.EPERM}
	if err := lockMemory(vmi, launcher, l.prlimit); err != nil || l.of[launcher].Max != unix.RLIM_INFINITY {
		t.Errorf("%v, limits are %+v", err, l.of)
	}
	l.err = unix.EINVAL
	if err := lockMemory(vmi, launcher, l.prlimit); err == nil {
		t.Error("an error of the kernel is not told")
	}
	if err := lockMemory(vmi, 1<<30, unix.Prlimit); err != nil {
		t.Errorf("a launcher that has ended: %v", err)
	}
}
