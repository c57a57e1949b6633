// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/launcher"
	"github.com/virtloom/virtloom/internal/rig"
	"github.com/virtloom/virtloom/internal/rig/rigtest"
)

// containerScript is the first process of a container as the kubelet has it made: the launcher's image below a layer of its
// own, the Pod's volumes, /proc, /sys and /dev; user 107 without capabilities, who can get none. The program is the one of today.
const containerScript = `
	state=$1 image=$2 program=$3 guest=$4; shift 4
	mount --make-rprivate /
	mount -t tmpfs none "$state/layer"
	mkdir -m 755 "$state/layer/upper" "$state/layer/work" "$state/layer/root"
	root=$state/layer/root
	mount -t overlay none -o "lowerdir=$image,upperdir=$state/layer/upper,workdir=$state/layer/work" "$root"
	mkdir "$root/proc" "$root/sys" "$root/dev" "$root/guest"
	mount -t proc none "$root/proc"
	mount -t sysfs -o ro none "$root/sys"
	mount --rbind /dev "$root/dev"
	mount --bind "$guest" "$root/guest"
	mount --bind "$program" "$root/usr/bin/refdaemon"
	volume() { mkdir -p "$root/run/$2"; mount --bind "$state/$1" "$root/run/$2"; }
	volume private kubevirt-private
	volume public kubevirt
	volume sockets kubevirt/sockets
	volume libvirt-runtime libvirt
	hostname guest
	ip link set lo up
	exec setpriv --no-new-privs /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin XDG_CACHE_HOME=/var/run/kubevirt-private \
		XDG_CONFIG_HOME=/var/run/kubevirt-private XDG_RUNTIME_DIR=/var/run POD_NAME=virt-launcher-guest \
		/usr/sbin/chroot --userspec 107:107 "$root" /usr/bin/virt-launcher-monitor "$@"`

// podUID is the UID of the guests of Pods.
const podUID = "eeeeeeee-0000-4000-8000-000000000000"

// launcherImage finds the file system of the launcher's image.
func launcherImage(t *testing.T) string {
	t.Helper()
	rigtest.Need(t)
	bin, err := rig.BinDir()
	if err != nil {
		t.Fatal(err)
	}
	image := filepath.Join(bin, "images", "launcher")
	if _, err := os.Stat(filepath.Join(image, "usr/sbin/libvirtd")); err != nil {
		t.Fatalf("%v: run hack/image.sh", err)
	}
	return image
}

// containedPod is a launcher in a container.
type containedPod struct {
	t     *testing.T
	state string
	cmd   *exec.Cmd
	over  chan error

	mu  sync.Mutex
	log bytes.Buffer
}

// Write implements io.Writer for the container's log.
func (p *containedPod) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.Write(b)
}

func (p *containedPod) logged() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.String()
}

// startPod starts a launcher with the flags that the template renders, and more.
func startPod(t *testing.T, more ...string) *containedPod {
	t.Helper()
	image := launcherImage(t)
	guest, err := rig.FindGuestImage()
	if err != nil {
		t.Fatalf("%v: run make setup", err)
	}
	program := build(t)
	state, err := os.MkdirTemp("", "vl") // the address of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	p := &containedPod{t: t, state: state, over: make(chan error, 1)}
	for _, name := range []string{"layer", "private", "public", "sockets", "libvirt-runtime"} {
		if err := errors.Join(os.Mkdir(filepath.Join(state, name), 0o777), os.Chown(filepath.Join(state, name), qemuUser, qemuUser)); err != nil {
			t.Fatal(err)
		}
	}
	p.cmd = exec.Command("/bin/sh", append([]string{"-euc", containerScript, "sh", state, image, program, filepath.Dir(guest.Kernel),
		"--qemu-timeout", "338s", "--name", "guest", "--uid", podUID, "--namespace", "ns", "--kubevirt-share-dir", "/var/run/kubevirt",
		"--ephemeral-disk-dir", "/var/run/kubevirt-ephemeral-disks", "--container-disk-dir", "/var/run/kubevirt/container-disks",
		"--grace-period-seconds", "45", "--hook-sidecars", "0", "--ovmf-path", "/usr/share/edk2/ovmf", "--disk-memory-limit", "2097152000",
		"--hypervisor", "kvm", "--run-as-nonroot", "--image-volume", "--upgrade-ordinal-ifaces", "--allow-emulation"}, more...)...)
	p.cmd.Stdout, p.cmd.Stderr = p, p
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWNET | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC}
	ended, started := make(chan struct{}), make(chan error)
	go func() {
		// The container dies with the thread that has started it, and so with a test that is killed.
		runtime.LockOSThread()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			p.over <- p.cmd.Wait()
		}
		close(ended)
	}()
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill() // and all in its PID namespace with it
		<-ended
		if t.Failed() {
			t.Logf("the container's log:\n%s", p.logged())
		}
		if err := os.RemoveAll(state); err != nil {
			t.Error(err)
		}
	})
	return p
}

// connect dials the launcher.
func (p *containedPod) connect() *launcher.Client {
	p.t.Helper()
	return connected(p.t, filepath.Join(p.state, "sockets", launcher.ReadySocket), p.over)
}

// signal sends SIGTERM to the first process of the container.
func (p *containedPod) signal() {
	p.t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		p.t.Fatal(err)
	}
}

// ended waits for the end of the container.
func (p *containedPod) ended() {
	p.t.Helper()
	if err := <-p.over; err != nil {
		p.t.Errorf("the container ended with %v", err)
	}
	p.over <- nil
}

// console is the log of the guest's serial console, where virt-tail looks for it.
func (p *containedPod) console() string {
	return filepath.Join(p.state, "private", podUID, "virt-serial0-log")
}

// awaits waits until a text has the part often enough.
func (p *containedPod) awaits(what func() string, part string, times int) {
	p.t.Helper()
	for strings.Count(what(), part) < times {
		select {
		case err := <-p.over:
			p.t.Fatalf("the container ended with %v", err)
		case <-p.t.Context().Done():
			p.t.Fatalf("there is no %q", part)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func (p *containedPod) consoleText() string {
	b, _ := os.ReadFile(p.console())
	return string(b)
}

// processes returns the host's numbers of the container's processes by their programs' names.
func (p *containedPod) processes() map[string]int {
	p.t.Helper()
	own, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", p.cmd.Process.Pid))
	if err != nil {
		p.t.Fatal(err)
	}
	entries, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		p.t.Fatal(err)
	}
	out := map[string]int{}
	for _, e := range entries {
		if ns, _ := os.Readlink(e + "/ns/pid"); ns != own {
			continue
		}
		name, _ := os.ReadFile(e + "/comm")
		var pid int
		if _, err := fmt.Sscanf(filepath.Base(e), "%d", &pid); err == nil {
			out[strings.TrimSpace(string(name))] = pid
		}
	}
	return out
}

// podGuest is the definition of a guest with a serial console as in KubeVirt, and more devices.
func podGuest(t *testing.T, cmdline, devices string) *libvirtxml.Domain {
	t.Helper()
	def := &libvirtxml.Domain{}
	dir := "/var/run/kubevirt-private/" + podUID
	if err := def.Unmarshal(fmt.Sprintf(`<domain type='qemu'><name>ns_guest</name><uuid>%s</uuid><memory unit='MiB'>96</memory><vcpu>1</vcpu>
<os><type arch='x86_64' machine='q35'>hvm</type><kernel>/guest/vmlinux</kernel><initrd>/guest/initrd</initrd><cmdline>console=ttyS0 quiet no_timer_check %s</cmdline></os>
<features><acpi/></features><cpu mode='custom' match='exact'><model>qemu64</model></cpu>
<devices><controller type='usb' model='none'/><serial type='unix'><source mode='bind' path='%s/virt-serial0'/><log file='%s/virt-serial0-log' append='on'/><alias name='ua-serial0'/></serial>
<memballoon model='none'/>%s</devices></domain>`, podUID, cmdline, dir, dir, devices)); err != nil {
		t.Fatal(err)
	}
	m := domain.Metadata{Namespace: "ns", Name: "guest", UID: podUID, Epoch: 1}
	if err := m.Put(def); err != nil {
		t.Fatal(err)
	}
	return def
}

// apply carries out an operation on the guest.
func apply(t *testing.T, c *launcher.Client, verb domain.Verb, def *libvirtxml.Domain) {
	t.Helper()
	if err := c.Apply(t.Context(), domain.Operation{Verb: verb, Domain: def.Name, Definition: def}); err != nil {
		t.Fatal(err)
	}
}

// TestPod_RealGuest: in a container of the image, as KubeVirt's user, a guest of QEMU boots; what is said
// comes out where it is looked for; it outlives its libvirtd and loses no line of its console by that; its orphaned QEMU is
// reaped; and upon SIGTERM it is shut down, and nothing runs any more.
func TestPod_RealGuest(t *testing.T) {
	p := startPod(t)
	c := p.connect()
	def := podGuest(t, "hb=0.1", "")
	apply(t, c, domain.Start, def)
	p.awaits(p.consoleText, "virtloom-heartbeat", 5)
	for name, pid := range p.processes() {
		status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if !strings.Contains(string(status), "\nUid:\t107\t107\t107\t107\n") || !strings.Contains(string(status), "\nCapEff:\t0000000000000000\n") {
			t.Errorf("%s is privileged:\n%s", name, status)
		}
	}
	console, err := c.OpenConsole(t.Context(), def.Name, "ua-serial0")
	if err != nil {
		t.Fatal(err)
	}
	if n, err := console.Read(make([]byte, 1)); n != 1 || err != nil {
		t.Errorf("the console says %d bytes, %v", n, err)
	}
	_ = console.Close()
	lost := resynced(t, c)
	p.killLibvirtd()
	lost()
	if st, err := c.Get(t.Context(), def.Name); err != nil || st.Status != domain.StatusRunning {
		t.Errorf("a guest does not outlive its libvirtd: %s/%s, %v", st.Status, st.Reason, err)
	}
	before := strings.Count(p.consoleText(), "virtloom-heartbeat")
	p.awaits(p.consoleText, "virtloom-heartbeat", before+5)
	if !strings.Contains(p.logged(), "\nqemu: ") {
		t.Error("the container's log has nothing of QEMU")
	}
	p.signal()
	p.ended()
	if !strings.Contains(p.consoleText(), "virtloom-power-button") {
		t.Error("the guest was not shut down gracefully")
	}
}

// resynced returns a function that waits until libvirt was lost and is back.
func resynced(t *testing.T, c *launcher.Client) func() {
	t.Helper()
	events, err := c.Watch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		for lost := false; ; {
			e, more := <-events
			switch {
			case !more:
				t.Fatal("the launcher is gone")
			case e.Kind == domain.Lost:
				lost = true
			case lost && e.Kind == domain.Resync:
				return
			}
		}
	}
}
