// SPDX-License-Identifier: Apache-2.0

package migrationproxy_test

import (
	"net"
	"path/filepath"
	"testing"

	"github.com/virtloom/virtloom/domain/migrationproxy"
	"github.com/virtloom/virtloom/domain/transport"
)

func insecure(o *migrationproxy.Options) { o.Insecure, o.Certificates = true, nil }

func TestProxy_ChannelsReachSockets(t *testing.T) {
	for name, change := range map[string]func(*migrationproxy.Options){
		"over TLS": func(*migrationproxy.Options) {}, "over plain TCP": insecure,
	} {
		t.Run(name, func(t *testing.T) {
			ca := newAuthority(t)
			source, target := newNode(t, "node-a", ca, change), newNode(t, "node-b", ca, change)
			for channel, mark := range map[int]string{transport.ChannelControl: "control", transport.ChannelMemory: "memory", transport.ChannelDisks: "disks"} {
				target.hypervisor(channel, func(c *net.UnixConn) {
					_, _ = c.Write([]byte(mark + ":"))
					echo(c)
				})
			}
			at, err := target.proxy.Listen(t.Context(), withDisks(tunnel("node-a")))
			if err != nil {
				t.Fatal(err)
			}
			route, err := source.proxy.Dial(t.Context(), withDisks(tunnel("node-b")), at)
			if err != nil {
				t.Fatal(err)
			}
			dir := source.sockets.Inside
			key := tunnel("").Key
			want := transport.Route{
				DestinationURI: "qemu+unix:///session?socket=" + filepath.Join(dir, string(key)+"-source.sock"),
				MigrateURI:     "unix://" + filepath.Join(dir, string(key)+"-49152-source.sock"),
				DisksURI:       "unix://" + filepath.Join(dir, string(key)+"-49153-source.sock"),
			}
			if route != want {
				t.Errorf("route %+v, want %+v", route, want)
			}
			for uri, mark := range map[string]string{route.DestinationURI: "control:", route.MigrateURI: "memory:", route.DisksURI: "disks:"} {
				c := dial(t, uri)
				got := make([]byte, len(mark))
				if _, err := c.Read(got); err != nil || string(got) != mark {
					t.Errorf("%s leads to %q, error %v, want %q", uri, got, err, mark)
				}
				roundTrip(t, c, "hello")
			}
			if got := source.total(); got.Sent != 15 || got.Received != 15+21 {
				t.Errorf("statistics %+v, want 15 bytes sent and 36 received", got)
			}
		})
	}
}

// TestOrder_MemoryStreams: QEMU takes the first for the main one. The target's hypervisor listens
// only when all have begun, so that any that can overtake does.
func TestOrder_MemoryStreams(t *testing.T) {
	for mode, change := range modes {
		t.Run(mode, func(t *testing.T) {
			ca := newAuthority(t)
			source, target := newNode(t, "node-a", ca, change), newNode(t, "node-b", ca, change)
			uri := connect(t, source, target).MigrateURI
			const streams = 9
			for i := range byte(streams) {
				if _, err := dial(t, uri).Write([]byte{i}); err != nil {
					t.Fatal(err)
				}
			}
			l, err := net.Listen("unix", filepath.Join(target.sockets.Outside, transport.SocketName(tunnel("").Key, transport.ChannelMemory)))
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			for i := range byte(streams) {
				c, err := l.Accept()
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				got := make([]byte, 1)
				if _, err := c.Read(got); err != nil || got[0] != i {
					t.Fatalf("stream %d came, error %v, want %d", got[0], err, i)
				}
			}
		})
	}
}

func withDisks(p transport.Tunnel) transport.Tunnel {
	p.CopyDisks = true
	return p
}
