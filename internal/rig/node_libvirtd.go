// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// libvirtdTimeout bounds the start of libvirtd. It takes a tenth of a second, and some more when it
// has to ask QEMU for its capabilities, 8 s at worst.
const libvirtdTimeout = time.Minute

// libvirtdPort is where libvirtd listens in the node's network, and tcpListen the state of such a socket in
// /proc/net/tcp.
const (
	libvirtdPort = 16509
	tcpListen    = "0A"
)

// goneTimeout bounds how long a killed libvirtd may be seen; it is a matter of milliseconds.
const goneTimeout = 10 * time.Second

// libvirtd is the daemon of a node.
type libvirtd struct{ *HypervisorNode }

// conf is the configuration of the daemon. The host UUID of a machine comes from its
// firmware; nodes need one each, as libvirt refuses to migrate to the host where the guest is.
//
// The daemons at the two ends of a migration ask each other whether they are there; with libvirt's
// defaults both give up after half a minute without an answer, which a migration outlives otherwise.
// That is set here for the target's daemon and in qemuConf for the source's.
func (n libvirtd) conf() string {
	listen := "listen_tcp = 0\n"
	if n.fabric.tcp {
		listen = fmt.Sprintf("listen_tcp = 1\nlisten_addr = %q\nauth_tcp = \"none\"\n", n.address)
	}
	return libvirtdConf(listen, fmt.Sprintf("00000000-0000-4000-8000-%012d", n.number+1))
}

// libvirtdConf is the configuration of a daemon; listen is where on the network it listens.
func libvirtdConf(listen, host string) string {
	return listen + fmt.Sprintf(`listen_tls = 0
auth_unix_ro = "none"
auth_unix_rw = "none"
unix_sock_group = "root"
host_uuid = %q
max_clients = 500
keepalive_interval = 5
keepalive_count = 12
log_outputs = "3:file:/var/log/libvirt/libvirtd.log"
`, host)
}

// qemuConf is the configuration of the QEMU driver. A node is no place to isolate guests from one
// another: no cgroups, no mount namespace and no user of their own. There is no virtlogd, for
// which libvirtd would wait a minute, so QEMU writes its logs by itself.
func qemuConf(address string) string {
	return fmt.Sprintf(`user = "root"
group = "root"
dynamic_ownership = 0
remember_owner = 0
security_driver = "none"
cgroup_controllers = []
namespaces = []
stdio_handler = "file"
swtpm_user = "root"
swtpm_group = "root"
migration_address = "0.0.0.0"
migration_host = %q
keepalive_interval = 5
keepalive_count = 12
`, address)
}

// undisturbed returns the arguments with which nice(1) runs a hypervisor and its guests ahead of everything else on the
// machine.
//
// Guests are emulated here. A guest whose emulator was preempted while it was migrated has been seen to panic at the
// target with memory of different moments, in about one of twenty migrations beside a busy compiler: QEMU 7.2 notes
// that a page was written, and lets the next writes pass unnoticed, in two steps, between which the dirty log may be
// read and cleared. With KVM the kernel keeps that log. The number is relative: -20, the most there is, from any niceness.
func undisturbed() []string { return []string{"-n", "-39"} }

// StartLibvirtd starts the node's libvirtd and returns when it takes connections. AddNode has done
// so; it is for a test that has killed it. Such a libvirtd may not have found all its guests again.
func (n *HypervisorNode) StartLibvirtd(ctx context.Context) error {
	n.libvirtd.Lock()
	defer n.libvirtd.Unlock()
	ctx, cancel := context.WithTimeoutCause(ctx, libvirtdTimeout, fmt.Errorf("not there after %v", libvirtdTimeout))
	defer cancel()
	d := libvirtd{n}
	if running, err := d.pids(); err != nil || len(running) > 0 {
		return errors.Join(err, fmt.Errorf("start libvirtd of %s: processes %v are there", n.name, running))
	}
	// A socket that a killed daemon has left would make the new one look ready too early.
	if err := os.Remove(filepath.Join(n.dir, "run/libvirt-sock")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("start libvirtd of %s: %w", n.name, err)
	}
	// As a daemon its parent is the node's first process, which reaps it. The pid file has to be named:
	// the default is in /run, which nodes share.
	args := []string{"--daemon", "--pid-file", "/run/libvirt/libvirtd.pid"}
	if n.fabric.tcp {
		args = append(args, "--listen")
	}
	cmd := exec.CommandContext(ctx, "nice", append(undisturbed(), append([]string{"libvirtd"}, args...)...)...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.Dir = "/"
	if err := n.startIn(cmd); err != nil {
		return err
	}
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("start libvirtd of %s: %w: %s%s", n.name, err, out.Bytes(), d.log())
	}
	return d.await(ctx)
}

// await waits until libvirtd takes connections. It is a daemon before it has initialised its
// drivers, and ends if one of them fails.
func (n libvirtd) await(ctx context.Context) error {
	for {
		err := n.dial(ctx)
		if err == nil {
			return nil
		}
		if running, err := n.pids(); err != nil || len(running) == 0 {
			return errors.Join(err, fmt.Errorf("libvirtd of %s ended while it started%s", n.name, n.log()))
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("libvirtd of %s: %w (%w)%s", n.name, context.Cause(ctx), err, n.log())
		case <-time.After(probeInterval / 4):
		}
	}
}

func (n libvirtd) dial(ctx context.Context) error {
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", n.socket())
	if err != nil {
		return err
	}
	return c.Close()
}

// log is the end of the daemon's log, for an error.
func (n libvirtd) log() string {
	return (&process{log: filepath.Join(n.logDir(), "libvirtd.log")}).tail()
}

// KillLibvirtd kills the node's libvirtd, as a crash would, and waits until it is gone. The guests
// live on.
func (n *HypervisorNode) KillLibvirtd(ctx context.Context) error {
	n.libvirtd.Lock()
	defer n.libvirtd.Unlock()
	ctx, cancel := context.WithTimeoutCause(ctx, goneTimeout, fmt.Errorf("still there after %v", goneTimeout))
	defer cancel()
	d := libvirtd{n}
	if pids, err := d.pids(); err != nil || len(pids) == 0 {
		return errors.Join(err, fmt.Errorf("kill libvirtd of %s: processes %v are there", n.name, pids))
	}
	for {
		gone, err := d.kill()
		if err != nil {
			return fmt.Errorf("kill libvirtd of %s: %w", n.name, err)
		}
		if gone {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("kill libvirtd of %s: %w", n.name, context.Cause(ctx))
		case <-time.After(probeInterval / 4):
		}
	}
}

// kill kills all libvirt daemons, and reports whether they are gone.
func (n libvirtd) kill() (gone bool, err error) {
	pids, err := n.pids()
	if err != nil {
		return false, err
	}
	for _, pid := range pids {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			return false, err
		}
	}
	held, err := locked(filepath.Join(n.dir, "run/libvirtd.pid"))
	if err != nil || held || len(pids) > 0 {
		return false, err
	}
	listens, err := n.listens(libvirtdPort)
	return !listens, err
}

// listens reports whether a process in the node's network listens on the TCP port: what a killed daemon has
// forked and not executed yet has the daemon's sockets still.
func (n libvirtd) listens(port int) (bool, error) {
	for _, family := range []string{"tcp", "tcp6"} {
		sockets, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", n.Pid(), family))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return false, err
		}
		for line := range strings.Lines(string(sockets)) {
			f := strings.Fields(line)
			if len(f) > 3 && f[3] == tcpListen && strings.HasSuffix(f[1], fmt.Sprintf(":%04X", port)) {
				return true, nil
			}
		}
	}
	return false, nil
}

// locked reports whether a process has locked the file: a process is hardly there any more when its first
// thread has ended, while others still hold what was its.
func locked(path string) (bool, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	l := unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart}
	err = unix.FcntlFlock(f.Fd(), unix.F_GETLK, &l)
	return l.Type != unix.F_UNLCK, err
}

// Domains lists the names of all domains that the node's libvirt knows, running or not.
func (n *HypervisorNode) Domains(ctx context.Context) ([]string, error) {
	out, err := n.Virsh(ctx, "list", "--all", "--name")
	if err != nil {
		return nil, err
	}
	return strings.Fields(out), nil
}

// Virsh runs virsh against the node and returns what it prints.
func (n *HypervisorNode) Virsh(ctx context.Context, args ...string) (string, error) {
	out, err := virsh(ctx, n.URI(), args...)
	if err != nil {
		return "", fmt.Errorf("node %s: %w", n.name, err)
	}
	return out, nil
}

func virsh(ctx context.Context, uri string, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, "virsh", append([]string{"--quiet", "--connect", uri}, args...)...).Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("%w: %s", err, bytes.TrimSpace(exit.Stderr))
		}
		return "", fmt.Errorf("virsh %s: %w", strings.Join(args, " "), err)
	}
	return string(out), nil
}

// QEMUs lists the QEMU processes on the node, by the numbers they have on the machine.
func (n *HypervisorNode) QEMUs() ([]int, error) { return n.processes("qemu-system-x86") }

// pids lists the daemons of the node itself, which there is one of at most, and not those of Pods.
func (n libvirtd) pids() ([]int, error) {
	all, err := n.processes("libvirtd")
	if err != nil {
		return nil, err
	}
	own, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", n.Pid()))
	if err != nil {
		return nil, fmt.Errorf("node %s: %w", n.name, err)
	}
	return slices.DeleteFunc(all, func(pid int) bool {
		pids, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", pid))
		return err != nil || pids != own
	}), nil
}
