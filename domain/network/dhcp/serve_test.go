// SPDX-License-Identifier: Apache-2.0

package dhcp_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv6"
	"github.com/insomniacslk/dhcp/iana"

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

// A guest with the address of its Pod gets its routes; those that need no gateway are first.
func TestServe_HeldAddress(t *testing.T) {
	for name, c := range map[string]struct{ held, routes, want string }{
		"the network is at the link": {"10.244.1.7/24", "default via 10.244.1.1", "ip=10.244.1.7 mask=24 router=10.244.1.1 routes= server=169.254.75.10"},
		"point to point": {"10.244.1.7/32", "default via 10.244.1.1,10.244.1.0/24 via 10.244.1.1,10.244.1.1/32",
			"ip=10.244.1.7 mask=32 router= routes=10.244.1.1/32 0.0.0.0 10.244.1.0/24 10.244.1.1 0.0.0.0/0 10.244.1.1 server=169.254.75.10"},
		"one route": {"10.77.0.7/24", "192.0.2.0/24 via 10.77.0.1", "ip=10.77.0.7 mask=24 router= routes=192.0.2.0/24 10.77.0.1 server=169.254.75.10"},
		"no routes": {"10.77.0.7/24", "", "ip=10.77.0.7 mask=24 router= routes= server=169.254.75.10"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPair(t)
			p.ports("67")
			lines := p.launcher()
			p.pod.run("ip", "link", "add", "eth0", "type", "bridge")
			p.pod.run("ip", "link", "set", "eth0", "up")
			p.pod.run("ip", "addr", "add", c.held, "dev", "eth0")
			for r := range strings.SplitSeq(c.routes, ",") {
				if strings.Contains(r, "via") {
					r += " onlink"
				}
				if r != "" {
					p.pod.run(append(append([]string{"ip", "route", "add", "table", "27446"}, strings.Fields(r)...), "dev", "eth0")...)
				}
			}
			p.pod.run("ip", "link", "set", "eth0", "alias", dhcp.Holder("k6t-eth0"))
			p.pod.run("ip", "link", "add", "k6t-eth0", "type", "bridge")
			p.pod.run("ip", "addr", "add", "169.254.75.10/32", "dev", "k6t-eth0")
			p.pod.run("ip", "link", "set", "tap0", "master", "k6t-eth0")
			p.pod.run("ip", "link", "set", "k6t-eth0", "up")
			until(t, lines, "Serving DHCP")
			script := filepath.Join(t.TempDir(), "script")
			if err := os.WriteFile(script, []byte("#!/bin/sh\n[ $1 != bound ] || echo \"ip=$ip mask=$mask router=$router routes=$staticroutes server=$serverid\"\n"), 0o700); err != nil {
				t.Fatal(err)
			}
			got := p.guest.run("busybox", "udhcpc", "-f", "-q", "-i", "eth0", "-t", "100", "-T", "1", "-O", "staticroutes", "-s", script)
			if !strings.Contains(got, c.want+"\n") {
				t.Errorf("%s\nwant %s", got, c.want)
			}
		})
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
