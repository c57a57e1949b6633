// SPDX-License-Identifier: Apache-2.0

package dhcp_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv6"
	"github.com/insomniacslk/dhcp/iana"
	"golang.org/x/sys/unix"

	"github.com/virtloom/virtloom/domain/network/dhcp"
)

const (
	guestMAC = "02:00:00:12:34:56"
	// resolvConf makes the test binary a launcher that serves with that file.
	resolvConf = "VIRTLOOM_TEST_RESOLV_CONF"
)

func TestMain(m *testing.M) {
	path := os.Getenv(resolvConf)
	if path == "" {
		os.Exit(m.Run())
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	dhcp.Serve(ctx, dhcp.Options{ResolvConf: path, HostName: "web", Log: funcr.New(func(_, args string) { fmt.Println(args) }, funcr.Options{})})
}

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

// A client as guests have it gets everything.
func TestServe_RealClient(t *testing.T) {
	p := newPair(t)
	p.ports("67")
	p.bridge()
	lines := p.launcher()
	until(t, lines, "Serving DHCP")
	script := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(script, []byte("#!/bin/sh\n[ $1 != bound ] || echo \"ip=$ip mask=$mask router=$router dns=$dns mtu=$mtu domain=$domain search=$search hostname=$hostname lease=$lease serverid=$serverid\"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	got := p.guest.run("busybox", "udhcpc", "-f", "-q", "-i", "eth0", "-t", "100", "-T", "1", "-O", "mtu", "-O", "search", "-s", script)
	want := "ip=10.0.2.2 mask=24 router=10.0.2.1 dns=10.96.0.10 mtu=1450 domain=default.svc.cluster.local search=default.svc.cluster.local svc.cluster.local cluster.local hostname=web lease=86313600 serverid=10.0.2.1\n"
	if !strings.Contains(got, want) {
		t.Errorf("%s\nwant %s", got, want)
	}
}

func TestServe_Messages(t *testing.T) {
	p := newPair(t)
	p.ports("67")
	p.bridge()
	until(t, p.launcher(), "Serving DHCP")
	c := p.guest.client("udp4", 68)
	at := func(ip string) dhcpv4.Modifier {
		return dhcpv4.WithOption(dhcpv4.OptRequestedIPAddress(net.ParseIP(ip)))
	}
	server := func(ip string) dhcpv4.Modifier {
		return dhcpv4.WithOption(dhcpv4.OptServerIdentifier(net.ParseIP(ip)))
	}
	for name, s := range map[string]struct {
		message *dhcpv4.DHCPv4
		kind    dhcpv4.MessageType
		ip      string
	}{
		"discover":                {message(t, guestMAC, dhcpv4.MessageTypeDiscover), dhcpv4.MessageTypeOffer, "10.0.2.2"},
		"discover, other wish":    {message(t, guestMAC, dhcpv4.MessageTypeDiscover, at("10.0.2.77")), dhcpv4.MessageTypeOffer, "10.0.2.2"},
		"request":                 {message(t, guestMAC, dhcpv4.MessageTypeRequest, at("10.0.2.2"), server("10.0.2.1")), dhcpv4.MessageTypeAck, "10.0.2.2"},
		"request after a restart": {message(t, guestMAC, dhcpv4.MessageTypeRequest, at("10.0.2.2")), dhcpv4.MessageTypeAck, "10.0.2.2"},
		"renewal":                 {message(t, guestMAC, dhcpv4.MessageTypeRequest, dhcpv4.WithClientIP(net.IPv4(10, 0, 2, 2))), dhcpv4.MessageTypeAck, "10.0.2.2"},
		"request of another":      {message(t, guestMAC, dhcpv4.MessageTypeRequest, at("192.168.7.7")), dhcpv4.MessageTypeNak, "0.0.0.0"},
		"inform":                  {message(t, guestMAC, dhcpv4.MessageTypeInform, dhcpv4.WithClientIP(net.IPv4(10, 0, 2, 2))), dhcpv4.MessageTypeAck, "0.0.0.0"},
	} {
		t.Run(name, func(t *testing.T) {
			out := ask(t, c, s.message)
			if out.MessageType() != s.kind || out.YourIPAddr.String() != s.ip || !out.ServerIdentifier().Equal(net.IPv4(10, 0, 2, 1)) {
				t.Errorf("%s", out.Summary())
			}
		})
	}
	// An answer to the message after these shows that they got none.
	silent := []*dhcpv4.DHCPv4{
		message(t, "02:00:00:99:99:99", dhcpv4.MessageTypeDiscover), message(t, guestMAC, dhcpv4.MessageTypeDecline, at("10.0.2.2")),
		message(t, guestMAC, dhcpv4.MessageTypeRelease), message(t, guestMAC, dhcpv4.MessageTypeRequest, at("10.0.2.2"), server("10.0.2.9")),
		message(t, guestMAC, dhcpv4.MessageTypeDiscover, dhcpv4.WithRelay(net.IPv4(10, 0, 2, 3))), message(t, guestMAC, dhcpv4.MessageTypeOffer),
	}
	for _, m := range silent {
		if _, err := c.WriteTo(m.ToBytes(), &net.UDPAddr{IP: net.IPv4bcast, Port: 67}); err != nil {
			t.Fatal(err)
		}
	}
	for _, raw := range []string{"", "x", strings.Repeat("\xff", 300), strings.Repeat("y", 9000)[:1400]} {
		if _, err := c.WriteTo([]byte(raw), &net.UDPAddr{IP: net.IPv4bcast, Port: 67}); err != nil {
			t.Fatal(err)
		}
	}
	last := message(t, guestMAC, dhcpv4.MessageTypeDiscover)
	if _, err := c.WriteTo(last.ToBytes(), &net.UDPAddr{IP: net.IPv4bcast, Port: 67}); err != nil {
		t.Fatal(err)
	}
	_ = c.SetReadDeadline(time.Time{})
	buf := make([]byte, 2048)
	n, _, err := c.ReadFrom(buf)
	if err != nil {
		t.Fatal(err)
	}
	if out, err := dhcpv4.FromBytes(buf[:n]); err != nil || out.TransactionID != last.TransactionID {
		t.Errorf("%v, %v", out, err)
	}
}

// The server is there before the bridge is and the port may be bound, and follows what changes.
func TestServe_RetriesAndFollows(t *testing.T) {
	p := newPair(t)
	p.ports("1024")
	lines := p.launcher()
	p.bridge()
	until(t, lines, "permission denied")
	p.ports("67")
	if before := until(t, lines, "Serving DHCP\""); len(before) > 1 {
		t.Errorf("it logs each attempt: %q", before)
	}
	c := p.guest.client("udp4", 68)
	ask(t, c, message(t, guestMAC, dhcpv4.MessageTypeDiscover))
	p.pod.run("ip", "link", "del", "k6t-eth0")
	p.bridge()
	until(t, lines, "Serving DHCP\"")
	ask(t, c, message(t, guestMAC, dhcpv4.MessageTypeDiscover))
	// Another guest on the tap device.
	const other = "02:00:00:99:99:99"
	p.pod.run("ip", "link", "set", "tap0", "alias", "virtloom guest "+other)
	ask(t, c, message(t, other, dhcpv4.MessageTypeDiscover))
}

// A flood has no lines in the log, and leaves the server to whoever asks next.
func TestServe_Flood(t *testing.T) {
	p := newPair(t)
	p.ports("67")
	p.bridge()
	lines := p.launcher()
	until(t, lines, "Serving DHCP\"")
	c := p.guest.client("udp4", 68)
	for i := range 20000 {
		m := message(t, guestMAC, dhcpv4.MessageTypeDiscover)
		m.TransactionID = dhcpv4.TransactionID{1, byte(i >> 16), byte(i >> 8), byte(i)}
		// What the cable does not take is lost.
		_, _ = c.WriteTo(m.ToBytes(), &net.UDPAddr{IP: net.IPv4bcast, Port: 67})
	}
	ask(t, c, message(t, guestMAC, dhcpv4.MessageTypeDiscover))
	select {
	case line := <-lines:
		t.Errorf("it logged %s", line)
	default:
	}
}

func TestServe_V6(t *testing.T) {
	p := newPair(t)
	p.ports("67")
	p.bridge()
	until(t, p.launcher(), "Serving DHCP\"")
	p.guest.run("sh", "-c", "until ip -6 addr show dev eth0 scope link -tentative | grep -q fe80; do sleep 0.1; done")
	c := p.guest.client("udp6", 546)
	hw, _ := net.ParseMAC(guestMAC)
	exchange := func(m *dhcpv6.Message) *dhcpv6.Message {
		t.Helper()
		buf := make([]byte, 2048)
		for t.Context().Err() == nil {
			if _, err := c.WriteTo(m.ToBytes(), &net.UDPAddr{IP: net.ParseIP("ff02::1:2"), Port: 547}); err != nil {
				t.Fatal(err)
			}
			_ = c.SetReadDeadline(time.Now().Add(time.Second))
			n, _, err := c.ReadFrom(buf)
			if err != nil {
				continue
			}
			if out, err := dhcpv6.MessageFromBytes(buf[:n]); err == nil && out.TransactionID == m.TransactionID {
				return out
			}
		}
		t.Fatal("no answer")
		return nil
	}
	solicit, err := dhcpv6.NewSolicit(hw)
	if err != nil {
		t.Fatal(err)
	}
	advertise := exchange(solicit)
	request, err := dhcpv6.NewRequestFromAdvertise(advertise)
	if err != nil {
		t.Fatal(err)
	}
	reply := exchange(request)
	ia := reply.Options.OneIANA()
	if advertise.MessageType != dhcpv6.MessageTypeAdvertise || reply.MessageType != dhcpv6.MessageTypeReply || ia == nil {
		t.Fatalf("%s\n%s", advertise.Summary(), reply.Summary())
	}
	if got := ia.Options.OneAddress(); got == nil || got.IPv6Addr.String() != "fd10:0:2::2" {
		t.Errorf("address %v", got)
	}
	if diff := cmp.Diff([]net.IP{net.ParseIP("fd00:96::a")}, reply.Options.DNS()); diff != "" {
		t.Error(diff)
	}
	confirm := func(ip string) iana.StatusCode {
		m, err := dhcpv6.NewMessage(dhcpv6.WithClientID(solicit.Options.ClientID()), dhcpv6.WithIANA(dhcpv6.OptIAAddress{IPv6Addr: net.ParseIP(ip)}))
		if err != nil {
			t.Fatal(err)
		}
		m.MessageType = dhcpv6.MessageTypeConfirm
		return exchange(m).Options.Status().StatusCode
	}
	if here, elsewhere := confirm("fd10:0:2::2"), confirm("fd10:0:9::2"); here != iana.StatusSuccess || elsewhere != iana.StatusNotOnLink {
		t.Errorf("confirmed %s and %s", here, elsewhere)
	}
}
