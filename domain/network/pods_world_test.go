// SPDX-License-Identifier: Apache-2.0

package network_test

import (
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain/network"
)

// inside runs f on a thread in the namespace, which ends with it.
func (s space) inside(f func() error) {
	s.t.Helper()
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		ns, err := os.Open(s.file)
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

// read returns the value of a sysctl in the namespace.
func (s space) read(name string) string {
	s.t.Helper()
	var out []byte
	s.inside(func() (err error) { out, err = os.ReadFile("/proc/sys/" + name); return err })
	return strings.TrimSpace(string(out))
}

// world is a client's Pod and a launcher's Pod on one cable.
type world struct {
	client, pod space
	records     string
}

func newWorld(t *testing.T, six bool) world {
	t.Helper()
	w := world{newSpace(t), newSpace(t), t.TempDir()}
	w.client.ip("link", "add", "eth0", "mtu", "1450", "type", "veth", "peer", "name", "eth0", "netns", fmt.Sprint(w.pod.pid))
	w.pod.ip("link", "set", "eth0", "mtu", "1450")
	for s, addresses := range map[space][]string{w.client: {clientIPv4 + "/24", clientIPv6 + "/64"}, w.pod: {podIPv4 + "/24", podIPv6 + "/64"}} {
		s.ip("link", "set", "lo", "up")
		s.ip("link", "set", "eth0", "up")
		s.ip("addr", "add", addresses[0], "dev", "eth0")
		if six {
			s.ip("addr", "add", addresses[1], "dev", "eth0", "nodad")
		}
	}
	w.pod.ip("route", "add", "default", "via", clientIPv4)
	return w
}

func (w world) pods() network.Pods {
	return network.Pods{User: 107, Group: 107, Records: w.records, Node: "/proc/thread-self/ns/net", PID: func(*v1.VirtualMachineInstance) (int, error) { return w.pod.pid, nil }}
}

// masquerade is a VMI on the Pod network with these TCP ports.
func masquerade(ports ...int32) *v1.VirtualMachineInstance {
	vmi := guest("default")
	vmi.Spec.Networks[0].Pod = &v1.PodNetwork{}
	in := &vmi.Spec.Domain.Devices.Interfaces[0]
	in.Masquerade, in.MacAddress = &v1.InterfaceMasquerade{}, guestMAC
	for _, p := range ports {
		in.Ports = append(in.Ports, v1.Port{Port: p})
	}
	return vmi
}

// boot attaches a guest to the tap device: a namespace behind a cable of two tap devices.
func (w world) boot(six bool) space {
	t := w.pod.t
	t.Helper()
	g := newSpace(t)
	var ends [2]*os.File
	for i, s := range []space{w.pod, g} {
		s.inside(func() error {
			fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
			if err != nil {
				return err
			}
			r, err := unix.NewIfreq("tap0")
			if err != nil {
				return err
			}
			r.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
			if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, r); err != nil {
				return err
			}
			ends[i] = os.NewFile(uintptr(fd), "tap")
			return nil
		})
	}
	t.Cleanup(func() { _, _ = ends[0].Close(), ends[1].Close() })
	g.ip("link", "set", "tap0", "address", guestMAC, "mtu", "1450")
	for _, link := range []string{"lo", "tap0"} {
		g.ip("link", "set", link, "up")
	}
	for i := range ends {
		go carry(ends[i], ends[1-i])
	}
	g.ip("addr", "add", guestIPv4+"/24", "dev", "tap0")
	g.ip("route", "add", "default", "via", "10.0.2.1")
	if six {
		g.ip("addr", "add", guestIPv6+"/120", "dev", "tap0", "nodad")
		g.ip("-6", "route", "add", "default", "via", "fd10:0:2::1")
	}
	return g
}

// carry passes frames on until a device is closed. One that the other cannot take is lost.
func carry(from, to *os.File) {
	frame := make([]byte, 64<<10)
	for {
		n, err := from.Read(frame)
		if err != nil {
			return
		}
		_, _ = to.Write(frame[:n])
	}
}

// serve answers each connection to the port with the address that it sees of the caller.
func (s space) serve(port int) {
	s.t.Helper()
	var l net.Listener
	s.inside(func() (err error) {
		l, err = (&net.ListenConfig{}).Listen(s.t.Context(), "tcp", fmt.Sprintf(":%d", port))
		return err
	})
	s.t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			host, _, _ := net.SplitHostPort(c.RemoteAddr().String())
			_, _ = fmt.Fprint(c, host)
			c.Close()
		}
	}()
}

// dial returns what a server answers to a connection from the namespace.
func (s space) dial(host string, port int) (string, error) {
	var out []byte
	var failed error
	s.inside(func() error {
		c, err := (&net.Dialer{Timeout: 20 * time.Second}).DialContext(s.t.Context(), "tcp", net.JoinHostPort(host, fmt.Sprint(port)))
		if err != nil {
			failed = err
			return nil
		}
		defer c.Close()
		out, failed = io.ReadAll(c)
		return nil
	})
	return string(out), failed
}
