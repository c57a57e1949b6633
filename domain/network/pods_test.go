// SPDX-License-Identifier: Apache-2.0

package network_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain/convert"
)

const (
	podIPv4, podIPv6       = "10.244.0.2", "fd00:244::2"
	clientIPv4, clientIPv6 = "10.244.0.1", "fd00:244::1"
	guestIPv4, guestIPv6   = "10.0.2.2", "fd10:0:2::2"
	guestMAC               = "02:00:00:12:34:56"
)

func TestPods_Masquerade(t *testing.T) {
	for name, six := range map[string]bool{"IPv4": false, "dual stack": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, six)
			links, err := w.pods().Prepare(t.Context(), masquerade())
			want := map[string]convert.Link{"default": {Tap: "tap0", MTU: 1450, IPs: []string{podIPv4}}}
			if six {
				want["default"] = convert.Link{Tap: "tap0", MTU: 1450, IPs: []string{podIPv4, podIPv6}}
			}
			if diff := cmp.Diff(want, links); err != nil || diff != "" {
				t.Fatalf("%v (-want +got):\n%s", err, diff)
			}
			g := w.boot(six)
			g.serve(80)
			w.client.serve(81)
			type call struct {
				from     space
				to, seen string
				port     int
			}
			calls := []call{
				{w.client, podIPv4, clientIPv4, 80}, // the guest sees who calls
				{g, clientIPv4, podIPv4, 81},        // and calls with the address of the Pod
				{w.pod, "127.0.0.1", "10.0.2.1", 80},
				{g, podIPv4, "10.0.2.1", 80},
			}
			if six {
				calls = append(calls, call{w.client, podIPv6, clientIPv6, 80}, call{g, clientIPv6, podIPv6, 81}, call{g, podIPv6, "fd10:0:2::1", 80})
			} else if got := w.pod.nft("list", "ruleset"); strings.Contains(got, "table ip6") {
				t.Errorf("rules of a family that the Pod does not have:\n%s", got)
			}
			for _, c := range calls {
				if got, err := c.from.dial(c.to, c.port); got != c.seen || err != nil {
					t.Errorf("%s:%d was called from %q, %v; want %q", c.to, c.port, got, err, c.seen)
				}
			}
		})
	}
}

func TestPods_PortsFilter(t *testing.T) {
	w := newWorld(t, true)
	vmi := masquerade(80, 81)
	in := &vmi.Spec.Domain.Devices.Interfaces[0]
	in.Ports = append(in.Ports, v1.Port{Port: 90, Protocol: "UDP"})
	if _, err := w.pods().Prepare(t.Context(), vmi); err != nil {
		t.Fatal(err)
	}
	g := w.boot(true)
	for _, port := range []int{80, 81, 82, 90} {
		g.serve(port)
	}
	for _, to := range []string{podIPv4, podIPv6} {
		for port, open := range map[int]bool{80: true, 81: true, 82: false, 90: false} {
			if _, err := w.client.dial(to, port); open != (err == nil) {
				t.Errorf("%s:%d: %v, want open %t", to, port, err, open)
			}
		}
	}
	if _, err := w.pod.dial("127.0.0.1", 82); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("a port that is not the guest's: %v", err)
	}
}

// What a guest must not do: reach the localhost of its Pod, or send with the address of another.
func TestPods_GuestIsConfined(t *testing.T) {
	w := newWorld(t, false)
	if _, err := w.pods().Prepare(t.Context(), masquerade()); err != nil {
		t.Fatal(err)
	}
	g := w.boot(false)
	g.serve(80)
	if _, err := w.client.dial(podIPv4, 80); err != nil {
		t.Fatal(err)
	}
	g.ip("addr", "add", "198.51.100.7/32", "dev", "tap0")
	send := func(from, to string, count string) {
		t.Helper()
		g.inside(func() error {
			c, err := (&net.Dialer{LocalAddr: &net.UDPAddr{IP: net.ParseIP(from)}}).DialContext(t.Context(), "udp", to)
			if err != nil {
				return err
			}
			defer c.Close()
			_, err = c.Write([]byte("x"))
			return err
		})
		// Once one that may pass has passed, the other has been dropped.
		if _, err := g.dial(podIPv4, 80); err != nil {
			t.Fatal(err)
		}
		if got := w.pod.nft("list", "chain", "ip", "virtloom", count); !strings.Contains(got, "counter packets 1 ") {
			t.Errorf("%s from %s was not dropped: %s", to, from, got)
		}
	}
	send("198.51.100.7", clientIPv4+":81", "source")
	// The guest's own localhost is out of the way.
	g.ip("link", "set", "lo", "down")
	g.inside(func() error { return os.WriteFile("/proc/sys/net/ipv4/conf/tap0/route_localnet", []byte("1"), 0) })
	g.ip("addr", "flush", "dev", "lo")
	g.ip("route", "add", "127.0.0.0/8", "via", "10.0.2.1")
	send(guestIPv4, "127.0.0.1:81", "guard")
}

// snapshot is the state of the namespace that matters.
func (s space) snapshot() string {
	s.t.Helper()
	var out []string
	for _, family := range []string{"ip", "ip6"} {
		out = append(out, s.nft("-s", "list", "table", family, "virtloom"))
	}
	out = append(out, s.ip("-o", "link", "show", "k6t-eth0"), s.ip("-o", "-d", "link", "show", "tap0"))
	for line := range strings.Lines(s.ip("-o", "addr", "show", "dev", "k6t-eth0")) {
		if !strings.Contains(line, " fe80:") {
			out = append(out, line)
		}
	}
	for _, name := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding", "net/ipv4/conf/k6t-eth0/route_localnet", "net/ipv4/ip_unprivileged_port_start"} {
		out = append(out, name+"="+s.read(name))
	}
	return strings.Join(out, "\n")
}

func TestPods_Idempotent(t *testing.T) {
	w := newWorld(t, true)
	var before string
	for range 3 {
		links, err := w.pods().Prepare(t.Context(), masquerade())
		if err != nil || len(links) != 1 {
			t.Fatalf("%v, %v", links, err)
		}
		if got := w.pod.snapshot(); before != "" && got != before {
			t.Errorf("changed (-first +again):\n%s", cmp.Diff(before, got))
		}
		before = w.pod.snapshot()
	}
	if got := w.pod.read("net/ipv4/ip_unprivileged_port_start"); got != "67" {
		t.Errorf("the launcher may bind from port %s on", got)
	}
	for _, want := range []string{"user 107", "group 107", "link/ether 02:00:00:00:00:00", "alias virtloom guest " + guestMAC, "mtu 1450"} {
		if !strings.Contains(before, want) {
			t.Errorf("no %q in %s", want, before)
		}
	}
	g := w.boot(true)
	g.serve(80)
	// A guest that runs is not disturbed, not even by a topology that has changed.
	vmi := masquerade()
	yes := true
	vmi.Spec.Domain.Devices.NetworkInterfaceMultiQueue, vmi.Spec.Domain.CPU = &yes, &v1.CPU{Cores: 2}
	if _, err := w.pods().Prepare(t.Context(), vmi); err != nil {
		t.Fatal(err)
	}
	if _, err := w.client.dial(podIPv4, 80); err != nil {
		t.Error(err)
	}
	for range 2 {
		if err := w.pods().Release(t.Context(), vmi.UID); err != nil {
			t.Error(err)
		}
	}
}

// Whatever is left of a setup that was interrupted, or was there before, the next one completes it.
func TestPods_Repairs(t *testing.T) {
	fresh := newWorld(t, true)
	if _, err := fresh.pods().Prepare(t.Context(), masquerade(80)); err != nil {
		t.Fatal(err)
	}
	// Numbers of links, and the tap device's own address, are not the same everywhere, and the kernel notices the carrier when it likes.
	number, own := regexp.MustCompile(`(?m)^[0-9]+: +`), regexp.MustCompile(`(?m)^(tap0.*link/ether) [0-9a-f:]{17}`)
	carrier := regexp.MustCompile(`NO-CARRIER,|,LOWER_UP| state [A-Z]+`)
	strip := func(s string) string {
		return own.ReplaceAllString(number.ReplaceAllString(carrier.ReplaceAllString(s, ""), ""), "$1")
	}
	want := strip(fresh.pod.snapshot())
	for name, spoil := range map[string]func(s space){
		"no bridge":       func(s space) { s.ip("link", "del", "k6t-eth0") },
		"no tap device":   func(s space) { s.ip("link", "del", "tap0") },
		"bridge is down":  func(s space) { s.ip("link", "set", "k6t-eth0", "down") },
		"no addresses":    func(s space) { s.ip("addr", "flush", "dev", "k6t-eth0") },
		"other addresses": func(s space) { s.ip("addr", "add", "192.0.2.1/24", "dev", "k6t-eth0") },
		"other MAC":       func(s space) { s.ip("link", "set", "k6t-eth0", "address", "02:00:00:00:00:01") },
		"other MTU":       func(s space) { s.ip("link", "set", "k6t-eth0", "mtu", "1300") },
		"other kind": func(s space) {
			s.ip("link", "del", "k6t-eth0")
			s.ip("link", "add", "k6t-eth0", "type", "veth", "peer", "name", "x")
		},
		"detached": func(s space) { s.ip("link", "set", "tap0", "nomaster") },
		"other bridge": func(s space) {
			s.ip("link", "add", "br9", "type", "bridge")
			s.ip("link", "set", "tap0", "master", "br9")
		},
		"no alias": func(s space) { s.ip("link", "set", "tap0", "alias", "") },
		"tap is a veth": func(s space) {
			s.ip("link", "del", "tap0")
			s.ip("link", "add", "tap0", "type", "veth", "peer", "name", "y")
		},
		"tap of root": func(s space) { s.ip("link", "del", "tap0"); s.ip("tuntap", "add", "tap0", "mode", "tap") },
		"tap is a tun": func(s space) {
			s.ip("link", "del", "tap0")
			s.ip("tuntap", "add", "tap0", "mode", "tun", "user", "107", "group", "107")
		},
		"several queues": func(s space) {
			s.ip("link", "del", "tap0")
			s.ip("tuntap", "add", "tap0", "mode", "tap", "multi_queue", "user", "107", "group", "107")
		},
		"no forwarding": func(s space) {
			s.inside(func() error { return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("0"), 0) })
		},
		"no IPv6": func(s space) {
			s.inside(func() error { return os.WriteFile("/proc/sys/net/ipv6/conf/k6t-eth0/disable_ipv6", []byte("1"), 0) })
		},
		"no rules":         func(s space) { s.nft("flush", "ruleset") },
		"no rules of IPv6": func(s space) { s.nft("delete", "table", "ip6", "virtloom") },
		"a rule less":      func(s space) { s.nft("flush", "chain", "ip", "virtloom", "inbound") },
		"other ports":      func(s space) { s.t.Helper(); s.again(masquerade(81)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, true)
			w.pod.again(masquerade(80))
			spoil(w.pod)
			w.pod.again(masquerade(80))
			if diff := cmp.Diff(want, strip(w.pod.snapshot())); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			g := w.boot(true)
			g.serve(80)
			for _, to := range []string{podIPv4, podIPv6} {
				if _, err := w.client.dial(to, 80); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

func (s space) again(vmi *v1.VirtualMachineInstance) {
	s.t.Helper()
	if _, err := (world{pod: s, records: s.t.TempDir()}).pods().Prepare(s.t.Context(), vmi); err != nil {
		s.t.Fatal(err)
	}
}

func (s space) nft(args ...string) string {
	s.t.Helper()
	all := append([]string{"-t", fmt.Sprint(s.pid), "-n", "nft"}, args...)
	out, err := exec.CommandContext(s.t.Context(), "nsenter", all...).CombinedOutput()
	if err != nil {
		s.t.Fatalf("nft %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// A setup that ends after any of its steps is completed by the next one.
func TestPods_InterruptedAnywhere(t *testing.T) {
	w := newWorld(t, true)
	done := false
	for steps := 1; !done; steps++ {
		ctx := &countdown{Context: t.Context(), left: steps}
		_, err := w.pods().Prepare(ctx, masquerade())
		if done = err == nil; !done && !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
	}
	g := w.boot(true)
	g.serve(80)
	if _, err := w.client.dial(podIPv6, 80); err != nil {
		t.Error(err)
	}
}

// countdown is a context that has ended once it was asked so many times.
type countdown struct {
	context.Context
	left int
}

func (c *countdown) Err() error {
	if c.left--; c.left < 0 {
		return context.Canceled
	}
	return nil
}
