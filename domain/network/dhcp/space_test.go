// SPDX-License-Identifier: Apache-2.0

package dhcp_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"golang.org/x/sys/unix"
)

// space is a network namespace with a process that keeps it.
type space struct {
	t   *testing.T
	pid int
}

func newSpace(t *testing.T) space {
	t.Helper()
	if testing.Short() {
		t.Skip("needs root: run it without -short")
	}
	cmd := exec.CommandContext(t.Context(), "unshare", "--net", "cat")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = in.Close(); _ = cmd.Wait() })
	// The namespace exists once the process answers.
	if _, err := fmt.Fprintln(in, "x"); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatalf("no network namespace can be made; run the tests as root: %v", err)
	}
	s := space{t: t, pid: cmd.Process.Pid}
	s.run("ip", "link", "set", "lo", "up")
	return s
}

func (s space) command(args ...string) *exec.Cmd {
	return exec.CommandContext(s.t.Context(), "nsenter", append([]string{"-t", fmt.Sprint(s.pid), "-n"}, args...)...)
}

func (s space) run(args ...string) string {
	s.t.Helper()
	out, err := s.command(args...).CombinedOutput()
	if err != nil {
		s.t.Fatalf("%s: %v: %s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// inside runs f on a thread in the namespace, which ends with it.
func (s space) inside(f func() error) {
	s.t.Helper()
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", s.pid))
		if err == nil {
			defer ns.Close()
			err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET)
		}
		if err == nil {
			err = f()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		s.t.Fatal(err)
	}
}

// pair is a launcher's Pod and a guest on a cable.
type pair struct{ pod, guest space }

// newPair makes the namespaces; the Pod is as package network has made it, but for a bridge.
func newPair(t *testing.T) pair {
	t.Helper()
	p := pair{newSpace(t), newSpace(t)}
	p.guest.run("ip", "link", "add", "eth0", "address", guestMAC, "type", "veth", "peer", "name", "tap0", "netns", fmt.Sprint(p.pod.pid))
	p.guest.run("ip", "link", "set", "eth0", "up")
	p.pod.run("ip", "link", "set", "tap0", "alias", "virtloom guest "+guestMAC)
	p.pod.run("ip", "link", "set", "tap0", "mtu", "1450", "up")
	return p
}

func (p pair) ports(first string) {
	p.pod.t.Helper()
	p.pod.inside(func() error {
		return os.WriteFile("/proc/sys/net/ipv4/ip_unprivileged_port_start", []byte(first), 0)
	})
}

// bridge completes the Pod.
func (p pair) bridge() {
	p.pod.t.Helper()
	p.pod.run("ip", "link", "add", "k6t-eth0", "mtu", "1450", "address", "02:00:00:00:00:00", "type", "bridge")
	p.pod.run("ip", "addr", "add", "10.0.2.1/24", "dev", "k6t-eth0")
	p.pod.run("ip", "addr", "add", "fd10:0:2::1/120", "dev", "k6t-eth0", "nodad")
	p.pod.run("ip", "link", "set", "tap0", "master", "k6t-eth0")
	p.pod.run("ip", "link", "set", "k6t-eth0", "up")
}

// launcher serves in the Pod without any privilege. It returns the lines of its log.
func (p pair) launcher() <-chan string {
	t := p.pod.t
	t.Helper()
	dir, err := os.MkdirTemp("", "vldhcp") // that of the test is not for others
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	program, conf := filepath.Join(dir, "launcher"), filepath.Join(dir, "resolv.conf")
	self, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer self.Close()
	to, err := os.OpenFile(program, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(to, self); err != nil {
		t.Fatal(err)
	}
	if err := to.Close(); err != nil {
		t.Fatal(err)
	}
	const text = "search default.svc.cluster.local svc.cluster.local cluster.local -bad-\nnameserver 10.96.0.10\nnameserver fd00:96::a\nnameserver 127.0.0.53\noptions ndots:5\n"
	for path, mode := range map[string]os.FileMode{dir: 0o755, program: 0o755} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(conf, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := p.pod.command("setpriv", "--reuid", "107", "--regid", "107", "--clear-groups", "--inh-caps=-all", "--bounding-set=-all", "--no-new-privs", program)
	cmd.Env, cmd.Stderr = append(os.Environ(), resolvConf+"="+conf), os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Signal(syscall.SIGTERM); _ = cmd.Wait() })
	lines := make(chan string, 1000)
	go func() {
		defer close(lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			lines <- s.Text()
		}
	}()
	return lines
}

// until waits for a line with these words, and returns those before it.
func until(t *testing.T, lines <-chan string, words string) []string {
	t.Helper()
	var before []string
	for line := range lines {
		if strings.Contains(line, words) {
			return before
		}
		before = append(before, line)
	}
	t.Fatalf("the launcher has ended without %q: %q", words, before)
	return nil
}

// client is a socket of the guest from which messages of its own making come.
func (s space) client(network string, port int) net.PacketConn {
	s.t.Helper()
	var c net.PacketConn
	s.inside(func() (err error) {
		l := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
			var err error
			_ = raw.Control(func(fd uintptr) {
				if err = unix.BindToDevice(int(fd), "eth0"); err == nil {
					err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_BROADCAST, 1)
				}
			})
			return err
		}}
		c, err = l.ListenPacket(s.t.Context(), network, fmt.Sprintf(":%d", port))
		return err
	})
	s.t.Cleanup(func() { _ = c.Close() })
	return c
}

// ask sends a message until an answer to it arrives; a cable takes a moment.
func ask(t *testing.T, c net.PacketConn, m *dhcpv4.DHCPv4) *dhcpv4.DHCPv4 {
	t.Helper()
	buf := make([]byte, 2048)
	for t.Context().Err() == nil {
		if _, err := c.WriteTo(m.ToBytes(), &net.UDPAddr{IP: net.IPv4bcast, Port: 67}); err != nil {
			t.Fatal(err)
		}
		_ = c.SetReadDeadline(time.Now().Add(time.Second))
		for {
			n, _, err := c.ReadFrom(buf)
			if err != nil {
				break
			}
			if out, err := dhcpv4.FromBytes(buf[:n]); err == nil && out.TransactionID == m.TransactionID {
				return out
			}
		}
	}
	t.Fatal("no answer")
	return nil
}

func message(t *testing.T, mac string, kind dhcpv4.MessageType, more ...dhcpv4.Modifier) *dhcpv4.DHCPv4 {
	t.Helper()
	hw, err := net.ParseMAC(mac)
	if err != nil {
		t.Fatal(err)
	}
	m, err := dhcpv4.New(append([]dhcpv4.Modifier{dhcpv4.WithHwAddr(hw), dhcpv4.WithMessageType(kind), dhcpv4.WithBroadcast(true)}, more...)...)
	if err != nil {
		t.Fatal(err)
	}
	return m
}
